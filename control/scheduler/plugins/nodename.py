"""NodeName: a pod that names its node is placed on no other node (spec 05 §4).

The name is not part of the pod's shape, so results are not cached. Pods without a node name skip the filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import Code
from control.scheduler.plugins import results
from control.scheduler.state.columns import Reasons16, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import selected


class NodeName(Plugin):
    name = "NodeName"
    reads = Reads.CLUSTER

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._other = self.reasons.number(Code.UNRESOLVABLE, "node(s) didn't match the requested node name")

    def interests(self) -> Sequence[EventInterest]:
        return (EventInterest("Node", frozenset(("Add",))),)

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        return results.PASS_ALL if pod.pod.spec.node_name else results.SKIP_FILTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        node_name = pod.pod.spec.node_name
        if not node_name:
            return results.passes(rows, self.table.size)
        reasons: Reasons16 = np.where(
            selected(rows, self.table.size) == self.table.rows.get(node_name, -1), 0, self._other
        )
        return reasons.astype(np.int16)
