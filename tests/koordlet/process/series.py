"""Samples from a snapshot of the metric cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Series:
    """What a snapshot of the metric cache holds."""

    at: float
    samples: dict[tuple[str, ...], tuple[np.ndarray, np.ndarray]]
    """(kind, *labels) -> times and values"""

    @classmethod
    def read(cls, path: Path) -> Series:
        with np.load(path) as stored:
            header = json.loads(stored["header"].tobytes())
            samples = {}
            for kind, keys in header["series"].items():
                times, values = stored[f"{kind}.times"], stored[f"{kind}.values"]
                for row, key in enumerate(keys):
                    known = ~np.isnan(values[row])
                    samples[(kind, *key)] = (times[known], values[row][known].astype(float))
        return cls(header["at"], samples)

    def mean(self, kind: str, *labels: str, start: float, end: float) -> tuple[float, float, float]:
        """(begin, end, mean) of the rates whose intervals lie within start..end: a sample at t_i is the mean since
        t_(i-1)."""
        times, values = self.samples[(kind, *labels)]
        inside = np.flatnonzero((times >= start) & (times <= end))
        assert len(inside) >= 3, f"{kind}{labels}: {len(inside)} samples between {start:.1f} and {end:.1f}"
        times, values = times[inside], values[inside]
        spans = np.diff(times)
        return float(times[0]), float(times[-1]), float((values[1:] * spans).sum() / spans.sum())

    def average(self, kind: str, *labels: str, start: float, end: float) -> float:
        """Plain mean of a level."""
        times, values = self.samples[(kind, *labels)]
        return float(values[(times >= start) & (times <= end)].mean())
