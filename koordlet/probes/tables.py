"""The probe's tables, mapped into this process and read with a handful of numpy calls.

The maps are plain arrays (``BPF_F_MMAPABLE``), so one reading of all cgroups makes no system call. The kernel goes on
writing meanwhile: every number is a whole u64, but a histogram and its sum can be one wait apart.

Whose row is whose: `koordlet.probes.slots`. Bounds: `layout.Sizes`. Used by `koordlet.probes.loader`, for the CO-RE and
the bcc programs alike.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from koordlet.probes import layout
from koordlet.probes.layout import Sizes
from koordlet.probes.mapped import Ints, map_array, sum_by
from koordlet.probes.slots import Slots
from koordlet.probes.snapshot import Lost, SchedLatencySnapshot

_DTYPES = {
    "tags": layout.TAG,
    "stats": layout.SLOT_STATS,
    "matrix": layout.MATRIX_ENTRY,
    "cpus": layout.CPU_STATE,
}
READ_MAPS = tuple(_DTYPES)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full the tables are: slots in use, and the fullest CPU's matrix entries."""

    cgroups: int
    cgroups_max: int
    matrix: int
    matrix_max: int


class Tables:
    """Owns the mappings, not the descriptors."""

    def __init__(self, fds: Mapping[str, int], sizes: Sizes, source: str) -> None:
        self.sizes = sizes
        self.source = source
        entries = sizes.entries()
        arrays = {name: map_array(fds[name], name, dtype, entries[name]) for name, dtype in _DTYPES.items()}
        self._slots = Slots(arrays["tags"])
        self._stats = arrays["stats"].reshape(sizes.cpus, sizes.slots)
        self._matrix = arrays["matrix"].reshape(sizes.cpus, sizes.matrix)
        self._cpus = arrays["cpus"]

    def read(self, matrix: bool = True) -> SchedLatencySnapshot:
        """Everything counted so far, summed over CPUs; without the matrix, by far the largest table, on request."""
        # The matrix before the tags, so that every slot in it has one.
        entries = self._matrix[self._matrix["key"] != 0] if matrix else self._matrix[:0, 0]
        slot_keys = self._slots.keys()
        live = np.flatnonzero(slot_keys)
        stats = self._stats[:, live]
        keys, group = np.unique(slot_keys[live], return_inverse=True)
        rows = {name: sum_by(group, stats[name].sum(axis=0), len(keys)) for name in _SUMMED}
        maxima = {}
        for name in ("wakeup_max_ns", "preempt_max_ns"):
            maxima[name] = np.zeros(len(keys), dtype=np.int64)
            np.maximum.at(maxima[name], group, stats[name].max(axis=0).astype(np.int64))
        ran = (rows["wakeup_hist"].sum(axis=1) + rows["preempt_hist"].sum(axis=1) + rows["throttled_ns"]) > 0
        rows_of_slots = np.full(len(slot_keys), -1, dtype=np.int64)
        rows_of_slots[live] = group
        wait = _read_matrix(entries, keys, rows_of_slots)
        lost = {name: int(self._cpus[name].sum()) for name in _LOST}
        return SchedLatencySnapshot(
            source=self.source,
            time_ns=time.monotonic_ns(),
            keys=keys[ran],
            **{name: column[ran] for name, column in {**rows, **maxima}.items()},
            **wait,
            lost=Lost(**lost),
        )

    def occupancy(self) -> Occupancy:
        used = (self._matrix["key"] != 0).sum(axis=1).max()
        return Occupancy(self._slots.used(), self.sizes.cgroups, int(used), self.sizes.matrix)

    def reclaim(self, live: Collection[int]) -> int:
        """Free the slots of dead cgroups (`Slots.dead`); returns how many."""
        slots = self._slots.dead(live)
        if not len(slots):
            return 0
        key = self._matrix["key"].astype(np.int64)
        stale = np.isin((key >> 16) - 1, slots) | np.isin((key & 0xFFFF) - 1, slots)
        # Numbers before names: the kernel may take an entry as soon as its name is zero.
        for name in ("count", "wait_ns", "key"):
            self._matrix[name][stale & (key != 0)] = 0
        self._stats[:, slots] = 0
        self._slots.free(slots)
        return len(slots)

    def forget_runners(self) -> None:
        """Empty the rings of recent slices; before programs are attached to tables that an earlier run filled, since
        nobody noted who ran in between."""
        self._cpus["ring"]["start_ns"] = 0
        self._cpus["pid"] = 0


_SUMMED = ("wakeup_hist", "preempt_hist", "wakeup_sum_ns", "preempt_sum_ns", "throttled_ns", "throttled_count")
_LOST = ("matrix_lost_count", "matrix_lost_ns", "slot_lost", "unstamped", "backwards", "forgotten", "missed")


def _read_matrix(entries: npt.NDArray[np.void], keys: Ints, rows_of_slots: Ints) -> dict[str, Ints]:
    """Entries of all CPUs by (victim, culprit); a pair is one number while it is sorted."""
    slots = entries["key"].astype(np.int64)
    victim, culprit = rows_of_slots[(slots >> 16) - 1], rows_of_slots[(slots & 0xFFFF) - 1]
    known = (victim >= 0) & (culprit >= 0)  # not those of a slot that was freed between the two readings
    pairs, group = np.unique(victim[known] * len(keys) + culprit[known], return_inverse=True)
    return {
        "victim": keys[pairs // max(len(keys), 1)],
        "culprit": keys[pairs % max(len(keys), 1)],
        "wait_ns": sum_by(group, entries["wait_ns"][known], len(pairs)),
        "wait_count": sum_by(group, entries["count"][known], len(pairs)),
    }
