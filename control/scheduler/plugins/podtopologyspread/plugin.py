"""PodTopologySpread at the scheduler's extension points.

Counts come from `PodCounters`, their sums over domains from `DomainSums`; a cycle turns sums into a verdict or a score
by domain and looks the rows up in it. What is compiled for a shape holds columns, so only the shapes used last have it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from control.scheduler.config.args import PodTopologySpreadArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import SKIP, SUCCESS, Code, PluginStatus, error
from control.scheduler.plugins import answers
from control.scheduler.plugins.domains import Domains, by_row
from control.scheduler.plugins.podtopologyspread.constraints import (
    HARD,
    HOSTNAME,
    SOFT,
    SYSTEM_DEFAULTS,
    Constraint,
    compile_constraints,
)
from control.scheduler.plugins.podtopologyspread.workloads import WorkloadSelectors
from control.scheduler.plugins.recent import RecentShapes
from control.scheduler.state.columns import IntArray, Mask, Reasons16, RowArray, Rows, count
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.core import Node, Pod
from koordlet.api.core.selectors import TopologySpreadConstraint
from koordlet.api.meta import SelectorError

_MISMATCH: Final = "node(s) didn't match pod topology spread constraints"


@dataclass(slots=True)
class _Compiled:
    """A shape's constraints. `strict`: nodes that lack a label of the soft ones get no score."""

    version: int
    hard: tuple[Constraint, ...] = ()
    soft: tuple[Constraint, ...] = ()
    strict: bool = True
    failure: PreFilterResult | None = None


@dataclass(slots=True)
class _Scoring:
    """What PreScore finds for the feasible rows: the weight of each soft constraint's counts, and who is judged."""

    weights: list[float]
    complete: Mask | None
    """[feasible]: has all labels; None: all have."""


