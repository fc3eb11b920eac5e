"""Reads the table of ``bpf/culprit_matrix.h``.

`MatrixReader` maps the table of a probe. A `MatrixReading` holds the entries at one moment; its `matrix` merges those
of all CPUs, its `minus` is the matrix of what was added since an earlier reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from koordlet.probes import layouts
from koordlet.probes.columns import Ints
from koordlet.probes.culprits.matrix import C, CulpritMatrix, Naming, SubjectTable
from koordlet.probes.loading.mapped import map_array

DRAIN_ABOVE = 0.5
"""Part of the shared entries in use from which idle ones are freed. At three quarters the first pairs are lost."""
LEAVING = np.uint64(1 << 32)
"""The key of an entry that is being freed: no pair has it, and it is not free. `MatrixReading` sees 0."""
ENTRIES_PER_PIECE = 8192
"""Entries processed at a time: arrays of 64 KB stay below malloc's mmap threshold, so their memory is reused instead of
being mapped and cleared for each array (`koordlet.app.heap`)."""


@dataclass(frozen=True, slots=True)
class MatrixReading:
    """The entries of a table at one moment, cumulative; free entries with zeros may be among them.

    24 bytes per used entry. Where more than half of the table is used, all of it at 20 bytes per entry: equal positions
    then need no look-up."""

    source: str
    time_ns: int
    """Monotonic clock."""
    position: npt.NDArray[np.int32]
    """Position of each entry in the table, ascending."""
    key: npt.NDArray[np.uint32]
    """The victim's slot + 1 in the upper 16 bits, the culprit's in the lower; 0 = free."""
    ns: Ints
    count: Ints
    slot_keys: Ints
    """Slot -> cgroup id or special key; 0 = free."""

    def matrix(self, slot_keys: Ints | None = None) -> CulpritMatrix:
        """All entries merged by pair; `slot_keys` replaces the reading's own. Entries of slots that were freed
        meanwhile (key 0) are left out."""
        names, name = np.unique(self.slot_keys if slot_keys is None else slot_keys, return_inverse=True)
        used = np.flatnonzero(self.key)
        victim, culprit = (name[slot] for slot in _slots(self.key[used]))
        known = (names[victim] != 0) & (names[culprit] != 0)
        used = used[known]
        return CulpritMatrix.summed((victim * len(names) + culprit)[known], self.ns[used], self.count[used], names)

    def minus(self, older: MatrixReading, *, piece: int = ENTRIES_PER_PIECE) -> CulpritMatrix:
        """What was added since an older reading of the same source: `matrix().minus(older.matrix())`, faster.

        An entry keeps its position until its cgroup is removed. So figures are subtracted position by position, and
        only the entries that grew, usually a few thousand, are named and merged. An entry whose figures went back, or
        of which a slot has another owner now, counts from zero; one with the same time as before did not change."""
        moved = older.slot_keys != self.slot_keys
        any_moved = bool(moved.any())
        if not len(older.position):
            older = replace(
                older,
                position=self.position,
                key=np.zeros_like(self.key),
                ns=np.zeros_like(self.ns),
                count=np.zeros_like(self.count),
            )
        same_positions = older.position is self.position or np.array_equal(older.position, self.position)
        positions = None if same_positions else _OlderPositions(older.position, self.position)
        names, name = np.unique(self.slot_keys, return_inverse=True)
        grown: list[tuple[Ints, Ints, Ints]] = []
        for begin in range(0, len(self.position), piece):
            part = slice(begin, begin + piece)
            key, ns, count = self.key[part], self.ns[part], self.count[part]
            present: npt.NDArray[np.bool_] | None = None
            before: slice | npt.NDArray[np.intp] = part
            if positions is not None:
                present, before = positions.next(part)
            old_key, old_ns, old_count = older.key[before], older.ns[before], older.count[before]
            differs = (ns != old_ns) | (key != old_key)
            if present is not None:
                differs |= ~present
            if any_moved:
                victim, culprit = _slots(key)
                reowned = moved[victim] | moved[culprit]
                differs |= reowned
            changed = np.flatnonzero(differs)
            if not len(changed):
                continue
            key, ns, count = key[changed], ns[changed], count[changed]
            old_ns, old_count = old_ns[changed], old_count[changed]
            same = (old_key[changed] == key) & (old_ns <= ns) & (old_count <= count)
            if present is not None:
                same &= present[changed]
            if any_moved:
                same &= ~reowned[changed]
            ns -= np.where(same, old_ns, 0)
            count -= np.where(same, old_count, 0)
            victim, culprit = (name[slot] for slot in _slots(key))
            known = (ns != 0) & (names[victim] != 0) & (names[culprit] != 0)  # key 0: the slot was freed meanwhile
            grown.append(((victim * len(names) + culprit)[known], ns[known], count[known]))
        if not grown:
            return CulpritMatrix.empty()
        codes, ns, count = (np.concatenate([piece[column] for piece in grown]) for column in range(3))
        return CulpritMatrix.summed(codes, ns, count, names)


class MatrixReader:
    """The map ``matrix`` of a probe: `entries` of each CPU, and `shared` of all."""

    def __init__(self, maps: Mapping[str, int], cpus: int, entries: int, shared: int = 0) -> None:
        self._table = map_array(maps["matrix"], "matrix", layouts.CULPRIT_ENTRY, cpus * entries + shared)
        self._shared = self._table[cpus * entries :]
        self._before: npt.NDArray[np.uint32] | None = None
        """The lower halves of all times at the previous call of `drain`, while the table is full."""

    def read(self, source: str, slot_keys: Callable[[], Ints]) -> MatrixReading:
        """A copy of the entries. Reads them before it calls `slot_keys`, so that every slot in them has a key."""
        key = self._table["key"].astype(np.uint32)
        if 2 * np.count_nonzero(key) > len(key):
            position = self._all_positions
            ns, count = (self._table[name].astype(np.int64) for name in ("ns", "count"))
            free = np.flatnonzero(key == 0)  # may have been claimed since `key` was copied
            ns[free] = count[free] = 0
        else:
            position = np.flatnonzero(key).astype(np.int32)
            key = key[position]
            ns, count = (self._table[name][position].view(np.int64) for name in ("ns", "count"))
        return MatrixReading(source, time.monotonic_ns(), position, key, ns, count, slot_keys())

    def by_subject(self, slot_keys: Ints, naming: Naming[C]) -> SubjectTable[C]:
        """Everything charged so far by subject, without a copy of the table."""
        pieces = (
            self._table[begin : begin + ENTRIES_PER_PIECE] for begin in range(0, len(self._table), ENTRIES_PER_PIECE)
        )
        entries = ((piece["key"].astype(np.uint32), piece["ns"].astype(np.int64)) for piece in pieces)
        return SubjectTable.of_entries(slot_keys, entries, naming)

    def forget(self, slots: npt.NDArray[np.intp]) -> None:
        """Free the entries of these slots."""
        key = self._table["key"].astype(np.uint32)
        victim, culprit = _slots(key)
        self._free((key != 0) & (np.isin(victim, slots) | np.isin(culprit, slots)))

    def drain(self) -> int:
        """Once more than `DRAIN_ABOVE` of the shared part is in use: free the entries, also of single CPUs, to which
        nothing was added since the previous call. Returns their number.

        Counters that add up entries see the figures of these pairs end, as those of a removed cgroup."""
        if np.count_nonzero(self._shared["key"]) <= DRAIN_ABOVE * len(self._shared):
            self._before = None
            return 0
        before, self._before = self._before, self._table["ns"].astype(np.uint32)
        return 0 if before is None else self._free((self._table["key"] != 0) & (before == self._before))

    def _free(self, stale: npt.NDArray[np.bool_]) -> int:
        """The kernel may be adding to these entries. So they leave their pair first, and by the time that all have, no
        addition is under way any more; the figures before the key, because a free entry may be claimed at once."""
        entries = np.flatnonzero(stale)
        self._table["key"][entries] = LEAVING
        for name in ("count", "ns", "key"):
            self._table[name][entries] = 0
        return len(entries)

    @cached_property
    def _all_positions(self) -> npt.NDArray[np.int32]:
        return np.arange(len(self._table), dtype=np.int32)


class MatrixLosses:
    """The map ``matrix_lost`` of a probe, one row per CPU."""

    def __init__(self, maps: Mapping[str, int], cpus: int) -> None:
        self._table = map_array(maps["matrix_lost"], "matrix_lost", layouts.CULPRIT_LOST, cpus)

    def read(self) -> tuple[int, int]:
        """(charges that found no entry, the nanoseconds that they stood for)."""
        return int(self._table["count"].sum()), int(self._table["ns"].sum())


class _OlderPositions:
    """Where an older reading has the entries of a newer one; both are in order of position."""

    def __init__(self, old: npt.NDArray[np.int32], new: npt.NDArray[np.int32]) -> None:
        self._old = old
        self._new = new
        self._last = 0

    def next(self, part: slice) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.intp]]:
        """For the part of the newer reading that follows the previous one: (whether the older reading has each entry,
        its index there)."""
        positions = self._new[part]
        end = self._last + int(np.searchsorted(self._old[self._last :], positions[-1], side="right"))
        begin, self._last = self._last, end
        near = self._old[begin:end]
        if not len(near):
            return np.zeros(len(positions), dtype=bool), np.zeros(len(positions), dtype=np.intp)
        index = np.minimum(np.searchsorted(near, positions), len(near) - 1)
        return near[index] == positions, index + begin


def _slots(key: npt.NDArray[np.uint32]) -> tuple[Ints, Ints]:
    """(slots of the victims, slots of the culprits) of entries."""
    both = key.astype(np.int64)
    return (both >> 16) - 1, (both & 0xFFFF) - 1
