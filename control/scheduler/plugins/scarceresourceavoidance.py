"""ScarceResourceAvoidance: avoids nodes with scarce resources for pods that do not request them (spec 05 §13.2)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from control.scheduler.config.args import ScarceResourceAvoidanceArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import MAX_SCORE, CycleState, Plugin, Reads
from control.scheduler.state.columns import IntArray, RowColumn, Rows
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Node


class ScarceResourceAvoidance(Plugin):
    """Nodes have few distinct sets of resource names, so the score is computed once per set."""

    name: ClassVar[str] = "ScarceResourceAvoidance"
    reads: ClassVar[Reads] = Reads.NODE

    def __init__(self, args: ScarceResourceAvoidanceArgs | None, handle: Handle) -> None:
        super().__init__(args or ScarceResourceAvoidanceArgs(), handle)
        self._scarce = frozenset((args or ScarceResourceAvoidanceArgs()).resources)
        self._kind: RowColumn = self.table.column(np.int32)
        """[row]: index of the node's resource names in `_kinds`."""
        self._kinds: list[frozenset[str]] = [frozenset()]
        self._numbers: dict[frozenset[str], int] = {frozenset(): 0}
        self._seen = 0
        self._memo = f"{self.name}/{handle.profile}"

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        self._catch_up()
        cached: IntArray | None = pod.shape.memo.get(self._memo)
        if cached is None or len(cached) < len(self._kinds):
            requested = frozenset(pod.shape.requests)
            cached = np.array([self._score(kind - requested) for kind in self._kinds], np.int64)
            pod.shape.memo[self._memo] = cached
        if isinstance(rows, slice):
            rows = slice(*rows.indices(self.table.size))
        scores: IntArray = cached[self._kind.data[rows]]
        return scores

    def _score(self, unused: frozenset[str]) -> int:
        scarce = unused & self._scarce
        return MAX_SCORE * (len(unused) - len(scarce)) // len(unused) if scarce else MAX_SCORE

    def _catch_up(self) -> None:
        table = self.table
        if self._seen == table.node_log.end:
            return
        changed = table.node_log.since(self._seen)
        self._seen = table.node_log.end
        for row in range(table.size) if changed is None else set(changed):
            self._kind.data[row] = self._number(table.nodes[row])

    def _number(self, node: Node | None) -> int:
        allocatable = node.status.allocatable if node is not None else {}
        names = frozenset(name for name, amount in allocatable.items() if name != "pods" and amount.value() > 0)
        number = self._numbers.get(names)
        if number is None:
            number = self._numbers[names] = len(self._kinds)
            self._kinds.append(names)
        return number
