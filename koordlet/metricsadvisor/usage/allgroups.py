"""A tick's figures of all cgroups from one read of the kernel: `BatchReader`'s table, filled from `cgroup_stats`.

Same columns, same numbers, no file per cgroup. The iterator identifies cgroups by id, so the ids of each directory (one
per hierarchy) are remembered. Ids are looked up again only when a walk shows other cgroups than the walk before, and
then only for directories that it does not show: on a real node some directories are always missing in one hierarchy.
An id is never reused, so a directory whose id still exists is still the same cgroup.

`SpotCheck` compares the figures with the files, one cgroup per tick and later one every few ticks. A kernel whose
structures differ from what the program expects is detected within seconds, and the files are used instead. Used by
`koordlet.metricsadvisor.usage.reader`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from koordlet.probes.cgroup_stats import Hierarchy
from koordlet.system.cgroup import tree
from koordlet.system.cgroup.batch import CgroupTable
from koordlet.system.cgroup.files import MEMORY_STAT_FIGURES
from koordlet.system.errors import CgroupGone

Ids = NDArray[np.uint64]
COUNTERS = frozenset({"cpu_usage_ns", "nr_periods", "nr_throttled", "throttled_ns"})
FIGURES = (
    ("cpuacct", ("cpu_usage_ns",)),
    ("cpu", ("nr_periods", "nr_throttled", "throttled_ns")),
    ("memory", tuple(f"memory_{figure}" for figure in MEMORY_STAT_FIGURES)),
)
"""(controller, on v1 with a hierarchy of its own; its figures)."""
MAX_MISMATCHES = 3
"""After this many mismatches in a row the iterator is not used any more."""
TRUSTED_AFTER = 120
"""After this many checks in a row without a mismatch there is one check every `TRUSTED_INTERVAL` ticks."""
TRUSTED_INTERVAL = 4


class HierarchyReader(Protocol):
    """`koordlet.probes.cgroup_stats.CgroupStats`, as far as a tick uses it."""

    @property
    def roots(self) -> Mapping[str, str]:
        """Controller -> root directory."""

    def read(self) -> Mapping[str, Hierarchy]:
        """Root directory -> all cgroups below."""


class AllGroups:
    """Reads a tick's table with one walk per hierarchy; bounded by the directories of the last tick."""

    def __init__(self, stats: HierarchyReader) -> None:
        self._stats = stats
        self._roots = tuple(dict.fromkeys(stats.roots.values()))
        self._dirs: tuple[str, ...] = ()
        self._ids: dict[str, Ids] = {root: np.zeros(0, dtype=np.uint64) for root in self._roots}
        self._last_ids: Ids | None = None
        """Of the cpu hierarchy."""
        self._rows: dict[str, tuple[Ids, NDArray[np.intp]]] = {}
        """Root -> (the ids of the last walk, the row of each directory, -1 where the walk did not show it)."""
        self.tree = (0, 0)
        """(walks of the cpu hierarchy, walks that showed other cgroups than the one before)."""

    def read(self, dirs: Sequence[str]) -> CgroupTable:
        """As `BatchReader.read` with usage, throttling and `memory.stat`; raises `ProbeError` when the walk failed."""
        hierarchies = self._stats.read()
        ids = hierarchies[self._stats.roots["cpu"]].ids
        walks, changes = self.tree
        changed = self._last_ids is None or not np.array_equal(self._last_ids, ids)
        self.tree = (walks + 1, changes + changed)
        self._last_ids = ids
        requested_dirs = tuple(dirs)
        if requested_dirs != self._dirs:
            self._keep(requested_dirs)
        root_of = self._stats.roots
        rows = {root: self._rows_of(root, hierarchies[root]) for root in self._roots}
        identity = self._ids[root_of["cpu"]]
        table = {
            name: column
            for controller, names in FIGURES
            for name, column in hierarchies[root_of[controller]].columns(rows[root_of[controller]], names).items()
        }
        nowhere = np.all([row < 0 for row in rows.values()], axis=0)
        return CgroupTable(
            dirs=requested_dirs,
            cgroup_id=identity.copy(),
            gone=(identity == 0) & nowhere,
            columns=table,
        )

    def _keep(self, requested_dirs: tuple[str, ...]) -> None:
        """Carry known ids over to another list of directories."""
        for root, ids in self._ids.items():
            known = dict(zip(self._dirs, ids.tolist(), strict=True))
            self._ids[root] = np.array([known.get(path, 0) for path in requested_dirs], dtype=np.uint64)
        self._dirs = requested_dirs
        self._rows.clear()

    def _rows_of(self, root: str, hierarchy: Hierarchy) -> NDArray[np.intp]:
        """Row of each directory, -1 where the walk showed none. A walk that shows the same cgroups as the previous one
        returns the same array of ids."""
        last = self._rows.get(root)
        if last is not None and last[0] is hierarchy.ids:
            return last[1]
        ids = self._ids[root]
        rows = hierarchy.find(ids)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            for index in missing.tolist():
                try:
                    ids[index] = tree.cgroup_id(f"{root}/{self._dirs[index]}" if self._dirs[index] else root)
                except CgroupGone:
                    ids[index] = 0
            rows[missing] = hierarchy.find(ids[missing])
        self._rows[root] = hierarchy.ids, rows
        return rows


