"""NodeResourcesBalancedAllocation: prefers nodes whose resources would be used to similar shares (spec 05 §4)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from control.scheduler.config.args import NodeResourcesBalancedAllocationArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, Plugin, Reads
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus
from control.scheduler.plugins import allocation, answers
from control.scheduler.plugins.allocation import Measured
from control.scheduler.state.columns import IntArray, Rows
from control.scheduler.state.pods import PodInfo, Shape


class NodeResourcesBalancedAllocation(Plugin):
    """100 less the standard deviation of the used shares in percent; plain requests, without defaults."""

    name = "NodeResourcesBalancedAllocation"
    reads = Reads.PODS

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._resources = (args or NodeResourcesBalancedAllocationArgs()).resources
        self._memo = answers.memo_key(self.name, handle)

    def pre_score(self, state: CycleState, pod: PodInfo, rows: Any) -> PluginStatus:
        return SUCCESS if self._measured(pod.shape) else SKIP

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        resources = self._measured(pod.shape)
        some = answers.few(rows)
        if some is not None:
            return answers.scores([self._score_row(resources, row) for row in some])
        if not resources:
            return np.full(len(self.table.allocatable[0, rows]), MAX_SCORE, np.int64)
        pairs = [allocation.columns(self.table, one, rows) for one in resources]
        there = [alloc > 0 for alloc, _ in pairs]
        used = [np.minimum(used / np.maximum(alloc, 1), 1.0) for alloc, used in pairs]
        deviation = _deviation(used, there)
        found: IntArray = ((1 - deviation) * MAX_SCORE).astype(np.int64)
        return found

    def _score_row(self, resources: list[Measured], row: int) -> int:
        shares = []
        for one in resources:
            alloc, used = allocation.amounts(self.table, one, row)
            if alloc > 0:
                shares.append(min(used / alloc, 1.0))
        return int((1 - deviation(shares)) * MAX_SCORE)

    def _measured(self, shape: Shape) -> list[Measured]:
        """The resources that count; none when the pod requests none of those configured."""
        found: list[Measured] | None = shape.memo.get(self._memo)
        if found is None:
            found = allocation.measured(self.table, shape, self._resources, nonzero=False)
            found = shape.memo[self._memo] = found if any(one.amount for one in found) else []
        return found


def deviation(shares: list[float]) -> float:
    """Standard deviation of used shares, as upstream computes it: two are a case of their own."""
    if len(shares) == 2:
        return abs(shares[0] - shares[1]) / 2
    if len(shares) < 2:
        return 0.0
    total = 0.0
    for share in shares:
        total += share
    mean = total / len(shares)
    squares = 0.0
    for share in shares:
        squares += (share - mean) * (share - mean)
    return math.sqrt(squares / len(shares))


def _deviation(shares: list[NDArray[np.float64]], there: list[NDArray[np.bool_]]) -> NDArray[np.float64]:
    """The same for columns; a share counts only where it is `there`."""
    if len(shares) == 2 and there[0].all() and there[1].all():
        simple: NDArray[np.float64] = np.abs(shares[0] - shares[1]) / 2
        return simple
    number = np.sum(there, axis=0)
    total = np.zeros(len(number))
    for share, counts in zip(shares, there, strict=True):
        total += np.where(counts, share, 0.0)
    mean = total / np.maximum(number, 1)
    squares = np.zeros(len(number))
    for share, counts in zip(shares, there, strict=True):
        squares += np.where(counts, (share - mean) * (share - mean), 0.0)
    found: NDArray[np.float64] = np.sqrt(squares / np.maximum(number, 1))
    if len(shares) >= 2:
        found = np.where(number == 2, _half_difference(shares, there), found)
    return np.where(number < 2, 0.0, found)


def _half_difference(shares: list[NDArray[np.float64]], there: list[NDArray[np.bool_]]) -> NDArray[np.float64]:
    """Half the difference of the two that are there."""
    signed = np.zeros(len(shares[0]))
    sign = np.ones(len(shares[0]))
    for share, counts in zip(shares, there, strict=True):
        signed += np.where(counts, sign * share, 0.0)
        sign = np.where(counts, -sign, sign)
    found: NDArray[np.float64] = np.abs(signed) / 2
    return found
