"""TaintToleration: rejects nodes with untolerated taints, or lowers their score for PreferNoSchedule (spec 05 §4).

Nodes have few distinct sets of taints; each set is evaluated once per shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, Reads, default_normalize
from control.scheduler.framework.status import Code
from control.scheduler.plugins import results
from control.scheduler.state.columns import IntArray, Reasons16, RowArray, Rows
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.core.selectors import Taint, Toleration

UNTOLERATED: Final = "node(s) had untolerated taint(s)"
_FORBID: Final = ("NoSchedule", "NoExecute")
_AVOID: Final = "PreferNoSchedule"


@dataclass(slots=True)
class _TaintResults:
    """The results for a shape, by index of the taint set."""

    any_rejected: bool
    rejected: Reasons16
    disliked: IntArray
    """Number of untolerated PreferNoSchedule taints."""


class TaintToleration(Plugin):
    name = "TaintToleration"
    reads = Reads.NODE

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._memo = results.memo_key(self.name, handle)
        self._untolerated = self.reasons.number(Code.UNRESOLVABLE, UNTOLERATED)

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("Node", frozenset(("Add", "Taint")), _node_hint),
            EventInterest("UnscheduledPod", frozenset(("Toleration",)), _pod_hint),
        )

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        taint_results = self._results(pod.shape)
        if not taint_results.any_rejected:
            return results.passes(rows, self.table.size)
        return taint_results.rejected.take(self.table.taint_set[rows])

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        """Number of untolerated PreferNoSchedule taints."""
        return self._results(pod.shape).disliked.take(self.table.taint_set[rows])

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        return default_normalize(scores, reverse=True)

    def _results(self, shape: Shape) -> _TaintResults:
        sets = self.table.taint_sets
        cached: _TaintResults | None = shape.memo.get(self._memo)
        if cached is None or len(cached.disliked) < len(sets):
            tolerations = shape.pod.spec.tolerations
            soft = [toleration for toleration in tolerations if toleration.effect in ("", _AVOID)]
            rejected = [0 if tolerated(taints, tolerations) else self._untolerated for taints in sets]
            disliked = [
                sum(
                    taint.effect == _AVOID and not any(toleration.tolerates(taint) for toleration in soft)
                    for taint in taints
                )
                for taints in sets
            ]
            cached = _TaintResults(any(rejected), np.array(rejected, np.int16), np.array(disliked, np.int64))
            shape.memo[self._memo] = cached
        return cached


def tolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> bool:
    """Whether a pod with these tolerations may be placed on a node with `taints`."""
    return all(
        taint.effect not in _FORBID or any(toleration.tolerates(taint) for toleration in tolerations)
        for taint in taints
    )


def _node_hint(pod: PodInfo, old: Any, new: Any) -> bool:
    """Whether the node's taints are tolerated now and were not before."""
    node, before = results.as_node(new), results.as_node(old)
    if node is None:
        return True
    tolerations = pod.pod.spec.tolerations
    if before is not None and tolerated(before.spec.taints, tolerations):
        return False
    return tolerated(node.spec.taints, tolerations)


def _pod_hint(pod: PodInfo, old: Any, new: Any) -> bool:
    return results.own_change(pod, old, new) is not None