@dataclass(frozen=True, slots=True)
class _Spot:
    path: str
    cgroup_id: int
    walked: Mapping[str, float]
    read: Mapping[str, float]


class SpotCheck:
    """Compares the iterator with the files, one directory per tick. A figure that is the same in the walk before a file
    was read and in the walk after it must be the same in the file; a counter may have any value between the two."""

    def __init__(self) -> None:
        self._index = 0
        self._last: _Spot | None = None
        self._mismatches = 0
        self._matches = 0
        self._ticks_since_check = 0
        self.cause = ""
        """The last mismatch: cgroup, figure, both values."""

    def next_dir(self, table: CgroupTable) -> str | None:
        """The directory whose files are to be read now; None in ticks without a check."""
        self._ticks_since_check += 1
        trusted = self._matches >= TRUSTED_AFTER
        if not table.dirs or (trusted and self._ticks_since_check < TRUSTED_INTERVAL):
            return None
        self._ticks_since_check = 0
        self._index = (self._index + 1) % len(table.dirs)
        return table.dirs[self._index]

    def note(self, table: CgroupTable, files: CgroupTable) -> None:
        """`files`: one row, of `next_dir`, read right after `table`."""
        row = self._index
        if files.gone[0] or files.cgroup_id[0] != table.cgroup_id[row]:
            return
        names = [name for name in files.columns if name in table.columns]
        self._last = _Spot(
            table.dirs[row],
            int(table.cgroup_id[row]),
            {name: float(table.columns[name][row]) for name in names},
            {name: float(files.columns[name][0]) for name in names},
        )

    def wrong(self, table: CgroupTable) -> bool:
        """Compare what was noted a tick ago with `table`, the walk of now; true after `MAX_MISMATCHES` in a row."""
        spot, self._last = self._last, None
        if spot is None or spot.path not in table.dirs:
            return False
        row = table.dirs.index(spot.path)
        if int(table.cgroup_id[row]) != spot.cgroup_id:
            return False
        mismatches = [
            f"{spot.path}: {name} is {read:.0f} in the file and {spot.walked[name]:.0f} in the walk"
            for name, read in spot.read.items()
            if not _fits(name, spot.walked[name], read, float(table.columns[name][row]))
        ]
        if mismatches:
            self.cause = mismatches[0]
            self._mismatches += 1
            self._matches = 0
        else:
            self._mismatches = 0
            self._matches += 1
        return self._mismatches >= MAX_MISMATCHES


def _fits(name: str, before: float, read: float, after: float) -> bool:
    if before != before or read != read or after != after:  # NaN: the controller was missing at one of the three times
        return True
    if name in COUNTERS:
        return before <= read <= after or after < before
    return before != after or read == before
