"""NodeAffinity: the node selector, required and preferred node affinity of pod and profile (spec 05 §4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from control.scheduler.config.args import NodeAffinityArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import (
    CycleState,
    EventInterest,
    Plugin,
    PreFilterResult,
    Reads,
    default_normalize,
)
from control.scheduler.framework.status import SKIP, SUCCESS, Code, PluginStatus, unresolvable
from control.scheduler.plugins import results
from control.scheduler.plugins.nodeselection import RequiredNodes, select_term, term_matches
from control.scheduler.state.columns import IntArray, Reasons16, RowArray, Rows, count
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.core import Node, Pod
from koordlet.api.core.selectors import NodeAffinity as Affinity
from koordlet.api.core.selectors import NodeSelectorTerm

_CONFLICT = PreFilterResult(unresolvable("pod affinity terms conflict"))


class _Compiled:
    """The required nodes and preferred terms of a shape."""

    __slots__ = ("names", "preferred", "required")

    def __init__(self, pod: Pod, added: list[tuple[int, NodeSelectorTerm]]) -> None:
        self.required = RequiredNodes.of(pod)
        self.names = self.required.names()
        affinity = pod.spec.affinity
        self.preferred = added + _preferred(affinity.node_affinity if affinity else None)


class NodeAffinityPlugin(Plugin):
    name = "NodeAffinity"
    reads = Reads.NODE

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        added = (args or NodeAffinityArgs()).added_affinity
        self._added = RequiredNodes.selected_by(
            added.required_during_scheduling_ignored_during_execution if added else None
        )
        self._added_preferred = _preferred(added)
        self._memo = results.memo_key(self.name, handle)
        self._mismatch = self.reasons.number(Code.UNRESOLVABLE, "node(s) didn't match Pod's node affinity/selector")
        self._enforced = self.reasons.number(Code.UNRESOLVABLE, "node(s) didn't match scheduler-enforced node affinity")

    def interests(self) -> Sequence[EventInterest]:
        return (EventInterest("Node", frozenset(("Add", "Label")), self._node_hint),)

    # Filter

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        compiled = self._compiled(pod.shape)
        if compiled.required.anything and self._added.anything:
            return results.SKIP_FILTER
        if compiled.names is None:
            return results.PASS_ALL
        if not compiled.names:
            return _CONFLICT
        rows = [row for name in compiled.names if (row := self.table.row(name)) is not None]
        return PreFilterResult(rows=np.array(sorted(rows), np.intp))

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        required = self._compiled(pod.shape).required
        some = results.scalar_rows(rows)
        if some is not None:
            return results.reasons([self._filter_node(required, self.table.nodes[row]) for row in some])
        reasons: Reasons16 = np.where(required.select(self.table, rows), 0, self._mismatch).astype(np.int16)
        if not self._added.anything:
            reasons[~self._added.select(self.table, rows)] = self._enforced
        return reasons

    def _filter_node(self, required: RequiredNodes, node: Node | None) -> int:
        if node is None:
            return 0
        if not self._added.matches(node):
            return self._enforced
        return 0 if required.matches(node) else self._mismatch

    # Score

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        return SUCCESS if self._compiled(pod.shape).preferred else SKIP

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        """Sum of the weights of the matching terms."""
        preferred = self._compiled(pod.shape).preferred
        some = results.scalar_rows(rows)
        if some is not None:
            return results.scores([_score_node(preferred, self.table.nodes[row]) for row in some])
        total: IntArray = np.zeros(count(rows, self.table.size), np.int64)
        for weight, term in preferred:
            total += select_term(self.table, term, rows) * weight
        return total

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        return default_normalize(scores)

    # Shapes

    def _compiled(self, shape: Shape) -> _Compiled:
        compiled: _Compiled | None = shape.memo.get(self._memo)
        if compiled is None:
            compiled = shape.memo[self._memo] = _Compiled(shape.pod, self._added_preferred)
        return compiled

    def _node_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """Whether the node matches now and did not before."""
        node, before = results.as_node(new), results.as_node(old)
        if node is None:
            return True
        required = RequiredNodes.of(pod.pod)
        if not self._added.matches(node) or not required.matches(node):
            return False
        return before is None or not (required.matches(before) and self._added.matches(before))


def _preferred(affinity: Affinity | None) -> list[tuple[int, NodeSelectorTerm]]:
    terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity else []
    return [(term.weight, term.preference) for term in terms if term.weight]


def _score_node(preferred: list[tuple[int, NodeSelectorTerm]], node: Node | None) -> int:
    return 0 if node is None else sum(weight for weight, term in preferred if term_matches(term, node))
