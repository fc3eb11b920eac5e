"""The victim x culprit matrix of ``bpf/blame.bpf.h``: read, merged over CPUs, cleared of slots that are given back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from koordlet.probes.loading.mapped import Ints, map_array, sum_by

ENTRY = np.dtype([("key", "u4"), ("reserved", "u4"), ("count", "u8"), ("ns", "u8")])
LOST = np.dtype([("count", "u8"), ("ns", "u8")])


@dataclass(frozen=True, slots=True)
class Blames:
    """Entry j: *victim[j]* waited *wait_ns[j]* because of *culprit[j]*, in *wait_count[j]* pieces. Sorted by victim,
    then culprit; keys as `layout` has them."""

    victim: Ints
    culprit: Ints
    wait_ns: Ints
    wait_count: Ints

    @classmethod
    def none(cls) -> Blames:
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, empty, empty)


class BlameTable:
    """Maps ``matrix`` and ``blame_lost`` of a probe."""

    def __init__(self, maps: Mapping[str, int], cpus: int, entries: int) -> None:
        """*entries* of each CPU."""
        self._matrix = map_array(maps["matrix"], "matrix", ENTRY, cpus * entries)
        self._lost = map_array(maps["blame_lost"], "blame_lost", LOST, cpus)

    def entries(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Victim slot, culprit slot, ns, count. Read it before the tags, so that every slot in it has one."""
        used = self._matrix[self._matrix["key"] != 0]
        key = used["key"].astype(np.int64)
        return (key >> 16) - 1, (key & 0xFFFF) - 1, used["ns"].astype(np.int64), used["count"].astype(np.int64)

    def lost(self) -> tuple[int, int]:
        """Charges that found no place, and the nanoseconds they were worth."""
        return int(self._lost["count"].sum()), int(self._lost["ns"].sum())

    def forget(self, slots: Ints) -> None:
        key = self._matrix["key"].astype(np.int64)
        stale = (key != 0) & (np.isin((key >> 16) - 1, slots) | np.isin((key & 0xFFFF) - 1, slots))
        for name in ("count", "ns", "key"):  # numbers first: an entry is taken as soon as its key is zero
            self._matrix[name][stale] = 0


def merge(entries: tuple[Ints, Ints, Ints, Ints], slot_keys: Ints) -> Blames:
    """Entries of all CPUs by keys; those of a slot that was freed meanwhile (key 0) are left out."""
    victim, culprit = slot_keys[entries[0]], slot_keys[entries[1]]
    known = (victim != 0) & (culprit != 0)
    pairs = np.stack([victim[known], culprit[known]], axis=1)
    unique, group = np.unique(pairs, axis=0, return_inverse=True)
    group = group.ravel()
    ns, count = (sum_by(group, column[known], len(unique)) for column in entries[2:])
    return Blames(unique[:, 0], unique[:, 1], ns, count)
