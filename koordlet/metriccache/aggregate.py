"""Reduces the points of a window to one number (spec 02 §4.2). Pure; for one row or for all rows together.

Percentiles are the *lower* nearest rank: of n sorted points the one at index max(floor(n*p) - 1, 0). So p90 of nine
points is the eighth, and only p = 1 returns the maximum. `NaN` means "no sample".
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


class AggregationError(LookupError):
    """There is no sample in the window."""


class Aggregation(StrEnum):
    """Wire values; the mixed case is Koordinator's."""

    AVG = "avg"
    P50 = "p50"
    P90 = "P90"
    P95 = "P95"
    P99 = "p99"
    LAST = "last"
    COUNT = "count"


PER_MILLE = {Aggregation.P50: 500, Aggregation.P90: 900, Aggregation.P95: 950, Aggregation.P99: 990}
"""Integers, because floor(n*p) with binary fractions is off by one for some n."""


def aggregate_rows(rows: Floats, kinds: Iterable[Aggregation]) -> dict[Aggregation, Floats]:
    """Each reduction of every row: rows float[rows, points] in order of time, result float64[rows].

    A row without samples gives NaN, and 0 for `count`.
    """
    requested = list(kinds)
    present = ~np.isnan(rows)
    count = present.sum(axis=1)
    reduced: dict[Aggregation, Floats] = {}
    ordered = np.sort(rows, axis=1) if any(kind in PER_MILLE for kind in requested) else rows  # NaN sorts last
    index = np.arange(rows.shape[0])
    empty = count == 0
    for kind in requested:
        if kind is Aggregation.COUNT:
            reduced[kind] = count.astype(np.float64)
        elif rows.shape[1] == 0:
            reduced[kind] = np.full(rows.shape[0], np.nan)
        elif kind is Aggregation.LAST:
            column = rows.shape[1] - 1 - np.argmax(present[:, ::-1], axis=1)
            reduced[kind] = np.where(empty, np.nan, rows[index, column]).astype(np.float64)
        elif kind in PER_MILLE:
            rank = np.maximum(count * PER_MILLE[kind] // 1000 - 1, 0)
            reduced[kind] = np.where(empty, np.nan, ordered[index, rank]).astype(np.float64)
        else:
            total = np.where(present, rows, 0).sum(axis=1, dtype=np.float64)
            reduced[kind] = np.divide(total, count, out=np.full(len(count), np.nan), where=~empty)
    return reduced
