"""NodeResourcesFit: what the pod requests is free on the node; the emptier, fuller or better used node is preferred.

All resources that a node is short of are given as reasons together. Score strategies LeastAllocated, MostAllocated and
RequestedToCapacityRatio (spec 05 §4). Asked for one row it works on integers, for the table on columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from control.scheduler.config.args import NodeResourcesFitArgs, UtilizationShapePoint
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, EventInterest, Plugin, Reads
from control.scheduler.framework.status import Code
from control.scheduler.plugins import allocation, answers
from control.scheduler.plugins.allocation import Measured
from control.scheduler.state.columns import IntArray, Reasons16, Rows
from control.scheduler.state.pods import PodInfo, Shape, amounts
from control.scheduler.state.table import PODS
from koordlet.api.core.podresources import pod_requests

_MAX_CUSTOM_SCORE: Final = 10
_UNRESOLVABLE: Final = 1
_FEW_CODES: Final = 1 << 12


@dataclass(slots=True)
class _Compiled:
    """What a shape needs. A set of shortages is a number: bit 0 unresolvable, bit 1 pods, then `needs` in order."""

    needs: list[tuple[int, int]]
    """(column, amount)"""
    names: list[str]
    scored: list[Measured]
    numbers: dict[int, int]
    """Set of shortages -> reason number."""


class NodeResourcesFit(Plugin):
    name = "NodeResourcesFit"
    reads = Reads.PODS

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        given: NodeResourcesFitArgs = args or NodeResourcesFitArgs()
        strategy = given.scoring_strategy
        self._ignored = frozenset(given.ignored_resources)
        self._ignored_groups = frozenset(given.ignored_resource_groups)
        self._resources = strategy.resources
        self._memo = answers.memo_key(self.name, handle)
        self._curve: IntArray | None = None
        self._rate: Callable[[int, int], int] = least
        self._rates: Callable[[IntArray, IntArray], IntArray] = leasts
        if strategy.type == "MostAllocated":
            self._rate, self._rates = most, mosts
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
        some = answers.few(rows)
        if some is not None:
            return answers.reasons([self._lacks_row(compiled, row) for row in some])
        table = self.table
        allocatable, requested = table.allocatable, table.requested
        short = np.where(requested[PODS, rows] >= allocatable[PODS, rows], 2, 0)
        bit = 4
        for column, amount in compiled.needs:
            alloc = allocatable[column, rows]
            short += (alloc - requested[column, rows] < amount) * bit
            short |= alloc < amount
            bit <<= 1
        return self._numbered(compiled, short)

    def _lacks_row(self, compiled: _Compiled, row: int) -> int:
        allocatable, requested = self.table.allocatable, self.table.requested
        short = 2 if requested.item(PODS, row) >= allocatable.item(PODS, row) else 0
        bit = 4
        for column, amount in compiled.needs:
            alloc = allocatable.item(column, row)
            if alloc - requested.item(column, row) < amount:
                short |= bit
                if alloc < amount:
                    short |= _UNRESOLVABLE
            bit <<= 1
        return self._number(compiled, short) if short > 1 else 0

    def _numbered(self, compiled: _Compiled, short: IntArray) -> Reasons16:
        if bool((short <= 1).all()):
            return np.zeros(len(short), np.int16)
        highest = int(short.max())
        if highest < _FEW_CODES:
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
        found = compiled.numbers.get(short)
        if found is None:
            texts = ["Too many pods"] if short & 2 else []
            texts += [f"Insufficient {name}" for i, name in enumerate(compiled.names) if short & (4 << i)]
            code = Code.UNRESOLVABLE if short & _UNRESOLVABLE else Code.UNSCHEDULABLE
            found = compiled.numbers[short] = self.reasons.number(code, *texts)
        return found

    # Score

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        compiled = self._compiled(pod.shape)
        some = answers.few(rows)
        if some is not None:
            return answers.scores([self._score_row(compiled, row) for row in some])
        total: IntArray | int = 0
        weights: IntArray | int = 0
        for one in compiled.scored:
            alloc, used = allocation.columns(self.table, one, rows)
            there = alloc > 0
            if self._curve is None:
                rated = np.where(there, self._rates(np.maximum(alloc, 1), used), 0)
            else:
                percent = np.where(used > alloc, 100, used * 100 // np.maximum(alloc, 1))
                rated = np.where(there, self._curve[np.minimum(percent, 100)], 0)
                there = rated > 0
            total = total + rated * one.weight
            weights = weights + there * one.weight
        if isinstance(total, int) or isinstance(weights, int):
            return answers.nothing(rows, self.table.size)
        return self._mean(total, weights)

    def _mean(self, total: IntArray, weights: IntArray) -> IntArray:
        divisor = np.maximum(weights, 1)
        # The curve's mean is rounded, half away from zero; the other two are cut.
        mean: IntArray = (2 * total + divisor) // (2 * divisor) if self._curve is not None else total // divisor
        return mean

    def _score_row(self, compiled: _Compiled, row: int) -> int:
        total = weights = 0
        for one in compiled.scored:
            alloc, used = allocation.amounts(self.table, one, row)
            if alloc <= 0:
                continue
            rated = self._rate(alloc, used)
            if rated or self._curve is None:
                total += rated * one.weight
                weights += one.weight
        if not weights:
            return 0
        return (2 * total + weights) // (2 * weights) if self._curve is not None else total // weights

    # The shape

    def _compiled(self, shape: Shape) -> _Compiled:
        found: _Compiled | None = shape.memo.get(self._memo)
        if found is None:
            needs = [
                (self.table.resource(name), amount)
                for name, amount in shape.requests.items()
                if amount > 0 and name != "pods" and not self._is_ignored(name)
            ]
            needs.sort()
            by_column = {column: name for name, column in self.table.resources.items()}
            names = [by_column[column] for column, _ in needs]
            scored = allocation.measured(self.table, shape, self._resources, nonzero=True)
            found = shape.memo[self._memo] = _Compiled(needs, names, scored, {})
        return found

    def _is_ignored(self, name: str) -> bool:
        if not (self._ignored or self._ignored_groups) or not allocation.is_extended(name):
            return False
        return name in self._ignored or name.partition("/")[0] in self._ignored_groups

    # What may help

    def _node_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """The node could hold the pod if it were empty, and is new or has more of something that the pod requests."""
        node = answers.as_node(new)
        if node is None:
            return True
        has = amounts(node.status.allocatable)
        wanted = {name: n for name, n in pod.requests.items() if n > 0 and not self._is_ignored(name)}
        if any(n > has.get(name, 0) for name, n in wanted.items()) or has.get("pods", 0) < 1:
            return False
        before = answers.as_node(old)
        if before is None:
            return True
        had = amounts(before.status.allocatable)
        return any(has.get(name, 0) > had.get(name, 0) for name in (*wanted, "pods"))


def _pod_hint(pod: PodInfo, old: Any, new: Any) -> bool:
    """A pod left its node, shrank there, or the waiting pod itself shrank."""
    before, after = answers.as_pod(old), answers.as_pod(new)
    if before is None or after is None:
        return True
    requests, reduced = amounts(pod_requests(before)), amounts(pod_requests(after))
    watched = requests if after.metadata.uid == pod.uid else pod.requests
    return any(reduced.get(name, 0) < requests.get(name, 0) for name in watched)


def least(alloc: int, used: int) -> int:
    return 0 if used > alloc else (alloc - used) * MAX_SCORE // alloc


def most(alloc: int, used: int) -> int:
    return min(used, alloc) * MAX_SCORE // alloc


def leasts(alloc: IntArray, used: IntArray) -> IntArray:
    found: IntArray = np.maximum(alloc - used, 0) * MAX_SCORE // alloc
    return found


def mosts(alloc: IntArray, used: IntArray) -> IntArray:
    found: IntArray = np.minimum(used, alloc) * MAX_SCORE // alloc
    return found


def score_curve(shape: Sequence[UtilizationShapePoint]) -> list[int]:
    """[utilization 0..100]: the piecewise linear score 0..100; slopes are cut towards zero, as integers in Go are."""
    if not shape:
        return [0] * 101
    points = [(one.utilization, one.score * MAX_SCORE // _MAX_CUSTOM_SCORE) for one in shape]

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
