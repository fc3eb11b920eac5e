"""NodeUnschedulable: only pods with a matching toleration are placed on cordoned nodes (spec 05 §4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import Code
from control.scheduler.plugins import results
from control.scheduler.state.columns import Reasons16, Rows
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.core.selectors import Taint

_TAINT: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


class NodeUnschedulable(Plugin):
    name = "NodeUnschedulable"
    reads = Reads.NODE

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._memo = results.memo_key(self.name, handle)
        self._cordoned = np.int16(self.reasons.number(Code.UNRESOLVABLE, "node(s) were unschedulable"))

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("Node", frozenset(("Add", "Taint")), _node_hint),
            EventInterest("UnscheduledPod", frozenset(("Toleration",)), _pod_hint),
        )

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        result: PreFilterResult | None = pod.shape.memo.get(self._memo)
        if result is None:
            result = results.SKIP_FILTER if tolerates(pod.shape.pod) else results.PASS_ALL
            pod.shape.memo[self._memo] = result
        return result

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        reasons: Reasons16 = self.table.unschedulable[rows] * self._cordoned
        return reasons


def tolerates(pod: Pod) -> bool:
    return any(toleration.tolerates(_TAINT) for toleration in pod.spec.tolerations)


def _node_hint(pod: PodInfo, old: Any, new: Any) -> bool:
    """The node is schedulable now and was not before."""
    node, before = results.as_node(new), results.as_node(old)
    if node is None:
        return True
    return not node.spec.unschedulable and (before is None or before.spec.unschedulable)


def _pod_hint(pod: PodInfo, old: Any, new: Any) -> bool:
    changed = results.own_change(pod, old, new)
    return changed is not None and tolerates(changed)
