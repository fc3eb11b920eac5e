"""PodTopologySpread at the scheduler's extension points.

Counts come from `PodCounters`, their sums by domain from `DomainSums`. A cycle computes a result or a score per domain
and looks it up for the rows. Compiled constraints hold columns, so only the recently used shapes keep them.
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
from control.scheduler.plugins import results
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
    """The constraints of a shape. `strict`: nodes that lack a topology key of a soft constraint score 0."""

    version: int
    hard: tuple[Constraint, ...] = ()
    soft: tuple[Constraint, ...] = ()
    strict: bool = True
    failure: PreFilterResult | None = None


@dataclass(slots=True)
class _Scoring:
    """The results of PreScore: the weight of each soft constraint, and the feasible rows that are scored."""

    weights: list[float]
    complete: Mask | None
    """[feasible row]: whether the node has all topology keys; None: all nodes have."""


class PodTopologySpread(Plugin):
    name = "PodTopologySpread"
    reads = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        arguments: PodTopologySpreadArgs = args or PodTopologySpreadArgs()
        self._system = arguments.defaulting_type != "List"
        self._defaults: Sequence[TopologySpreadConstraint] = (
            SYSTEM_DEFAULTS if self._system else arguments.default_constraints
        )
        self._workloads = WorkloadSelectors(handle.objects)
        self._memo = results.memo_key(self.name, handle)
        self._recent = RecentShapes(self._memo)
        self._domains = Domains(self.table)
        self._mismatch = self.reasons.number(Code.UNSCHEDULABLE, _MISMATCH)
        self._missing = self.reasons.number(Code.UNRESOLVABLE, f"{_MISMATCH} (missing required label)")

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("AssignedPod", frozenset(("Add", "Label", "Delete")), self._pod_hint),
            EventInterest("UnscheduledPod", frozenset(("Label", "Toleration")), self._pod_hint),
            EventInterest("Node", frozenset(("Add", "Delete", "Label", "Taint")), self._node_hint),
        )

    # Filter

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        compiled = self._compiled(pod.shape)
        if compiled.failure is not None:
            return compiled.failure
        return results.PASS_ALL if compiled.hard else results.SKIP_FILTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        reasons: Reasons16 | None = None
        for constraint in self._compiled(pod.shape).hard:
            column = by_row(self._results(constraint), constraint.domains.ids, rows)
            if reasons is None:
                reasons = column
            else:
                reasons += column * (reasons == 0)  # the first constraint that rejects the row determines the reason
        return results.passes(rows, self.table.size) if reasons is None else reasons

    def _results(self, constraint: Constraint) -> Reasons16:
        """By number of the domain: the Filter result for one more pod there."""
        sums = constraint.domains.sync()
        least = constraint.domains.least() if len(constraint.domains.present) >= constraint.min_domains else 0
        domain_results: Reasons16 = (sums > constraint.max_skew + least - constraint.self_match).astype(np.int16)
        domain_results *= self._mismatch
        domain_results[0] = self._missing
        return domain_results

    # Score

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        compiled = self._compiled(pod.shape)
        if compiled.failure is not None:
            return compiled.failure.status
        if not compiled.soft:
            return SKIP
        complete = self._complete(compiled, rows)
        scored = rows if complete is None else rows[complete]
        weights = []
        for constraint in compiled.soft:
            constraint.domains.sync()
            if constraint.key == HOSTNAME:
                size = len(scored)
            elif len(scored) == self.table.nodes_alive:
                size = constraint.domains.ids.distinct
            else:
                size = int(np.count_nonzero(np.bincount(constraint.domains.ids.sync().take(scored))))
            weights.append(math.log(size + 2))
        state.data[self.name] = _Scoring(weights, complete)
        return SUCCESS

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        compiled = self._compiled(pod.shape)
        scoring: _Scoring = state.data[self.name]
        total: NDArray[np.float64] = np.zeros(count(rows, self.table.size))
        for constraint, weight in zip(compiled.soft, scoring.weights, strict=True):
            ids = constraint.domains.ids
            if constraint.key == HOSTNAME:
                part = constraint.counter.data[rows] * weight
                part += constraint.max_skew - 1
                if not ids.everywhere:
                    part[ids.sync()[rows] == 0] = 0.0
                total += part
            else:
                by_domain = constraint.domains.sums * weight + (constraint.max_skew - 1)
                by_domain[0] = 0.0
                total += by_row(by_domain, ids, rows)
        total += 0.5
        scores: IntArray = total.astype(np.int64)  # truncation after + 0.5 rounds, because no value is negative
        complete = self._complete(compiled, rows)
        if complete is not None:
            scores[~complete] = 0
        return scores

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        scoring: _Scoring = state.data[self.name]
        complete = scoring.complete
        scored = scores if complete is None else scores[complete]
        if not len(scored):
            return np.zeros(len(scores), np.int64)
        lowest, highest = int(scored.min()), int(scored.max())
        if highest == 0:
            normalized = np.full(len(scores), MAX_SCORE, np.int64)
        else:
            normalized = (highest + lowest - scores) * MAX_SCORE // highest
        if complete is not None:
            normalized[~complete] = 0
        return normalized

    def _complete(self, compiled: _Compiled, rows: Rows) -> Mask | None:
        """[len(rows)]: whether the node has the topology keys of all soft constraints; None if all rows count."""
        complete: Mask | None = None
        for constraint in compiled.soft if compiled.strict else ():
            ids = constraint.domains.ids.sync()
            if constraint.domains.ids.everywhere:
                continue
            present = ids[rows] != 0
            complete = present if complete is None else complete & present
        return None if complete is None or complete.all() else complete

    # Shapes

    def _compiled(self, shape: Shape) -> _Compiled:
        version = self._workloads.version(shape.namespace)
        compiled: _Compiled | None = shape.memo.get(self._memo)
        if compiled is None or compiled.version != version:
            compiled = shape.memo[self._memo] = self._compile(shape, version)
        if compiled.hard or compiled.soft:
            self._recent.used(shape)
        return compiled

    def _compile(self, shape: Shape, version: int) -> _Compiled:
        constraints = self._constraints(shape)
        hard = [constraint for constraint in constraints if constraint.when_unsatisfiable == HARD]
        soft = [constraint for constraint in constraints if constraint.when_unsatisfiable == SOFT]
        strict = bool(shape.pod.spec.topology_spread_constraints) or not self._system
        table, counters = self.table, self.handle.counters
        try:
            return _Compiled(
                version,
                compile_constraints(table, self._domains, counters, shape, hard, all_keys=True),
                compile_constraints(table, self._domains, counters, shape, soft, all_keys=strict),
                strict,
            )
        except SelectorError as error_in_selector:
            return _Compiled(version, failure=PreFilterResult(error(str(error_in_selector))))

    def _constraints(self, shape: Shape) -> Sequence[TopologySpreadConstraint]:
        own = shape.pod.spec.topology_spread_constraints
        if own or not self._defaults:
            return own
        selector = self._workloads.selector(shape)
        if selector is None:
            return ()
        return [msgspec.structs.replace(default, label_selector=selector) for default in self._defaults]

    # Queueing hints

    def _pod_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Whether a pod that the constraints count was added or removed, or its labels changed so."""
        before, after = results.as_pod(old), results.as_pod(new)
        changed_pod = after or before
        if changed_pod is None:
            return True
        own = changed_pod.metadata.uid == pod.uid
        if not own and changed_pod.metadata.namespace != pod.namespace:
            return False
        constraints = self._constraints(pod.shape)
        if own and before is not None and after is not None and before.spec.tolerations != after.spec.tolerations:
            return any(constraint.node_taints_policy == "Honor" for constraint in constraints)

        def counts(changed: Pod | None) -> list[bool]:
            labels = changed.metadata.labels if changed else None
            return [
                labels is not None and c.label_selector is not None and c.label_selector.matches(labels)
                for c in constraints
            ]

        return counts(before) != counts(after)

    def _node_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Whether a node with all topology keys was added or removed, or moved to another domain."""
        before, after = results.as_node(old), results.as_node(new)
        constraints = self._constraints(pod.shape)
        keys = [constraint.topology_key for constraint in constraints]
        if _place(before, keys) != _place(after, keys):
            return True
        honoured = any(constraint.node_taints_policy == "Honor" for constraint in constraints)
        return honoured and before is not None and after is not None and before.spec.taints != after.spec.taints


def _place(node: Node | None, keys: Sequence[str]) -> tuple[str, ...] | None:
    """The node's domains; None unless it has all topology keys."""
    if node is None or any(key not in node.metadata.labels for key in keys):
        return None
    return tuple(node.metadata.labels[key] for key in keys)
