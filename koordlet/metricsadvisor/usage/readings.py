"""The raw values of one tick, before figures are derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from koordlet.statesinformer.pods.model import Workloads
from koordlet.system.cgroup.batch import CgroupTable
from koordlet.system.proc.procfs import CpuTicks, MemInfo, NumaMemInfo

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BestEffortLimits:
    """The limits of BestEffort as a whole: CPUs in the smallest cpuset below it, and its CFS quota."""

    cpus: int
    quota_us: int
    """-1 = no quota"""
    period_us: int


@dataclass(frozen=True, slots=True)
class Readings:
    """Raw values of one instant; row i of `table` belongs to `workloads.subjects[i]`."""

    at: float
    """Seconds of CLOCK_BOOTTIME."""
    workloads: Workloads
    table: CgroupTable
    ticks: CpuTicks | None = None
    jiffy_ns: int = 10_000_000
    memory: MemInfo | None = None
    numa: Mapping[int, NumaMemInfo] = field(default_factory=dict)
    pods_numa: Mapping[int, float] = field(default_factory=dict)
    """Bytes of all pods without page cache, by NUMA node."""
    best_effort: BestEffortLimits | None = None

    def column(self, name: str) -> Floats:
        """float64[subjects]; all NaN if the tick did not read it."""
        column = self.table.columns.get(name)
        return np.full(len(self.table.dirs), np.nan) if column is None else column


def identity(readings: Readings) -> dict[tuple[str, int], int]:
    """(subject key, cgroup id) -> row."""
    ids = readings.table.cgroup_id.tolist()
    return {(subject.key, ids[row]): row for row, subject in enumerate(readings.workloads.subjects)}


class Pairing:
    """Matches the rows of two readings that are the same cgroup, and computes their differences."""

    def __init__(self, old: Readings, new: Readings) -> None:
        self.seconds = new.at - old.at
        self._old = old
        self._new = new
        same_order = old.workloads.subjects is new.workloads.subjects
        if same_order and np.array_equal(old.table.cgroup_id, new.table.cgroup_id):
            self._rows: NDArray[np.intp] | None = None
            self._usable = ~(new.table.gone | old.table.gone)
        else:
            before = identity(old)
            rows = [before.get(key, -1) for key in identity(new)]
            self._rows = np.array(rows, dtype=np.intp)
            self._usable = (self._rows >= 0) & ~new.table.gone

    def delta(self, column: str) -> Floats:
        """new - old, float64[subjects of new]; NaN without two readings, and for a counter that went back."""
        new, old = self._new.column(column), self._old.column(column)
        if self._rows is not None:
            old = np.where(self._rows >= 0, old[self._rows] if len(old) else np.nan, np.nan)
        change = np.where(self._usable, new - old, np.nan)
        return np.where(change >= 0, change, np.nan)

    def rate(self, column: str) -> Floats:
        """`delta` per second; NaN if no time passed."""
        if self.seconds <= 0:
            return np.full(len(self._new.table.dirs), np.nan)
        return self.delta(column) / self.seconds
