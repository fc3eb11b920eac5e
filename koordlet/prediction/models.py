"""The models: two histograms per key, CPU in cores and memory in bytes (spec 02 §8.1, §8.3). No I/O, no clock.

Keys are pod UIDs and the names below. Rows of removed models are reused.
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
CPU_PEAK_QUANTILE, MEMORY_PEAK_QUANTILE = 0.95, 0.98
"""Quantiles of the histograms that count as the peak."""


class PeakMethod(StrEnum):
    """How a peak is computed from a histogram."""

    HISTOGRAM = "histogram"
    """p95 of CPU, p98 of memory, as in Koordinator"""
    NSIGMA = "nsigma"
    """mean plus N standard deviations"""
    MAX = "max"
    """the larger of the two"""


@dataclass(slots=True)
class Stamps:
    """Times of a model's last training and checkpoint, on a clock that never steps; -inf: never written."""

    row: int
    updated: float
    checkpointed: float = float("-inf")


class PredictionModels:
    """All models. `peaks` are in milli-cores and bytes, truncated."""

    def __init__(
        self,
        *,
        cpu_half_life: float = 12 * 3600.0,
        memory_half_life: float = 24 * 3600.0,
        peak: PeakMethod = PeakMethod.HISTOGRAM,
        sigmas: float = 3.0,
    ) -> None:
        self.cpu = Histograms(CPU_BUCKETS, cpu_half_life)
        self.memory = Histograms(MEMORY_BUCKETS, memory_half_life)
        self.peak = peak
        self.sigmas = sigmas
        self.stamps: dict[str, Stamps] = {}
        self._free = list(range(len(self.cpu.total) - 1, -1, -1))

    def __contains__(self, key: str) -> bool:
        return key in self.stamps

    def make(self, key: str, seen: float) -> int:
        """The row of `key`, created empty if it is new; records that it was trained at `seen`."""
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
        """Add one sample for each of the distinct `keys`: `at` in Unix time, `seen` on the stamps' clock."""
        rows = np.array([self.make(key, seen) for key in keys], dtype=np.intp)
        self.cpu.add(rows, cores, at)
        self.memory.add(rows, memory, at)

    def drop(self, key: str) -> None:
        """Remove a model."""
        row = self.stamps.pop(key).row
        self.cpu.clear(row)
        self.memory.clear(row)
        self._free.append(row)

    def peaks(self, keys: Iterable[str], peak: PeakMethod | None = None) -> dict[str, Amount]:
        """The peak of each of `keys` that has samples of CPU and memory, by the given or configured method."""
        known = [key for key in keys if key in self.stamps]
        rows = self._rows(known)
        learned = (self.cpu.total[rows] > 0) & (self.memory.total[rows] > 0)
        known, rows = (
            [key for key, has_samples in zip(known, learned.tolist(), strict=True) if has_samples],
            rows[learned],
        )
        cores = self._peaks(self.cpu, rows, CPU_PEAK_QUANTILE, peak or self.peak)
        memory = self._peaks(self.memory, rows, MEMORY_PEAK_QUANTILE, peak or self.peak)
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

    def _peaks(self, histograms: Histograms, rows: Rows, share: float, peak: PeakMethod) -> Floats:
        percentile = histograms.percentiles(rows, [share])[:, 0]
        if peak is PeakMethod.HISTOGRAM:
            return percentile
        mean, deviation = histograms.moments(rows)
        sigma = mean + self.sigmas * deviation
        return np.maximum(percentile, sigma) if peak is PeakMethod.MAX else sigma
