"""Thresholds of a pool: completed by resource (spec 07 §6.2), and as amounts per node (spec 07 §6.4). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from control.descheduler.framework.fit import Amounts
from control.descheduler.plugins.lownodeload.args import NodePool, Percentages

ALWAYS: Final = "memory"
"""A resource that takes part without thresholds, too."""


@dataclass(frozen=True)
class PoolThresholds:
    """Percentages by resource; all four maps have the same resources."""

    resources: tuple[str, ...]
    low: Percentages
    high: Percentages
    prod_low: Percentages
    prod_high: Percentages


def completed(pool: NodePool) -> PoolThresholds:
    """A resource without a low threshold has no effect, also if it has a high one: both become 100 percent, or a
    deviation of 0. A missing high threshold alone is completed the same way."""
    neutral = 0.0 if pool.deviation else 100.0
    names = tuple(sorted({ALWAYS, *pool.low, *pool.high, *pool.prod_low, *pool.prod_high}))

    def pair(low: Percentages, high: Percentages) -> tuple[Percentages, Percentages]:
        return (
            {name: low.get(name, neutral) for name in names},
            {name: high.get(name, neutral) if name in low else neutral for name in names},
        )

    return PoolThresholds(names, *pair(pool.low, pool.high), *pair(pool.prod_low, pool.prod_high))


def absolute(
    low: Percentages,
    high: Percentages,
    resources: tuple[str, ...],
    capacity: Amounts,
    usage: Amounts,
    *,
    deviation: bool,
) -> tuple[Amounts, Amounts]:
    """(low, high) as amounts [resource, node].

    `deviation`: the percentages are distances from the average share that `usage` is of `capacity`. A resource with a
    low deviation of 0 has no effect: its thresholds are the capacity."""
    lows, highs = np.zeros_like(capacity), np.zeros_like(capacity)
    for row, name in enumerate(resources):
        full = capacity[row]
        if not deviation:
            lows[row], highs[row] = _share(low[name], full), _share(high[name], full)
        elif low[name] == 0:
            lows[row] = highs[row] = full
        else:
            average = average_percent(usage[row], full)
            lows[row] = _share(min(max(average - low[name], 0.0), 100.0), full)
            highs[row] = _share(min(max(average + high[name], 0.0), 100.0), full)
    return lows, highs


def average_percent(usage: Amounts, capacity: Amounts) -> float:
    """Mean over nodes of usage in percent of capacity; a node without capacity counts as 0."""
    if not len(usage):
        return 0.0
    share = np.divide(100.0 * usage, capacity, out=np.zeros(len(usage)), where=capacity > 0)
    return float(share.sum() / len(usage))


def _share(percent: float, capacity: Amounts) -> Amounts:
    """Truncated."""
    return np.floor(percent * 0.01 * capacity.astype(np.float64)).astype(np.int64)
