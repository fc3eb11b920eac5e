"""NodeResourcesFit: the pod's requests must be free on the node; scores by the share of allocated resources.

The reason lists all resources of which the node has too little. Score strategies are LeastAllocated, MostAllocated and
RequestedToCapacityRatio (spec 05 §4). Few rows are computed with integers, many with columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from control.component.amounts import amounts
from control.scheduler.config.args import NodeResourcesFitArgs, UtilizationShapePoint
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, EventInterest, Plugin, Reads
from control.scheduler.framework.status import Code
from control.scheduler.plugins import allocation, results
from control.scheduler.plugins.allocation import ScoredResource
from control.scheduler.state.columns import IntArray, Reasons16, Rows, count
from control.scheduler.state.credit import NO_ROOM, RowCredit, no_room
from control.scheduler.state.pods import PodInfo, Shape
from control.scheduler.state.table import PODS
from koordlet.api.core.podresources import pod_requests
from koordlet.api.resources import is_extended

_MAX_CUSTOM_SCORE: Final = 10
_UNRESOLVABLE: Final = 1
MAX_REQUESTED_RESOURCES: Final = 48
"""Resources that a pod may request. A set of shortages has one bit for each, in 64 bits."""
_MAX_TABLE_CODES: Final = 1 << 12
"""Up to this shortage code the reasons are looked up in a dense table."""


@dataclass(slots=True)
class _Compiled:
    """The requirements of a shape. A set of shortages is a bit set: bit 0 unresolvable, bit 1 pods, then `needs`."""

    needs: list[tuple[int, int]]
    """(column, amount)"""
    names: list[str]
    scored: list[ScoredResource]
    numbers: dict[int, int]
    """Set of shortages -> reason number."""
    too_many: int
    """The reason number of a pod that requests too many resources; 0 otherwise."""


class NodeResourcesFit(Plugin):
    name = "NodeResourcesFit"
    reads = Reads.PODS

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        arguments: NodeResourcesFitArgs = args or NodeResourcesFitArgs()
        strategy = arguments.scoring_strategy
        self._ignored = frozenset(arguments.ignored_resources)
        self._ignored_groups = frozenset(arguments.ignored_resource_groups)
        self._resources = strategy.resources
        self._memo = results.memo_key(self.name, handle)
        self._curve: IntArray | None = None
        self._rate: Callable[[int, int], int] = least_allocated
        self._rates: Callable[[IntArray, IntArray], IntArray] = least_allocated_columns
        if strategy.type == "MostAllocated":
            self._rate, self._rates = most_allocated, most_allocated_columns
        elif strategy.type == "RequestedToCapacityRatio":
            parameter = strategy.requested_to_capacity_ratio
            curve = score_curve(parameter.shape if parameter else [])
            self._curve = np.array(curve, np.int64)
            self._rate = lambda alloc, used: curve[100 if used > alloc else used * 100 // alloc]

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("AssignedPod", frozenset(("Delete", "ScaleDown")), _pod_hint),
            EventInterest("UnscheduledPod", frozenset(("ScaleDown",)), _pod_hint),
            EventInterest("Node", frozenset(("Add", "Allocatable")), self._node_hint),
        )

    # Filter

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        compiled = self._compiled(pod.shape)
        if compiled.too_many:
            return np.full(count(rows, self.table.size), compiled.too_many, np.int16)
        some = results.scalar_rows(rows)
        if some is not None:
            return results.reasons([self._lacks_row(compiled, row, state.credit) for row in some])
        table, credit = self.table, state.credit
        allocatable, requested = table.allocatable, table.requested
        pods = requested[PODS, rows]
        if credit is not None:
            pods = pods - credit.column(PODS, rows)
        short = np.where(pods >= allocatable[PODS, rows], 2, 0)
        bit = 4
        for column, amount in compiled.needs:
            alloc = allocatable[column, rows]
            free = alloc - requested[column, rows]
            if credit is not None:
                free += credit.column(column, rows)
            short += (free < amount) * bit
            short |= alloc < amount
            bit <<= 1
        return self._numbered(compiled, short)

    def _lacks_row(self, compiled: _Compiled, row: int, credit: RowCredit | None) -> int:
        allocatable, requested = self.table.allocatable, self.table.requested
        extra = NO_ROOM if credit is None else credit.at(row)
        short = 2 if requested.item(PODS, row) - extra.get(PODS, 0) >= allocatable.item(PODS, row) else 0
        bit = 4
        for column, amount in compiled.needs:
            alloc = allocatable.item(column, row)
            if alloc - requested.item(column, row) + extra.get(column, 0) < amount:
                short |= bit
                if alloc < amount:
                    short |= _UNRESOLVABLE
            bit <<= 1
        return self._number(compiled, short) if short > 1 else 0

    def _numbered(self, compiled: _Compiled, short: IntArray) -> Reasons16:
        if bool((short <= 1).all()):
            return np.zeros(len(short), np.int16)
        highest = int(short.max())
        if highest < _MAX_TABLE_CODES:
            table = np.zeros(highest + 1, np.int16)
            for code in np.flatnonzero(np.bincount(short)).tolist():
                table[code] = self._number(compiled, code) if code > 1 else 0
            chosen: Reasons16 = table[short]
            return chosen
        codes, inverse = np.unique(short, return_inverse=True)
        numbers = np.array([self._number(compiled, code) if code > 1 else 0 for code in codes.tolist()], np.int16)
        named: Reasons16 = numbers[inverse]
        return named

    def _number(self, compiled: _Compiled, short: int) -> int:
        number = compiled.numbers.get(short)
        if number is None:
            texts = ["Too many pods"] if short & 2 else []
            texts += [f"Insufficient {name}" for i, name in enumerate(compiled.names) if short & (4 << i)]
            code = Code.UNRESOLVABLE if short & _UNRESOLVABLE else Code.UNSCHEDULABLE
            number = compiled.numbers[short] = self.reasons.number(code, *texts)
        return number

    # Score

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        compiled = self._compiled(pod.shape)
        some = results.scalar_rows(rows)
        if some is not None:
            credit_at = no_room if state.credit is None else state.credit.at
            return results.scores([self._score_row(compiled, row, credit_at(row)) for row in some])
        total: IntArray | int = 0
        weights: IntArray | int = 0
        for resource in compiled.scored:
            alloc, used = allocation.columns(self.table, resource, rows, state.credit)
            present = alloc > 0
            if self._curve is None:
                rated = np.where(present, self._rates(np.maximum(alloc, 1), used), 0)
            else:
                percent = np.where(used > alloc, 100, used * 100 // np.maximum(alloc, 1))
                rated = np.where(present, self._curve[np.minimum(percent, 100)], 0)
                present = rated > 0
            total = total + rated * resource.weight
            weights = weights + present * resource.weight
        if isinstance(total, int) or isinstance(weights, int):
            return results.zeros(rows, self.table.size)
        return self._mean(total, weights)

    def _mean(self, total: IntArray, weights: IntArray) -> IntArray:
        divisor = np.maximum(weights, 1)
        # As in kube-scheduler: the mean of the curve is rounded, half away from zero; the others are truncated.
        mean: IntArray = (2 * total + divisor) // (2 * divisor) if self._curve is not None else total // divisor
        return mean

    def _score_row(self, compiled: _Compiled, row: int, room: Mapping[int, int]) -> int:
        total = weights = 0
        for resource in compiled.scored:
            alloc, used = allocation.amounts(self.table, resource, row, room)
            if alloc <= 0:
                continue
            rated = self._rate(alloc, used)
            if rated or self._curve is None:
                total += rated * resource.weight
                weights += resource.weight
        if not weights:
            return 0
        return (2 * total + weights) // (2 * weights) if self._curve is not None else total // weights

    # Shapes

    def _compiled(self, shape: Shape) -> _Compiled:
        compiled: _Compiled | None = shape.memo.get(self._memo)
        if compiled is None:
            requested = [
                (name, amount)
                for name, amount in shape.requests.items()
                if amount > 0 and name != "pods" and not self._is_ignored(name)
            ]
            too_many = 0
            if len(requested) > MAX_REQUESTED_RESOURCES:
                text = f"Too many resources requested, at most {MAX_REQUESTED_RESOURCES} are allowed"
                too_many, requested = self.reasons.number(Code.UNRESOLVABLE, text), []
            needs = sorted((self.table.resource(name), amount, name) for name, amount in requested)
            scored = allocation.measured(self.table, shape, self._resources, nonzero=True)
            compiled = shape.memo[self._memo] = _Compiled(
                [need[:2] for need in needs], [name for _, _, name in needs], scored, {}, too_many
            )
        return compiled

    def _is_ignored(self, name: str) -> bool:
        if not (self._ignored or self._ignored_groups) or not is_extended(name):
            return False
        return name in self._ignored or name.partition("/")[0] in self._ignored_groups

    # Queueing hints

    def _node_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Whether the node, if empty, fits the pod, and is new or has more of a requested resource."""
        node = results.as_node(new)
        if node is None:
            return True
        has = amounts(node.status.allocatable)
        requested = {name: n for name, n in pod.requests.items() if n > 0 and not self._is_ignored(name)}
        if any(n > has.get(name, 0) for name, n in requested.items()) or has.get("pods", 0) < 1:
            return False
        before = results.as_node(old)
        if before is None:
            return True
        had = amounts(before.status.allocatable)
        return any(has.get(name, 0) > had.get(name, 0) for name in (*requested, "pods"))


