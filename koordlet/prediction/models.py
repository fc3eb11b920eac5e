"""The models: for each key two histograms, CPU in cores and memory in bytes (spec 02 §8.1, §8.3). No I/O, no clock.

Keys are pod UIDs and the names below. Rows of models that are gone are used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from koordlet.api.priority import CLASSES, NONE
from koordlet.app.histogram import CPU_BUCKETS, MEMORY_BUCKETS, Floats, Histograms, Rows
from koordlet.statesinformer.nodemetric.forecast import Amount

NODE, SYSTEM = "__node__", "__node-sys__"
TRAINED_CLASSES = (*CLASSES, NONE)


def class_key(priority_class: str) -> str:
    """The model of a priority class: `__node-koord-prod__`, and `__node-__` for pods without one."""
    return f"__node-{priority_class}__"


CLASS_KEYS = tuple(class_key(name) for name in TRAINED_CLASSES)
CPU_SHARE, MEMORY_SHARE = 0.95, 0.98
"""The percentiles that stand for a peak."""


class PeakModel(StrEnum):
    """How a peak is computed from what a histogram holds."""

    HISTOGRAM = "histogram"
    """p95 of CPU, p98 of memory: what Koordinator does"""
    NSIGMA = "nsigma"
    """mean plus N standard deviations"""
    MAX = "max"
    """the greater of the two"""


@dataclass(slots=True)
class Stamps:
    """When a model was trained and written, on a clock that never steps; -inf: never written."""

    row: int
    updated: float
    checkpointed: float = float("-inf")


class Models:
    """All models. `peaks` answers in milli-cores and bytes, truncated."""

    def __init__(
        self,
        *,
        cpu_half_life: float = 12 * 3600.0,
        memory_half_life: float = 24 * 3600.0,
        peak: PeakModel = PeakModel.HISTOGRAM,
        sigmas: float = 3.0,
    ) -> None:
        self.cpu = Histograms(CPU_BUCKETS, cpu_half_life)
        self.memory = Histograms(MEMORY_BUCKETS, memory_half_life)
        self.peak, self.sigmas = peak, sigmas
        self.stamps: dict[str, Stamps] = {}
        self._free = list(range(len(self.cpu.total) - 1, -1, -1))

    def __contains__(self, key: str) -> bool:
        return key in self.stamps

    def make(self, key: str, seen: float) -> int:
        """The row of `key`, made empty at first sight; notes that it was trained at `seen`."""
        known = self.stamps.get(key)
        if known is not None:
            known.updated = seen
            return known.row
        if not self._free:
            rows = len(self.cpu.total)
            self.cpu.grow(2 * rows)
            self.memory.grow(2 * rows)
            self._free = list(range(2 * rows - 1, rows - 1, -1))
        row = self._free.pop()
        self.stamps[key] = Stamps(row, seen)
        return row

    def train(self, keys: Sequence[str], cores: Floats, memory: Floats, at: float, seen: float) -> None:
        """One sample for each of `keys`, which must differ: `at` in Unix time, `seen` on the stamps' clock."""
        rows = np.array([self.make(key, seen) for key in keys], dtype=np.intp)
        self.cpu.add(rows, cores, at)
        self.memory.add(rows, memory, at)

    def drop(self, key: str) -> None:
        """Forget a model."""
        row = self.stamps.pop(key).row
        self.cpu.clear(row)
        self.memory.clear(row)
        self._free.append(row)

    def peaks(self, keys: Iterable[str], peak: PeakModel | None = None) -> dict[str, Amount]:
        """The peak of each of `keys` that has learned CPU and memory, by the chosen way of computing it."""
        known = [key for key in keys if key in self.stamps]
        rows = self._rows(known)
        learned = (self.cpu.total[rows] > 0) & (self.memory.total[rows] > 0)
        known, rows = [key for key, yes in zip(known, learned.tolist(), strict=True) if yes], rows[learned]
        cores = self._peaks(self.cpu, rows, CPU_SHARE, peak or self.peak)
        memory = self._peaks(self.memory, rows, MEMORY_SHARE, peak or self.peak)
        return {
            key: Amount(int(c * 1000), int(m)) for key, c, m in zip(known, cores.tolist(), memory.tolist(), strict=True)
        }

    def only_zeros(self, keys: Iterable[str]) -> set[str]:
        """Those of `keys` whose samples all lie in the first bucket, of CPU and of memory."""
        known = [key for key in keys if key in self.stamps]
        rows = self._rows(known)
        zeros = self.cpu.only_zeros(rows) & self.memory.only_zeros(rows)
        return {key for key, zero in zip(known, zeros.tolist(), strict=True) if zero}

    def _rows(self, keys: Sequence[str]) -> Rows:
        return np.array([self.stamps[key].row for key in keys], dtype=np.intp)

    def _peaks(self, histograms: Histograms, rows: Rows, share: float, peak: PeakModel) -> Floats:
        percentile = histograms.percentiles(rows, [share])[:, 0]
        if peak is PeakModel.HISTOGRAM:
            return percentile
        mean, deviation = histograms.moments(rows)
        sigma = mean + self.sigmas * deviation
        return np.maximum(percentile, sigma) if peak is PeakModel.MAX else sigma
