"""NodeName: a pod that names its node goes nowhere else (spec 05 §4).

The name is no part of a pod's shape, so nothing may be remembered; a pod without one is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import Code
from control.scheduler.plugins import answers
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
        return answers.PASS_ALL if pod.pod.spec.node_name else answers.SKIP_FILTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        wanted = pod.pod.spec.node_name
        if not wanted:
            return answers.passes(rows, self.table.size)
        found: Reasons16 = np.where(selected(rows, self.table.size) == self.table.rows.get(wanted, -1), 0, self._other)
        return found.astype(np.int16)