def _pod_hint(pod: PodInfo, old: Any, new: Any) -> bool:
    """Whether a pod was removed or reduced its requests, or the waiting pod reduced its own."""
    before, after = results.as_pod(old), results.as_pod(new)
    if before is None or after is None:
        return True
    requests, reduced = amounts(pod_requests(before)), amounts(pod_requests(after))
    watched = requests if after.metadata.uid == pod.uid else pod.requests
    return any(reduced.get(name, 0) < requests.get(name, 0) for name in watched)


def least_allocated(alloc: int, used: int) -> int:
    return 0 if used > alloc else (alloc - used) * MAX_SCORE // alloc


def most_allocated(alloc: int, used: int) -> int:
    return min(used, alloc) * MAX_SCORE // alloc


def least_allocated_columns(alloc: IntArray, used: IntArray) -> IntArray:
    scores: IntArray = np.maximum(alloc - used, 0) * MAX_SCORE // alloc
    return scores


def most_allocated_columns(alloc: IntArray, used: IntArray) -> IntArray:
    scores: IntArray = np.minimum(used, alloc) * MAX_SCORE // alloc
    return scores


def score_curve(shape: Sequence[UtilizationShapePoint]) -> list[int]:
    """[utilization 0..100]: the piecewise linear score 0..100, truncated towards zero like integer division in Go."""
    if not shape:
        return [0] * 101
    points = [(point.utilization, point.score * MAX_SCORE // _MAX_CUSTOM_SCORE) for point in shape]

    def at(utilization: int) -> int:
        for i, (x, y) in enumerate(points):
            if utilization <= x:
                if i == 0:
                    return y
                x0, y0 = points[i - 1]
                rise = (y - y0) * (utilization - x0)
                step = abs(rise) // (x - x0)
                return y0 + (step if rise >= 0 else -step)
        return points[-1][1]

    return [at(utilization) for utilization in range(101)]
