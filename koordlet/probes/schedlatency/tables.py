"""The probe's tables, mapped into this process and read with a handful of numpy calls.

The maps are plain arrays (``BPF_F_MMAPABLE``), so one reading of all cgroups makes no system call. The kernel goes on
writing meanwhile: every number is a whole u64, but a histogram and its sum can be one wait apart.

Whose row is whose: `koordlet.probes.culprits.slots`. Bounds: `layout.Sizes`. Used by
`koordlet.probes.schedlatency.loader`, for the CO-RE and
the bcc programs alike.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from koordlet.probes.culprits.charges import PIECE, Charges, Waits
from koordlet.probes.culprits.slots import Slots
from koordlet.probes.loading.mapped import Ints, map_array, sum_by, sum_pairs
from koordlet.probes.schedlatency import layout
from koordlet.probes.schedlatency.layout import BUCKETS, Sizes
from koordlet.probes.schedlatency.snapshot import Lost, SchedLatencySnapshot

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
        self._numbers = self._stats.view(np.int64).reshape(sizes.cpus, sizes.slots, -1)
        self._matrix = arrays["matrix"].reshape(sizes.cpus, sizes.matrix)
        self._cpus = arrays["cpus"]
        self._order: tuple[Ints, tuple[npt.NDArray[np.intp], Ints, npt.NDArray[np.intp]]] | None = None

    def read(self, matrix: bool = True) -> SchedLatencySnapshot:
        """Everything counted so far, summed over CPUs; without the matrix, by far the largest table, on request."""
        # The matrix before the tags, so that every slot in it has one.
        entries = self._entries() if matrix else None
        slot_keys = self._slots.keys()
        live, keys, group = self._in_order(slot_keys)
        sums, maxima = self._sum(live, group, len(keys))
        ran = sums[:, : 2 * BUCKETS].any(axis=1) | (sums[:, _FIELD["throttled_ns"]] > 0)
        if not ran.all():
            sums, maxima = sums[ran], maxima[ran]
        rows_of_slots = np.full(len(slot_keys), -1, dtype=np.int64)
        rows_of_slots[live] = group
        lost = {name: int(self._cpus[name].sum()) for name in _LOST}
        return SchedLatencySnapshot(
            source=self.source,
            time_ns=time.monotonic_ns(),
            keys=keys[ran],
            wakeup_hist=sums[:, :BUCKETS],
            preempt_hist=sums[:, BUCKETS : 2 * BUCKETS],
            **{name: sums[:, _FIELD[name]] for name in _SUMMED},
            **{name: maxima[:, i] for i, name in enumerate(_MAXIMA)},
            **_merge(entries, keys, rows_of_slots),
            lost=Lost(**lost),
        )

    def _in_order(self, slot_keys: Ints) -> tuple[npt.NDArray[np.intp], Ints, npt.NDArray[np.intp]]:
        """(slots in use in order of their keys, keys each once, number of each slot's key); made anew when one came or
        went."""
        if self._order is None or not np.array_equal(self._order[0], slot_keys):
            live = np.flatnonzero(slot_keys)
            live = live[np.argsort(slot_keys[live])]  # so that there is nothing left to sort
            self._order = slot_keys, (live, *np.unique(slot_keys[live], return_inverse=True))
        return self._order[1]

    def _sum(self, live: npt.NDArray[np.intp], group: npt.NDArray[np.intp], n: int) -> tuple[Ints, Ints]:
        """([n, numbers of a slot] summed over CPUs, [n, `_MAXIMA`])."""
        sums = self._numbers[0][live]
        highest, rows = sums[:, _MAXIMA_AT], np.empty_like(sums)
        for cpu in self._numbers[1:]:
            np.take(cpu, live, axis=0, out=rows, mode="clip")  # as `cpu[live]`, in memory that is there
            sums += rows
            np.maximum(highest, rows[:, _MAXIMA_AT], out=highest)
        if n == len(live):  # a slot each, the usual case
            return sums, highest
        maxima = np.zeros((n, len(_MAXIMA)), dtype=np.int64)
        np.maximum.at(maxima, group, highest)
        return sum_by(group, sums, n), maxima

    def charges(self) -> Charges:
        """The matrix as it stands, to be taken the difference of."""
        matrix = self._matrix.reshape(-1)  # before the tags, as above
        at, key = self._everywhere, matrix["key"].copy()
        if 2 * np.count_nonzero(key) > len(key):
            wait_ns, count = (matrix[name].astype(np.int64) for name in ("wait_ns", "count"))
            free = np.flatnonzero(key == 0)  # taken since, perhaps
            wait_ns[free] = count[free] = 0
        else:
            at = np.flatnonzero(key).astype(np.int32)
            key = key[at]
            wait_ns, count = (matrix[name][at].view(np.int64) for name in ("wait_ns", "count"))
        return Charges(self.source, time.monotonic_ns(), len(matrix), at, key, wait_ns, count, self._slots.keys())

    def waits(self) -> Waits:
        """Everything charged so far, read where it stands when its turn comes."""
        matrix = self._matrix.reshape(-1)
        parts = (matrix[at : at + PIECE] for at in range(0, len(matrix), PIECE))
        return Waits(self._slots.keys(), ((part["key"], part["wait_ns"].astype(np.int64)) for part in parts))

    @cached_property
    def _everywhere(self) -> npt.NDArray[np.int32]:
        return np.arange(self._matrix.size, dtype=np.int32)

    def _entries(self) -> _Entries:
        matrix = self._matrix.reshape(-1)
        at = np.flatnonzero(matrix["key"]).astype(np.int32)
        wait_ns, count = (matrix[name][at].view(np.int64) for name in ("wait_ns", "count"))
        return at, matrix["key"][at], wait_ns, count

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


_Entries = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint32], Ints, Ints]
"""Place, key, ns and waits of the matrix' entries in use."""
_SUMMED = ("wakeup_sum_ns", "preempt_sum_ns", "throttled_ns", "throttled_count")
_MAXIMA = ("wakeup_max_ns", "preempt_max_ns")
_FIELD = {name: field[1] // 8 for name, field in (layout.SLOT_STATS.fields or {}).items()}
_MAXIMA_AT = [_FIELD[name] for name in _MAXIMA]
_LOST = ("matrix_lost_count", "matrix_lost_ns", "slot_lost", "unstamped", "backwards", "forgotten", "missed")


def _merge(entries: _Entries | None, keys: Ints, rows_of_slots: Ints) -> dict[str, Ints]:
    """Entries of all CPUs by (victim, culprit); a pair is one number while it is sorted."""
    none = np.zeros(0, dtype=np.int64)
    if entries is None:
        return dict.fromkeys(("victim", "culprit", "wait_ns", "wait_count"), none)
    _, key, wait_ns, count = entries
    slots, n = key.astype(np.int64), len(keys)
    victim, culprit = rows_of_slots[(slots >> 16) - 1], rows_of_slots[(slots & 0xFFFF) - 1]
    code = victim * n + culprit
    known = (victim >= 0) & (culprit >= 0)  # not those of a slot that was freed between the two readings
    if not known.all():
        code, wait_ns, count = code[known], wait_ns[known], count[known]
    pairs, wait_ns, wait_count = sum_pairs(code, wait_ns, count, n * n)
    return {
        "victim": keys[pairs // max(n, 1)],
        "culprit": keys[pairs % max(n, 1)],
        "wait_ns": wait_ns,
        "wait_count": wait_count,
    }
