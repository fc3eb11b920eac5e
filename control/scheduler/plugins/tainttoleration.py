"""TaintToleration: nodes whose taints the pod doesn't tolerate are rejected, or put behind (spec 05 §4).

Nodes have few distinct sets of taints; each is judged once a shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, Reads, default_normalize
from control.scheduler.framework.status import Code
from control.scheduler.plugins import answers
from control.scheduler.state.columns import IntArray, Reasons16, RowArray, Rows
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.core.selectors import Taint, Toleration

UNTOLERATED: Final = "node(s) had untolerated taint(s)"
_FORBID: Final = ("NoSchedule", "NoExecute")
_AVOID: Final = "PreferNoSchedule"


@dataclass(slots=True)
class _Verdicts:
    """By number of a set of taints."""

    any_rejected: bool
    rejected: Reasons16
    disliked: IntArray


class TaintToleration(Plugin):
    name = "TaintToleration"
    reads = Reads.NODE

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._memo = answers.memo_key(self.name, handle)
        self._untolerated = self.reasons.number(Code.UNRESOLVABLE, UNTOLERATED)

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("Node", frozenset(("Add", "Taint")), _node_hint),
            EventInterest("UnscheduledPod", frozenset(("Toleration",)), _pod_hint),
        )

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        verdicts = self._verdicts(pod.shape)
        if not verdicts.any_rejected:
            return answers.passes(rows, self.table.size)
        return verdicts.rejected.take(self.table.taint_set[rows])

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        """Untolerated taints that ask to be avoided."""
        return self._verdicts(pod.shape).disliked.take(self.table.taint_set[rows])

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        return default_normalize(scores, reverse=True)

    def _verdicts(self, shape: Shape) -> _Verdicts:
        sets = self.table.taint_sets
        found: _Verdicts | None = shape.memo.get(self._memo)
        if found is None or len(found.disliked) < len(sets):
            tolerations = shape.pod.spec.tolerations
            soft = [one for one in tolerations if one.effect in ("", _AVOID)]
            rejected = [0 if tolerated(taints, tolerations) else self._untolerated for taints in sets]
            disliked = [
                sum(taint.effect == _AVOID and not any(one.tolerates(taint) for one in soft) for taint in taints)
                for taints in sets
            ]
            found = _Verdicts(any(rejected), np.array(rejected, np.int16), np.array(disliked, np.int64))
            shape.memo[self._memo] = found
        return found


def tolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> bool:
    """Whether nothing in `taints` keeps a pod with these tolerations off the node."""
    return all(taint.effect not in _FORBID or any(one.tolerates(taint) for one in tolerations) for taint in taints)


def _node_hint(pod: PodInfo, old: Any, new: Any) -> bool:
    """The node's taints are tolerated now, and were not before."""
    node, before = answers.as_node(new), answers.as_node(old)
    if node is None:
        return True
    tolerations = pod.pod.spec.tolerations
    if before is not None and tolerated(before.spec.taints, tolerations):
        return False
    return tolerated(node.spec.taints, tolerations)


def _pod_hint(pod: PodInfo, old: Any, new: Any) -> bool:
    return answers.own_change(pod, old, new) is not None
