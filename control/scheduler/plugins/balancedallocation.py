"""NodeResourcesBalancedAllocation: prefers nodes whose resources would be used in similar proportions (spec 05 §4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from control.scheduler.config.args import NodeResourcesBalancedAllocationArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, Plugin, Reads
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus
from control.scheduler.plugins import allocation, results
from control.scheduler.plugins.allocation import ScoredResource
from control.scheduler.state.columns import IntArray, Rows
from control.scheduler.state.credit import no_room
from control.scheduler.state.pods import PodInfo, Shape


class NodeResourcesBalancedAllocation(Plugin):
    """Score: 100 minus the standard deviation of the used shares in percent. Requests are used without defaults."""

    name = "NodeResourcesBalancedAllocation"
    reads = Reads.PODS

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._resources = (args or NodeResourcesBalancedAllocationArgs()).resources
        self._memo = results.memo_key(self.name, handle)

    def pre_score(self, state: CycleState, pod: PodInfo, rows: Any) -> PluginStatus:
        return SUCCESS if self._measured(pod.shape) else SKIP

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        resources = self._measured(pod.shape)
        some = results.scalar_rows(rows)
        if some is not None:
            credit_at = no_room if state.credit is None else state.credit.at
            return results.scores([self._score_row(resources, row, credit_at(row)) for row in some])
        if not resources:
            return np.full(len(self.table.allocatable[0, rows]), MAX_SCORE, np.int64)
        pairs = [allocation.columns(self.table, resource, rows, state.credit) for resource in resources]
        present = [alloc > 0 for alloc, _ in pairs]
        used = [np.minimum(used / np.maximum(alloc, 1), 1.0) for alloc, used in pairs]
        deviation = _deviation(used, present)
        scores: IntArray = ((1 - deviation) * MAX_SCORE).astype(np.int64)
        return scores

    def _score_row(self, resources: list[ScoredResource], row: int, room: Mapping[int, int]) -> int:
        shares = []
        for resource in resources:
            alloc, used = allocation.amounts(self.table, resource, row, room)
            if alloc > 0:
                shares.append(min(used / alloc, 1.0))
        return int((1 - deviation(shares)) * MAX_SCORE)

    def _measured(self, shape: Shape) -> list[ScoredResource]:
        """The scored resources; none if the pod requests none of the configured ones."""
        measured: list[ScoredResource] | None = shape.memo.get(self._memo)
        if measured is None:
            measured = allocation.measured(self.table, shape, self._resources, nonzero=False)
            measured = shape.memo[self._memo] = measured if any(resource.amount for resource in measured) else []
        return measured


def deviation(shares: list[float]) -> float:
    """Standard deviation of the used shares as kube-scheduler computes it, with a special case for two shares."""
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


def _deviation(shares: list[NDArray[np.float64]], present: list[NDArray[np.bool_]]) -> NDArray[np.float64]:
    """`deviation` for columns. A share counts only where it is `present`."""
    if len(shares) == 2 and present[0].all() and present[1].all():
        simple: NDArray[np.float64] = np.abs(shares[0] - shares[1]) / 2
        return simple
    number = np.sum(present, axis=0)
    total = np.zeros(len(number))
    for share, counts in zip(shares, present, strict=True):
        total += np.where(counts, share, 0.0)
    mean = total / np.maximum(number, 1)
    squares = np.zeros(len(number))
    for share, counts in zip(shares, present, strict=True):
        squares += np.where(counts, (share - mean) * (share - mean), 0.0)
    result: NDArray[np.float64] = np.sqrt(squares / np.maximum(number, 1))
    if len(shares) >= 2:
        result = np.where(number == 2, _half_difference(shares, present), result)
    return np.where(number < 2, 0.0, result)


def _half_difference(shares: list[NDArray[np.float64]], present: list[NDArray[np.bool_]]) -> NDArray[np.float64]:
    """Half the difference of the two present shares."""
    signed = np.zeros(len(shares[0]))
    sign = np.ones(len(shares[0]))
    for share, counts in zip(shares, present, strict=True):
        signed += np.where(counts, sign * share, 0.0)
        sign = np.where(counts, -sign, sign)
    result: NDArray[np.float64] = np.abs(signed) / 2
    return result
