"""What is usual for each container: decayed histograms of its symptoms while nothing was wrong. Pure, vectorised.

Buckets are logarithmic (each a quarter higher than the one before), so a quantile is within 25 % of the true one from
1e-4 up to 100. A sample counts with the seconds it stands for; old ones lose half of their weight every `half_life`
seconds *of learning*, so that what was learnt does not fade while a container is interfered and nothing is learnt.
Memory: rows x resources x 64 x 4 bytes (300 KB for 220 containers).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from koordlet.interference.model import Floats

LOWEST, RATIO, BUCKETS = 1e-4, 1.25, 64
_LOG_RATIO = float(np.log(RATIO))
EDGES: Floats = np.concatenate([[0.0], LOWEST * RATIO ** np.arange(BUCKETS)])
"""Bucket b holds EDGES[b] <= value < EDGES[b + 1]; the last one everything above too."""


def bucket_of(values: Floats) -> NDArray[np.intp]:
    """Bucket numbers; values must not be NaN."""
    with np.errstate(divide="ignore"):
        found = np.floor(np.log(np.maximum(values, 0.0) / LOWEST) / _LOG_RATIO + 1e-9) + 1
    buckets: NDArray[np.intp] = np.clip(found, 0, BUCKETS - 1).astype(np.intp)
    return buckets


class Baseline:
    """Histograms of `rows` x `columns` symptoms."""

    def __init__(self, rows: int, columns: int) -> None:
        self._weights = np.zeros((rows, columns, BUCKETS), dtype=np.float32)

    def grow(self, rows: int) -> None:
        """Make room for `rows` rows in all."""
        old = self._weights
        self._weights = np.zeros((rows, *old.shape[1:]), dtype=np.float32)
        self._weights[: len(old)] = old

    def forget(self, rows: NDArray[np.intp]) -> None:
        """These rows start anew."""
        self._weights[rows] = 0

    def learn(
        self, rows: NDArray[np.intp], values: Floats, mask: NDArray[np.bool_], dt: float, half_life: float
    ) -> None:
        """Take `values[len(rows), columns]` where `mask` says so, for `dt` seconds."""
        which, column = np.nonzero(mask)
        if not len(which):
            return
        row = rows[which]
        self._weights[row, column] *= np.float32(0.5 ** (dt / half_life))
        self._weights[row, column, bucket_of(values[which, column])] += np.float32(dt)

    def learnt(self, rows: NDArray[np.intp]) -> Floats:
        """Seconds that the histograms stand for, [len(rows), columns]."""
        total: Floats = self._weights[rows].sum(axis=2, dtype=np.float64)
        return total

    def quantile(self, rows: NDArray[np.intp], q: float) -> Floats:
        """[len(rows), columns]; NaN where nothing was learnt. Interpolated inside the bucket."""
        weights = self._weights[rows]
        cumulative = weights.cumsum(axis=2)
        total = cumulative[..., -1]
        rank = (q * total)[..., None]
        at = np.argmax((cumulative >= rank) & (weights > 0), axis=2)[..., None]
        inside = np.take_along_axis(weights, at, axis=2)[..., 0]
        below = np.take_along_axis(cumulative, at, axis=2)[..., 0] - inside
        at = at[..., 0]
        with np.errstate(invalid="ignore", divide="ignore"):
            part = np.clip((rank[..., 0] - below) / inside, 0.0, 1.0)
        value = EDGES[at] + (EDGES[at + 1] - EDGES[at]) * part
        return np.where(total > 0, value, np.nan)
