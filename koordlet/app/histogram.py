"""Decaying histograms with exponential buckets, each a row of a matrix (spec 02 §8.3). Pure.

koordlet's predictions model the peaks of a node and its pods with them, the manager's recommender those of workloads.

A sample of weight w at time t is added as w * 2^((t - reference) / half-life): new samples get a larger weight, instead
of reducing all old weights. Before the numbers exceed a float64, the reference is advanced and all weights are scaled
down. Times are Unix seconds; the reference is initially the year 1 and later year 1 + a multiple of the half-life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from koordlet.api.crs.analysis import HistogramCheckpoint
from koordlet.api.encoding.wire import Time

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

YEAR_ONE = -62_135_596_800.0
"""0001-01-01T00:00:00Z in Unix seconds."""
EPSILON = 1e-4
"""A bucket with a smaller weight counts as empty."""
MAX_HALF_LIVES = 100
"""The reference is advanced when a sample is more half-lives after it."""
MAX_CHECKPOINT_WEIGHT = 10_000
"""Weights of a checkpoint are scaled so that this is the greatest."""


class CheckpointError(ValueError):
    """An invalid checkpoint; the message names the cause."""


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Lower bounds of buckets: bucket b holds starts[b] <= v < starts[b + 1], the last one all larger values."""

    starts: Floats

    @classmethod
    def exponential(cls, *, maximum: float, first: float, ratio: float) -> Self:
        """Each bucket is `ratio` times as wide as the previous; the last one starts at `maximum` or above."""
        count = ceil(log(maximum * (ratio - 1) / first + 1, ratio)) + 1
        return cls(np.array([first * (ratio**b - 1) / (ratio - 1) for b in range(count)]))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> Floats:
        """Upper bounds, which are the values of percentiles; for the last bucket, which has none, its start."""
        return np.append(self.starts[1:], self.starts[-1])

    @property
    def centres(self) -> Floats:
        """The middle of each bucket."""
        return (self.starts + self.ends) / 2

    def find(self, values: Floats) -> Rows:
        """The bucket of each value; negative values are in the first."""
        buckets: Rows = np.clip(np.searchsorted(self.starts, values, side="right") - 1, 0, None)
        return buckets


CPU_BUCKETS = Buckets.exponential(maximum=1024, first=0.025, ratio=1.05)
"""158 buckets, cores."""
MEMORY_BUCKETS = Buckets.exponential(maximum=2**41, first=5 * 2**20, ratio=1.05)
"""205 buckets, bytes."""


