"""The tables of sched_latency, mapped into this process and read with a few numpy calls.

The maps are plain arrays (``BPF_F_MMAPABLE``), so reading all cgroups makes no system call. The kernel keeps writing
meanwhile: every number is read whole, but a histogram and its sum can be one wait apart. Bounds: `Sizes`. Used for the
CO-RE program and the bcc program alike.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from koordlet.probes.columns import Ints, sum_by
from koordlet.probes.culprits.matrix import C, Naming, SubjectTable
from koordlet.probes.culprits.reader import MatrixReader, MatrixReading
from koordlet.probes.culprits.slots import TAG, SlotTable
from koordlet.probes.layouts import BUCKETS, CPU_STATE, SLOT_STATS
from koordlet.probes.loading.mapped import map_array
from koordlet.probes.schedlatency.sizes import Sizes
from koordlet.probes.schedlatency.snapshot import SchedLatencyLosses, SchedLatencySnapshot, WaitTotals

READ_MAPS = ("tags", "stats", "matrix", "cpus")
_SUMMED = ("wakeup_sum_ns", "preempt_sum_ns", "throttled_ns", "throttled_count")
_MAXIMA = ("wakeup_max_ns", "preempt_max_ns")
_COLUMN = {name: field[1] // 8 for name, field in (SLOT_STATS.fields or {}).items()}
"""Member of `SLOT_STATS` -> its first column when a row is seen as u64 numbers."""
_MAXIMA_COLUMNS = [_COLUMN[name] for name in _MAXIMA]
_WAIT_COLUMNS = [_COLUMN[name] for name in ("wakeup_sum_ns", "preempt_sum_ns", "throttled_ns")]
_LOST = ("slot_lost", "unstamped", "backwards", "forgotten", "missed")


@dataclass(frozen=True, slots=True)
class _SlotOrder:
    """The slots in use, grouped by key."""

    slot_keys: Ints
    """The keys that this was computed from."""
    slots: npt.NDArray[np.intp]
    """Slots in use, by ascending key."""
    keys: Ints
    """Each key once, ascending."""
    group: npt.NDArray[np.intp]
    """For each of `slots` the index of its key in `keys`."""


class Tables:
    """Owns the mappings, not the descriptors."""

    def __init__(self, fds: Mapping[str, int], sizes: Sizes, source: str) -> None:
        self.source = source
        entries = sizes.entries()

        def mapped(name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
            return map_array(fds[name], name, dtype, entries[name])

        self._slots = SlotTable(mapped("tags", TAG))
        self._stats = mapped("stats", SLOT_STATS).reshape(sizes.rows, sizes.slots)
        self._numbers = self._stats.view(np.int64).reshape(sizes.rows, sizes.slots, -1)
        self._cpus = mapped("cpus", CPU_STATE)
        self._matrix = MatrixReader(fds, sizes.cpus, sizes.matrix, sizes.shared)
        self._order: _SlotOrder | None = None

    def read(self) -> SchedLatencySnapshot:
        """Everything counted so far, summed over CPUs."""
        order = self._slot_order()
        sums, maxima = self._sum(order)
        ran = sums[:, : 2 * BUCKETS].any(axis=1) | (sums[:, _COLUMN["throttled_ns"]] > 0)
        if not ran.all():
            sums, maxima = sums[ran], maxima[ran]
        matrix_lost = self._cpus["matrix_lost"]
        return SchedLatencySnapshot(
            source=self.source,
            time_ns=time.monotonic_ns(),
            keys=order.keys[ran],
            wakeup_hist=sums[:, :BUCKETS],
            preempt_hist=sums[:, BUCKETS : 2 * BUCKETS],
            **{name: sums[:, _COLUMN[name]] for name in _SUMMED},
            **{name: maxima[:, index] for index, name in enumerate(_MAXIMA)},
            lost=SchedLatencyLosses(
                matrix_lost_count=int(matrix_lost["count"].sum()),
                matrix_lost_ns=int(matrix_lost["ns"].sum()),
                **{name: int(self._cpus[name].sum()) for name in _LOST},
            ),
        )

    def waits(self) -> WaitTotals:
        """The time waited so far, summed over CPUs: three of a slot's numbers."""
        order = self._slot_order()
        sums = np.zeros((len(order.slots), len(_WAIT_COLUMNS)), dtype=np.int64)
        for row in self._numbers:
            sums += row[order.slots[:, None], _WAIT_COLUMNS]
        sums = sum_by(order.group, sums, len(order.keys))
        return WaitTotals(time.monotonic_ns(), order.keys, sums[:, 0] + sums[:, 1], sums[:, 2])

    def _slot_order(self) -> _SlotOrder:
        """Computed again only when a slot was claimed or freed."""
        slot_keys = self._slots.keys()
        if self._order is None or not np.array_equal(self._order.slot_keys, slot_keys):
            slots = np.flatnonzero(slot_keys)
            slots = slots[np.argsort(slot_keys[slots])]  # `read` then has nothing to sort
            self._order = _SlotOrder(slot_keys, slots, *np.unique(slot_keys[slots], return_inverse=True))
        return self._order

    def _sum(self, order: _SlotOrder) -> tuple[Ints, Ints]:
        """([keys, numbers of a row] summed over CPUs, [keys, `_MAXIMA`])."""
        slots = order.slots
        sums = self._numbers[0][slots]
        highest = sums[:, _MAXIMA_COLUMNS]
        rows = np.empty_like(sums)
        for cpu in self._numbers[1:]:
            np.take(cpu, slots, axis=0, out=rows, mode="clip")  # as `cpu[slots]`, without allocating
            sums += rows
            np.maximum(highest, rows[:, _MAXIMA_COLUMNS], out=highest)
        if len(order.keys) == len(slots):  # one slot per key, the usual case
            return sums, highest
        maxima = np.zeros((len(order.keys), len(_MAXIMA)), dtype=np.int64)
        np.maximum.at(maxima, order.group, highest)
        return sum_by(order.group, sums, len(order.keys)), maxima

    def read_matrix(self) -> MatrixReading:
        """The culprit matrix at this moment."""
        return self._matrix.read(self.source, self._slots.keys)

    def matrix_by_subject(self, naming: Naming[C]) -> SubjectTable[C]:
        """Everything charged so far by subject and culprit, without a copy of the matrix."""
        return self._matrix.by_subject(self._slots.keys(), naming)

    def reclaim(self, live: Collection[int]) -> int:
        """Free the slots of dead cgroups (`SlotTable.dead`), and pairs without waits where they take up the room
        (`MatrixReader.drain`); returns the number of slots."""
        slots = self._slots.dead(live)
        if len(slots):
            self._matrix.forget(slots)
            self._stats[:, slots] = 0
            self._slots.free(slots)
        self._matrix.drain()
        return len(slots)

    def forget_runners(self) -> None:
        """Empty the rings of recent slices. Call it before programs are attached to tables of an earlier run: the
        runners in between were not recorded."""
        self._cpus["ring"]["start_ns"] = 0
        self._cpus["pid"] = 0
