"""The plugin: decides at Filter and Reserve, writes resource-status at PreBind (spec 06 §2.3, §2.4).

Filter and Score read columns, exactly and for all rows. Reserve runs the whole rule for the chosen node and counts what
the pod gets; from then on the bound pod's annotation is the only record of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from control.numa.accumulator import AllocationFailed
from control.numa.holdings import Holding
from control.scheduler.config.args import NodeNUMAResourceArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import SUCCESS, PluginStatus, error, unresolvable, unschedulable
from control.scheduler.plugins import results
from control.scheduler.plugins.nodenumaresource import pages
from control.scheduler.plugins.nodenumaresource.annotation import completed_spec, status_text
from control.scheduler.plugins.nodenumaresource.book import NumaBook
from control.scheduler.plugins.nodenumaresource.decision import NumaDecision, RowDecisions
from control.scheduler.plugins.nodenumaresource.explaining import details
from control.scheduler.plugins.nodenumaresource.filtering import NOT_INTEGER, NumaFilter
from control.scheduler.plugins.nodenumaresource.metrics import NumaCounters
from control.scheduler.plugins.nodenumaresource.needs import NumaNeed, need_of
from control.scheduler.plugins.nodenumaresource.scoring import NumaScore
from control.scheduler.state.columns import IntArray, Reasons16, Rows
from control.scheduler.state.pods import POD, PodInfo
from control.scheduler.state.table import selected
from koordlet.api import names
from koordlet.api.annotations.node import NUMA_LEAST_ALLOCATED, NUMA_MOST_ALLOCATED
from koordlet.api.annotations.scheduling import RESOURCE_SPEC
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import WireError

_DECISION: Final = "NodeNUMAResource/decision"


class NodeNUMAResource(Plugin):
    """See the module text."""

    name: ClassVar[str] = "NodeNUMAResource"
    reads: ClassVar[Reads] = Reads.PODS

    def __init__(self, args: NodeNUMAResourceArgs | None, handle: Handle) -> None:
        super().__init__(args or NodeNUMAResourceArgs(), handle)
        self.args: NodeNUMAResourceArgs
        self._memo = results.memo_key(self.name, handle)
        self.book = NumaBook.of(handle)
        self._score = NumaScore(self.book, self.table, self.args.scoring_strategy, self.args.numa_scoring_strategy)
        most = self.args.numa_scoring_strategy.type == NUMA_MOST_ALLOCATED
        strategy = NUMA_MOST_ALLOCATED if most else NUMA_LEAST_ALLOCATED
        self._decisions = RowDecisions(self.book, strategy, self._score.of_set)
        self._filter = NumaFilter(self.book, self.table, self.reasons, self._decisions)
        self.book.deciders[handle.profile] = self._on_trial
        if handle.client is not None:
            NumaCounters.once(handle.client.registry, self.book.malformed)

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("AssignedPod", frozenset(("Delete", "ScaleDown"))),
            EventInterest("NodeResourceTopology"),
            EventInterest("Node", frozenset(("Add", "Allocatable", "Label", "Annotation"))),
            EventInterest("UnscheduledPod", frozenset(("Label", "Update", "ScaleDown"))),
        )

    # Cycle

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        if pod.subject != POD:
            return results.SKIP_FILTER
        try:
            need = self._need(pod)
        except WireError as failure:
            return PreFilterResult(error(str(failure)))
        if need.bind and not need.whole:
            return PreFilterResult(unresolvable(NOT_INTEGER))
        self.book.sync()
        if not need.amounts or not (need.bind or need.numa_policy or self.book.demanding):
            return results.SKIP_FILTER
        return results.PASS_ALL

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        self.book.sync()
        need = self._need(pod)
        some = results.scalar_rows(rows)
        if some is not None:
            numbers = [self._filter.check_row(need, row) for row in some]
            if None not in numbers:
                return results.reasons([number for number in numbers if number is not None])
        return self._filter.check(need, selected(rows, self.table.size))

    def rejection_details(self, pod: PodInfo, row: int) -> Sequence[str]:
        self.book.sync()
        return [*details(self.book, self._decisions, self._need(pod), row)]

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        self.book.sync()
        need = self._need(pod)
        if not need.amounts:
            return results.zeros(rows, self.table.size)
        some = results.scalar_rows(rows)
        if some is not None:
            values = [self._score.score_row(need, row, self._decisions) for row in some]
            if None not in values:
                return results.scores([value for value in values if value is not None])
        return self._score.scores(need, selected(rows, self.table.size), self._decisions)

    def reserve(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        if pod.subject != POD:  # a reservation holds amounts; its owners get CPUs when they are bound
            return SUCCESS
        self.book.sync()
        try:
            decision = self._decisions.decide(self._need(pod), row)
        except AllocationFailed as failure:
            return unschedulable(str(failure))
        if decision.holding.cpus or decision.holding.zones:
            state.data[_DECISION] = decision
            self.book.assign(pod, decision.holding)
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        self.book.allocations.release(pod)

    async def pre_bind(self, state: CycleState, pod: PodInfo, row: int, changed: Pod) -> PluginStatus:
        decision: NumaDecision | None = state.data.get(_DECISION)
        annotations = dict(changed.metadata.annotations)
        if decision is None:
            # A pending pod's annotation is its owner's: on a bound pod it would count as the scheduler's.
            annotations.pop(names.ANNOTATION_RESOURCE_STATUS, None)
        else:
            annotations[names.ANNOTATION_RESOURCE_STATUS] = status_text(decision.holding)
            if decision.holding.cpus:
                spec = RESOURCE_SPEC.get(annotations)
                policy, required = decision.request.rules.policy, decision.request.required
                complete = completed_spec(spec, policy, required=required)
                if complete != spec:
                    annotations[names.ANNOTATION_RESOURCE_SPEC] = RESOURCE_SPEC.text(complete)
        changed.metadata.annotations = annotations
        return SUCCESS

    def _on_trial(self, pod: PodInfo) -> Holding | None:
        """For nominated pods, and for gangs that are planned pod by pod."""
        self.book.sync()
        try:
            holding = self._decisions.decide(self._need(pod), pod.row).holding
        except (AllocationFailed, WireError):
            return None
        return holding if holding.cpus or holding.zones else None

    def _need(self, pod: PodInfo) -> NumaNeed:
        """Raises WireError."""
        need: NumaNeed | None = pod.shape.memo.get(self._memo)
        if need is None:
            need = pod.shape.memo[self._memo] = need_of(pod.shape, self.args.default_cpu_bind_policy)
        return need

    # Pages

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        return {"nodes/{name}": self.node_page}

    def node_page(self, name: str, **query: str) -> dict[str, Any]:
        """Raises RuntimeError for an unknown node and for one without a valid topology."""
        row = self.table.row(name)
        if row is None:
            raise RuntimeError(f"cannot find node {name}")
        self.book.sync()
        return pages.page(self.book, row, name)