class PodTopologySpread(Plugin):
    name = "PodTopologySpread"
    reads = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        given: PodTopologySpreadArgs = args or PodTopologySpreadArgs()
        self._system = given.defaulting_type != "List"
        self._defaults: Sequence[TopologySpreadConstraint] = (
            SYSTEM_DEFAULTS if self._system else given.default_constraints
        )
        self._workloads = WorkloadSelectors(handle.objects)
        self._memo = answers.memo_key(self.name, handle)
        self._recent = RecentShapes(self._memo)
        self._domains = Domains(self.table)
        self._mismatch = self.reasons.number(Code.UNSCHEDULABLE, _MISMATCH)
        self._missing = self.reasons.number(Code.UNRESOLVABLE, f"{_MISMATCH} (missing required label)")

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("AssignedPod", frozenset(("Add", "Label", "Delete")), self._pod_hint),
            EventInterest("UnscheduledPod", frozenset(("Label",)), self._pod_hint),
            EventInterest("Node", frozenset(("Add", "Delete", "Label", "Taint")), self._node_hint),
        )

    # Filter

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        compiled = self._compiled(pod.shape)
        if compiled.failure is not None:
            return compiled.failure
        return answers.PASS_ALL if compiled.hard else answers.SKIP_FILTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        found: Reasons16 | None = None
        for one in self._compiled(pod.shape).hard:
            answer = by_row(self._verdicts(one), one.domains.ids, rows)
            if found is None:
                found = answer
            else:
                found += answer * (found == 0)  # the first one that refuses is told
        return answers.passes(rows, self.table.size) if found is None else found

    def _verdicts(self, one: Constraint) -> Reasons16:
        """By number of domain, for one more pod there."""
        sums = one.domains.sync()
        least = one.domains.least() if len(one.domains.present) >= one.min_domains else 0
        verdicts: Reasons16 = (sums > one.max_skew + least - one.self_match).astype(np.int16)
        verdicts *= self._mismatch
        verdicts[0] = self._missing
        return verdicts

    # Score

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        compiled = self._compiled(pod.shape)
        if compiled.failure is not None:
            return compiled.failure.status
        if not compiled.soft:
            return SKIP
        complete = self._complete(compiled, rows)
        judged = rows if complete is None else rows[complete]
        weights = []
        for one in compiled.soft:
            one.domains.sync()
            if one.key == HOSTNAME:
                size = len(judged)
            elif len(judged) == self.table.nodes_alive:
                size = one.domains.ids.distinct
            else:
                size = int(np.count_nonzero(np.bincount(one.domains.ids.sync().take(judged))))
            weights.append(math.log(size + 2))
        state.data[self.name] = _Scoring(weights, complete)
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        compiled = self._compiled(pod.shape)
        scoring: _Scoring = state.data[self.name]
        total: NDArray[np.float64] = np.zeros(count(rows, self.table.size))
        for one, weight in zip(compiled.soft, scoring.weights, strict=True):
            ids = one.domains.ids
            if one.key == HOSTNAME:
                part = one.counter.data[rows] * weight
                part += one.max_skew - 1
                if not ids.everywhere:
                    part[ids.sync()[rows] == 0] = 0.0
                total += part
            else:
                by_domain = one.domains.sums * weight + (one.max_skew - 1)
                by_domain[0] = 0.0
                total += by_row(by_domain, ids, rows)
        total += 0.5
        found: IntArray = total.astype(np.int64)  # cut, which is to round: nothing is negative
        complete = self._complete(compiled, rows)
        if complete is not None:
            found[~complete] = 0
        return found

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        scoring: _Scoring = state.data[self.name]
        complete = scoring.complete
        judged = scores if complete is None else scores[complete]
        if not len(judged):
            return np.zeros(len(scores), np.int64)
        lowest, highest = int(judged.min()), int(judged.max())
        if highest == 0:
            found = np.full(len(scores), MAX_SCORE, np.int64)
        else:
            found = (highest + lowest - scores) * MAX_SCORE // highest
        if complete is not None:
            found[~complete] = 0
        return found

    def _complete(self, compiled: _Compiled, rows: Rows) -> Mask | None:
        """Which rows have the labels of all soft constraints; None when all have, or need not."""
        complete: Mask | None = None
        for one in compiled.soft if compiled.strict else ():
            ids = one.domains.ids.sync()
            if one.domains.ids.everywhere:
                continue
            there = ids[rows] != 0
            complete = there if complete is None else complete & there
        return None if complete is None or complete.all() else complete

    # The shape

    def _compiled(self, shape: Shape) -> _Compiled:
        version = self._workloads.version(shape.namespace)
        found: _Compiled | None = shape.memo.get(self._memo)
        if found is None or found.version != version:
            found = shape.memo[self._memo] = self._compile(shape, version)
        if found.hard or found.soft:
            self._recent.used(shape)
        return found

    def _compile(self, shape: Shape, version: int) -> _Compiled:
        constraints = self._constraints(shape)
        hard = [one for one in constraints if one.when_unsatisfiable == HARD]
        soft = [one for one in constraints if one.when_unsatisfiable == SOFT]
        strict = bool(shape.pod.spec.topology_spread_constraints) or not self._system
        table, counters = self.table, self.handle.counters
        try:
            return _Compiled(
                version,
                compile_constraints(table, self._domains, counters, shape, hard, all_keys=True),
                compile_constraints(table, self._domains, counters, shape, soft, all_keys=strict),
                strict,
            )
        except SelectorError as broken:
            return _Compiled(version, failure=PreFilterResult(error(str(broken))))

    def _constraints(self, shape: Shape) -> Sequence[TopologySpreadConstraint]:
        own = shape.pod.spec.topology_spread_constraints
        if own or not self._defaults:
            return own
        selector = self._workloads.selector(shape)
        if selector is None:
            return ()
        return [msgspec.structs.replace(one, label_selector=selector) for one in self._defaults]

    # What may help

    def _pod_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """A pod that the constraints count came, went, or changed sides."""
        before, after = answers.as_pod(old), answers.as_pod(new)
        one = after or before
        if one is None:
            return True
        own = one.metadata.uid == pod.uid
        if not own and one.metadata.namespace != pod.namespace:
            return False
        constraints = self._constraints(pod.shape)

        def counts(changed: Pod | None) -> list[bool]:
            labels = changed.metadata.labels if changed else None
            return [
                labels is not None and c.label_selector is not None and c.label_selector.matches(labels)
                for c in constraints
            ]

        return counts(before) != counts(after)

    def _node_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """A node that counts came or went, or is in another domain now."""
        before, after = answers.as_node(old), answers.as_node(new)
        constraints = self._constraints(pod.shape)
        keys = [one.topology_key for one in constraints]
        if _place(before, keys) != _place(after, keys):
            return True
        honoured = any(one.node_taints_policy == "Honor" for one in constraints)
        return honoured and before is not None and after is not None and before.spec.taints != after.spec.taints


def _place(node: Node | None, keys: Sequence[str]) -> tuple[str, ...] | None:
    """The node's domains; None unless it has all the labels."""
    if node is None or any(key not in node.metadata.labels for key in keys):
        return None
    return tuple(node.metadata.labels[key] for key in keys)
