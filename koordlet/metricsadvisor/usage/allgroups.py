"""A tick's figures of all cgroups out of one read of the kernel: `BatchReader`'s table by `cgroup_stats`' rows.

Same columns, same numbers, no file a cgroup. The iterator knows cgroups by id, so each directory's ids (one a
hierarchy) are remembered, and the kernel is asked again only for those that the last walk did not show. An id is never
given twice, hence a directory whose id is still there is still the same cgroup.

`SpotCheck` holds this way to the files, one cgroup a tick and later one every few ticks: a kernel whose structures mean
something else than we think is found out within seconds, and the files take over. Used by
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
"""Controller, on v1 with a hierarchy of its own, and what is taken from there."""
MISTAKES = 3
"""Findings in a row after which the iterator is not believed any more."""
TRUSTED, SELDOM = 120, 4
"""After so many checks in a row without a finding there is one in so many ticks."""


class Walks(Protocol):
    """`koordlet.probes.cgroup_stats.CgroupStats`, as far as a tick needs it."""

    @property
    def roots(self) -> Mapping[str, str]: ...

    def read(self) -> Mapping[str, Hierarchy]: ...


class AllGroups:
    """Reads a tick's table with one walk a hierarchy; bounded by the directories of the last tick."""

    def __init__(self, stats: Walks) -> None:
        self._stats = stats
        self._roots = tuple(dict.fromkeys(stats.roots.values()))
        self._dirs: tuple[str, ...] = ()
        self._ids: dict[str, Ids] = {root: np.zeros(0, dtype=np.uint64) for root in self._roots}
        self._seen: Ids | None = None
        self._found: dict[str, tuple[Ids, NDArray[np.intp]]] = {}
        """By root: the ids of the last walk and the row of each directory, if it showed all of them."""
        self.tree = (0, 0)
        """How often the tree of the cpu controller was walked, and at how many of these times it had other cgroups than
        before."""

    def read(self, dirs: Sequence[str]) -> CgroupTable:
        """As `BatchReader.read` with usage, throttling and `memory.stat`; raises `ProbeError` when the walk failed."""
        found = self._stats.read()
        ids = found[self._stats.roots["cpu"]].ids
        self.tree = (self.tree[0] + 1, self.tree[1] + (self._seen is None or not np.array_equal(self._seen, ids)))
        self._seen = ids
        wanted = tuple(dirs)
        if wanted != self._dirs:
            self._keep(wanted)
        own = self._stats.roots
        before = self._ids[own["cpu"]].copy()
        at = {root: self._find(root, found[root]) for root in self._roots}
        identity = self._ids[own["cpu"]]
        table = {
            name: column
            for controller, names in FIGURES
            for name, column in found[own[controller]].columns(at[own[controller]], names).items()
        }
        nowhere = np.all([rows < 0 for rows in at.values()], axis=0)
        return CgroupTable(
            dirs=wanted,
            cgroup_id=identity.copy(),
            gone=(identity == 0) & nowhere,
            recreated=(before != 0) & (identity != 0) & (before != identity),
            columns=table,
        )

    def _keep(self, wanted: tuple[str, ...]) -> None:
        """Carry known ids over to another list of directories."""
        for root, ids in self._ids.items():
            known = dict(zip(self._dirs, ids.tolist(), strict=True))
            self._ids[root] = np.array([known.get(path, 0) for path in wanted], dtype=np.uint64)
        self._dirs = wanted
        self._found.clear()

    def _find(self, root: str, hierarchy: Hierarchy) -> NDArray[np.intp]:
        """Row of each directory, -1 where the walk showed none. Where a walk shows the same cgroups as the one before,
        its array of ids is the same."""
        last = self._found.get(root)
        if last is not None and last[0] is hierarchy.ids:
            return last[1]
        ids = self._ids[root]
        at = hierarchy.find(ids)
        missing = np.flatnonzero(at < 0)
        if len(missing):
            for row in missing.tolist():
                try:
                    ids[row] = tree.cgroup_id(f"{root}/{self._dirs[row]}" if self._dirs[row] else root)
                except CgroupGone:
                    ids[row] = 0
            at[missing] = hierarchy.find(ids[missing])
        if (at >= 0).all():
            self._found[root] = hierarchy.ids, at
        else:
            self._found.pop(root, None)
        return at


@dataclass(frozen=True, slots=True)
class _Spot:
    path: str
    cgroup_id: int
    walked: Mapping[str, float]
    read: Mapping[str, float]


class SpotCheck:
    """Compares the iterator with the files, a directory a tick. Where a figure is the same in the walk before a file
    was read and in the walk after it, the file must show it, too; a counter may be anywhere between the two."""

    def __init__(self) -> None:
        self._turn = 0
        self._last: _Spot | None = None
        self._mistakes = self._right = self._rested = 0
        self.cause = ""
        """The last finding: group, figure, both values."""

    def next_dir(self, table: CgroupTable) -> str | None:
        """Whose files to read now."""
        self._rested += 1
        if not table.dirs or (self._right >= TRUSTED and self._rested < SELDOM):
            return None
        self._rested = 0
        self._turn = (self._turn + 1) % len(table.dirs)
        return table.dirs[self._turn]

    def note(self, table: CgroupTable, files: CgroupTable) -> None:
        """*files*: one row, of `next_dir`, read right after *table*."""
        row = self._turn
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
        """Judge what was noted a tick ago by *table*, the walk of now; true after `MISTAKES` findings in a row."""
        spot, self._last = self._last, None
        if spot is None or spot.path not in table.dirs:
            return False
        row = table.dirs.index(spot.path)
        if int(table.cgroup_id[row]) != spot.cgroup_id:
            return False
        found = [
            f"{spot.path}: {name} is {read:.0f} in the file and {spot.walked[name]:.0f} in the walk"
            for name, read in spot.read.items()
            if not _fits(name, spot.walked[name], read, float(table.columns[name][row]))
        ]
        self._mistakes, self._right = (self._mistakes + 1, 0) if found else (0, self._right + 1)
        if found:
            self.cause = found[0]
        return self._mistakes >= MISTAKES


def _fits(name: str, before: float, read: float, after: float) -> bool:
    if before != before or read != read or after != after:  # NaN: a controller that was not there at one of the times
        return True
    if name in COUNTERS:
        return before <= read <= after or after < before
    return before != after or read == before
