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
from control.scheduler.plugins import answers
from control.scheduler.plugins.nodeselection import RequiredNodes, select_term, term_matches
from control.scheduler.state.columns import IntArray, Reasons16, RowArray, Rows, count
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.core import Node, Pod
from koordlet.api.core.selectors import NodeAffinity as Affinity
from koordlet.api.core.selectors import NodeSelectorTerm

_CONFLICT = PreFilterResult(unresolvable("pod affinity terms conflict"))


class _Compiled:
    """What a shape requires and prefers: (weight, term)."""

    __slots__ = ("names", "preferred", "wanted")

    def __init__(self, pod: Pod, added: list[tuple[int, NodeSelectorTerm]]) -> None:
        self.wanted = RequiredNodes.of(pod)
        self.names = self.wanted.names()
        affinity = pod.spec.affinity
        self.preferred = added + _preferred(affinity.node_affinity if affinity else None)


class NodeAffinityPlugin(Plugin):
    name = "NodeAffinity"
    reads = Reads.NODE

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        given: NodeAffinityArgs = args or NodeAffinityArgs()
        added = given.added_affinity
        self._added = RequiredNodes.selected_by(
            added.required_during_scheduling_ignored_during_execution if added else None
        )
        self._added_preferred = _preferred(added)
        self._memo = answers.memo_key(self.name, handle)
        self._mismatch = self.reasons.number(Code.UNRESOLVABLE, "node(s) didn't match Pod's node affinity/selector")
        self._enforced = self.reasons.number(Code.UNRESOLVABLE, "node(s) didn't match scheduler-enforced node affinity")

    def interests(self) -> Sequence[EventInterest]:
        return (EventInterest("Node", frozenset(("Add", "Label")), self._node_hint),)

    # Filter

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        compiled = self._compiled(pod.shape)
        if compiled.wanted.anything and self._added.anything:
            return answers.SKIP_FILTER
        if compiled.names is None:
            return answers.PASS_ALL
        if not compiled.names:
            return _CONFLICT
        rows = [row for name in compiled.names if (row := self.table.row(name)) is not None]
        return PreFilterResult(rows=np.array(sorted(rows), np.intp))

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        wanted = self._compiled(pod.shape).wanted
        some = answers.few(rows)
        if some is not None:
            return answers.reasons([self._filter_node(wanted, self.table.nodes[row]) for row in some])
        found: Reasons16 = np.where(wanted.select(self.table, rows), 0, self._mismatch).astype(np.int16)
        if not self._added.anything:
            found[~self._added.select(self.table, rows)] = self._enforced
        return found

    def _filter_node(self, wanted: RequiredNodes, node: Node | None) -> int:
        if node is None:
            return 0
        if not self._added.matches(node):
            return self._enforced
        return 0 if wanted.matches(node) else self._mismatch

    # Score

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        return SUCCESS if self._compiled(pod.shape).preferred else SKIP

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        """Sum of the weights of the terms that match."""
        preferred = self._compiled(pod.shape).preferred
        some = answers.few(rows)
        if some is not None:
            return answers.scores([_score_node(preferred, self.table.nodes[row]) for row in some])
        total: IntArray = np.zeros(count(rows, self.table.size), np.int64)
        for weight, term in preferred:
            total += select_term(self.table, term, rows) * weight
        return total

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        return default_normalize(scores)

    # The shape

    def _compiled(self, shape: Shape) -> _Compiled:
        found: _Compiled | None = shape.memo.get(self._memo)
        if found is None:
            found = shape.memo[self._memo] = _Compiled(shape.pod, self._added_preferred)
        return found

    def _node_hint(self, pod: PodInfo, old: Any, new: Any) -> bool:
        """The node matches now, and did not before."""
        node, before = answers.as_node(new), answers.as_node(old)
        if node is None:
            return True
        wanted = RequiredNodes.of(pod.pod)
        if not self._added.matches(node) or not wanted.matches(node):
            return False
        return before is None or not (wanted.matches(before) and self._added.matches(before))


def _preferred(affinity: Affinity | None) -> list[tuple[int, NodeSelectorTerm]]:
    terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity else []
    return [(one.weight, one.preference) for one in terms if one.weight]


def _score_node(preferred: list[tuple[int, NodeSelectorTerm]], node: Node | None) -> int:
    return 0 if node is None else sum(weight for weight, term in preferred if term_matches(term, node))