class Histograms:
    """`weights` float64[rows, buckets], `total` and `reference` float64[rows]; a row is one histogram."""

    def __init__(self, buckets: Buckets, half_life: float, rows: int = 16) -> None:
        if half_life <= 0:
            raise ValueError(f"the half-life must be positive, not {half_life} s")
        self.buckets = buckets
        self.half_life = half_life
        self.weights = np.zeros((rows, len(buckets)))
        self.total = np.zeros(rows)
        self.reference = np.full(rows, YEAR_ONE)
        self._ends = buckets.ends

    def grow(self, rows: int) -> None:
        """Extend to at least this many rows; new rows are empty."""
        more = rows - len(self.total)
        if more > 0:
            self.weights = np.vstack([self.weights, np.zeros((more, len(self.buckets)))])
            self.total = np.append(self.total, np.zeros(more))
            self.reference = np.append(self.reference, np.full(more, YEAR_ONE))

    def clear(self, row: int) -> None:
        """Empty one row."""
        self.weights[row] = 0.0
        self.total[row] = 0.0
        self.reference[row] = YEAR_ONE

    def add(self, rows: Rows, values: Floats, at: float, weight: float = 1.0) -> None:
        """Add one sample to each of `rows`, which must be distinct, all at the same time."""
        self._advance(rows, at)
        scaled = weight * np.exp2((at - self.reference[rows]) / self.half_life)
        self.weights[rows, self.buckets.find(values)] += scaled
        self.total[rows] += scaled

    def add_all(self, row: int, values: Floats, at: Floats) -> None:
        """Add any number of samples of weight 1 to one row, each with its own time."""
        if len(values):
            self._advance(np.array([row]), float(at.max()))
            scaled = np.exp2((at - self.reference[row]) / self.half_life)
            np.add.at(self.weights[row], self.buckets.find(values), scaled)
            self.total[row] += scaled.sum()

    def percentiles(self, rows: Rows, shares: Sequence[float]) -> Floats:
        """float64[rows, shares]: the upper bound of the bucket in which each share (0..1) of the weight is reached;
        0 for an empty histogram. Buckets before the first and after the last non-empty bucket are ignored."""
        weights = self.weights[rows]
        filled = weights >= EPSILON
        last = len(self.buckets) - 1
        low = filled.argmax(axis=1)
        high = last - filled[:, ::-1].argmax(axis=1)
        reached = np.cumsum(np.where(np.arange(last + 1) < low[:, np.newaxis], 0.0, weights), axis=1)
        thresholds = np.outer(self.total[rows], shares)
        bucket = np.stack([(reached < column[:, np.newaxis]).sum(axis=1) for column in thresholds.T], axis=1)
        bucket = np.clip(bucket, low[:, np.newaxis], high[:, np.newaxis])
        values: Floats = np.where(_any(filled)[:, np.newaxis], self._ends[bucket], 0.0)
        return values

    def moments(self, rows: Rows) -> tuple[Floats, Floats]:
        """Mean and standard deviation with each bucket represented by its centre; 0 for an empty histogram."""
        weights = self.weights[rows]
        centres = self.buckets.centres
        total = weights.sum(axis=1)
        total = np.where(total < EPSILON, np.inf, total)
        mean = weights @ centres / total
        variance = weights @ np.square(centres) / total - np.square(mean)
        return mean, np.sqrt(np.maximum(variance, 0.0))

    def only_zeros(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether all samples are in the first bucket."""
        return ~_any(self.weights[rows, 1:] >= EPSILON)

    def _advance(self, rows: Rows, at: float) -> None:
        late = rows[at > self.reference[rows] + MAX_HALF_LIVES * self.half_life]
        if len(late):
            steps = np.floor((at - YEAR_ONE) / self.half_life + 0.5)
            self._move(late, np.full(len(late), YEAR_ONE + steps * self.half_life))

    def _move(self, rows: Rows, reference: Floats) -> None:
        factor = _power(self.reference[rows] - reference, self.half_life)
        self.weights[rows] *= factor[:, np.newaxis]
        self.total[rows] *= factor
        self.reference[rows] = reference


def pack(histograms: Histograms, row: int) -> HistogramCheckpoint:
    """A row as a checkpoint: weights in ten-thousandths of the greatest, rounded half up."""
    weights = histograms.weights[row]
    greatest = float(weights.max())
    scaled = weights * MAX_CHECKPOINT_WEIGHT / greatest if greatest > 0 else weights
    shares = np.floor(scaled + 0.5).astype(int)
    reference = float(histograms.reference[row])
    return HistogramCheckpoint(
        reference_timestamp=None if reference == YEAR_ONE else Time.from_unix(reference),
        bucket_weights={str(bucket): int(shares[bucket]) for bucket in np.flatnonzero(shares)},
        total_weight=float(histograms.total[row]),
    )


def unpack(stored: HistogramCheckpoint | None, histograms: Histograms, row: int) -> None:
    """Fill an empty row. Raises CheckpointError for an invalid histogram and leaves the row empty."""
    if stored is None:
        raise CheckpointError("the histogram is missing")
    if not 0 <= stored.total_weight < float("inf"):
        raise CheckpointError(f"totalWeight is {stored.total_weight}")
    weights = np.zeros(len(histograms.buckets))
    for name, share in stored.bucket_weights.items():
        bucket = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1
        if not 0 <= bucket < len(weights) or share < 0:
            raise CheckpointError(f"bucketWeights[{name}] is {share}; there are {len(weights)} buckets")
        weights[bucket] += share
    total = weights.sum()
    if total > 0:
        histograms.weights[row] = weights * (stored.total_weight / total)
        histograms.total[row] = stored.total_weight
        reference = stored.reference_timestamp
        histograms.reference[row] = YEAR_ONE if reference is None else reference.unix


def _power(seconds: Any, half_life: float) -> Any:
    """2 to the power of the number of half-lives, rounded."""
    return np.exp2(np.round(seconds / half_life))


def _any(cells: Any) -> NDArray[np.bool_]:
    """Whether any cell of each row is true."""
    any_cell: NDArray[np.bool_] = cells.any(axis=1)
    return any_cell
