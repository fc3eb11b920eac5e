"""The plugin: decides at Filter and Reserve, writes resource-status at PreBind (spec 06 §2.3, §2.4).

Filter and Score read columns, exactly and for all rows. Reserve runs the whole rule for the chosen node and counts what
the pod gets; from then on the bound pod's annotation is the only record of it. A reservation holds CPUs and zones like
a pod, and its owners get theirs of these (spec 06 §2.9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

import numpy as np

from control.numa.accumulator import AllocationFailed
from control.numa.holdings import Holding
from control.scheduler.config.args import NodeNUMAResourceArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import CycleState, EventInterest, Plugin, PreFilterResult, Reads
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, error, unresolvable, unschedulable
from control.scheduler.plugins import results
from control.scheduler.plugins.nodenumaresource import pages
from control.scheduler.plugins.nodenumaresource.annotation import (
    RefusedAllocation,
    completed_spec,
    holding_of,
    status_text,
)
from control.scheduler.plugins.nodenumaresource.book import NumaBook
from control.scheduler.plugins.nodenumaresource.decision import NumaDecision, RowDecisions
from control.scheduler.plugins.nodenumaresource.explaining import details
from control.scheduler.plugins.nodenumaresource.filtering import NOT_INTEGER, NumaFilter
from control.scheduler.plugins.nodenumaresource.metrics import NumaCounters
from control.scheduler.plugins.nodenumaresource.needs import NumaNeed, need_of
from control.scheduler.plugins.nodenumaresource.scoring import NumaScore
from control.scheduler.plugins.schedulinghint import designates
from control.scheduler.state.columns import IntArray, Reasons16, Rows
from control.scheduler.state.credit import Offer
from control.scheduler.state.pods import POD, PodInfo, Shape
from control.scheduler.state.table import selected
from koordlet.api import names
from koordlet.api.annotations.node import NUMA_LEAST_ALLOCATED, NUMA_MOST_ALLOCATED
from koordlet.api.annotations.scheduling import RESOURCE_SPEC
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import WireError

_DECISION: Final = "NodeNUMAResource/decision"
OUTSIDE_SCOPE: Final = "pod has a nominated reservation but cannot be allocated within its NUMA scope"


class NodeNUMAResource(Plugin):
    """See the module text."""

    name: ClassVar[str] = "NodeNUMAResource"
    reads: ClassVar[Reads] = Reads.PODS

    def __init__(self, args: NodeNUMAResourceArgs | None, handle: Handle) -> None:
        super().__init__(args or NodeNUMAResourceArgs(), handle)
        self.args: NodeNUMAResourceArgs
        self._memo = results.memo_key(self.name, handle)
        self._needs: WeakValueDictionary[object, NumaNeed] = WeakValueDictionary()
        """One need for equal demands: pods of different quotas and gangs have different shapes, and decisions are
        remembered by need."""
        self.book = NumaBook.of(handle)
        self._score = NumaScore(self.book, self.table, self.args.scoring_strategy, self.args.numa_scoring_strategy)
        most = self.args.numa_scoring_strategy.type == NUMA_MOST_ALLOCATED
        strategy = NUMA_MOST_ALLOCATED if most else NUMA_LEAST_ALLOCATED
        self._decisions = RowDecisions(self.book, strategy, self._score.of_set)
        self._filter = NumaFilter(self.book, self.table, self.reasons, self._decisions)
        self.book.deciders[handle.profile] = self._on_trial
        self.book.affinities[handle.profile] = self._affinity
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
        numbers = self._check(self._need(pod), rows)
        if state.credit is None or not numbers.any():
            return numbers
        chosen = selected(rows, self.table.size)
        for at in np.flatnonzero(state.credit.mask(chosen) & (numbers != 0)).tolist():
            if state.credit.offers(int(chosen[at])):  # the pod gets there what the node alone cannot give
                numbers[at] = 0
        return numbers

    def _check(self, need: NumaNeed, rows: Rows) -> Reasons16:
        """[row]: 0, or why the node itself cannot serve the pod."""
        numbers = self._check_room(need, rows)
        if need.designated is None:
            return numbers
        numbers, chosen = numbers.copy(), selected(rows, self.table.size)
        for at in np.flatnonzero(numbers == 0).tolist():
            try:
                self._decisions.decide(need, int(chosen[at]))
            except AllocationFailed as failure:
                numbers[at] = self.reasons.number(Code.UNSCHEDULABLE, str(failure))
        return numbers

    def _check_room(self, need: NumaNeed, rows: Rows) -> Reasons16:
        """`_check` for needs that designate nothing; for others necessary."""
        some = results.scalar_rows(rows)
        if some is not None:
            numbers = [self._filter.check_row(need, row) for row in some]
            if None not in numbers:
                return results.reasons([number for number in numbers if number is not None])
        return self._filter.check(need, selected(rows, self.table.size))

    def refuses_offer(self, state: CycleState, pod: PodInfo, row: int, offer: Offer) -> str:
        """Also for a reservation without CPUs and zones: then the node itself must serve the pod."""
        if self.name in state.skip_filter:
            return ""
        self.book.sync()
        need = self._need(pod)
        limited = "cpu" in offer.restricted or not self.book.columns.ratio.data.item(row)
        if not limited or self._decisions.offered(need, row, offer) is None:
            number = int(self._check(need, np.array([row], np.intp))[0])
            return self.reasons.status(number).message if number else ""
        try:
            self._decisions.decide(need, row, offer)
        except AllocationFailed as failure:
            return str(failure)
        return ""

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
        self.book.sync()
        need, taken = self._need(pod), state.taken
        try:
            decision = self._decide(pod, row, taken)
        except AllocationFailed as failure:
            offered = taken is not None and self._decisions.offered(need, row, taken) is not None
            return unschedulable(OUTSIDE_SCOPE if offered else str(failure))
        if decision.holding:
            state.data[_DECISION] = decision
            owner_of = "" if taken is None else taken.owner_of
            self.book.assign(pod, replace(decision.holding, reservation=owner_of))
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        self.book.allocations.unreserve(pod)

    async def pre_bind(self, state: CycleState, pod: PodInfo, row: int, changed: Pod) -> PluginStatus:
        decision: NumaDecision | None = state.data.get(_DECISION)
        annotations = dict(changed.metadata.annotations)
        if decision is None:
            # A pending pod's annotation is its owner's: on a bound pod it would count as the scheduler's.
            annotations.pop(names.ANNOTATION_RESOURCE_STATUS, None)
        else:
            annotations[names.ANNOTATION_RESOURCE_STATUS] = status_text(decision.holding)
            if decision.holding.cpus and pod.subject == POD:
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
            holding = self._decide(pod, pod.row).holding
        except (AllocationFailed, WireError):
            return None
        return holding or None

    def _decide(self, pod: PodInfo, row: int, offer: Offer | None = None) -> NumaDecision:
        """Raises AllocationFailed or WireError. From here on the pod counts, so its zones are noted."""
        need = self._need(pod)
        self.book.decided = (pod.uid, row, self._decisions.affinity(need, row, offer))
        return self._decisions.decide(need, row, offer)

    def _affinity(self, pod: PodInfo, row: int, offer: Offer | None = None) -> frozenset[int] | None:
        """The zones that all resources of a pod must be from on a row; None: any."""
        uid, decided_row, zones = self.book.decided
        if pod.row == row and (uid, decided_row) == (pod.uid, row):
            return zones
        self.book.sync()
        return self._decisions.affinity(self._need(pod), row, offer)

    def _need(self, pod: PodInfo) -> NumaNeed:
        """Raises WireError."""
        need: NumaNeed | None = pod.shape.memo.get(self._memo)
        if need is None:
            provide = self.book.providers.get(self.handle.profile)
            need = need_of(pod.shape, self.args.default_cpu_bind_policy)
            if designates(pod.shape, self.name):
                need = replace(need, designated=_designated(pod.shape))
            if provide is not None:
                need = replace(need, provider=provide(pod.shape))
            need = self._needs.setdefault(need.key, need)
            pod.shape.memo[self._memo] = need
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


def _designated(shape: Shape) -> Holding | None:
    """What resource-status of a pending pod designates. Raises WireError."""
    try:
        return holding_of(shape.annotations, shape.requests)
    except RefusedAllocation as refused:
        raise WireError(str(refused), where=names.ANNOTATION_RESOURCE_STATUS) from refused
