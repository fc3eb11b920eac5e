"""The plugin: reservations are scheduled like pods, and their owners take room of them (spec 06 §4).

`book` counts what is used, `match` decides which reservations are for a pod, `fitting` what fits and which is taken.
Until a reservation exists, each method returns after one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from control.reservation.matching import NO_CONDITIONS, PodConditions, conditions, owned_by
from control.reservation.model import RESERVATION
from control.scheduler.config.args import ReservationArgs
from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import (
    MAX_SCORE,
    CycleState,
    EventInterest,
    Plugin,
    PostFilterResult,
    PreFilterResult,
    Reads,
    default_normalize,
)
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.status import (
    SKIP,
    SUCCESS,
    Code,
    PluginStatus,
    error,
    unresolvable,
    unschedulable,
)
from control.scheduler.framework.victimpolicy import ReservationVictims
from control.scheduler.plugins import results
from control.scheduler.plugins.defaultpreemption.preemption import Preemption
from control.scheduler.plugins.reservation import pages
from control.scheduler.plugins.reservation.annotating import AllocatedWriter
from control.scheduler.plugins.reservation.book import ReservationBook, ReservedRoom, holds_room
from control.scheduler.plugins.reservation.explaining import considered
from control.scheduler.plugins.reservation.failing import PREFIX, reasons
from control.scheduler.plugins.reservation.fitting import Fitting, by_node
from control.scheduler.plugins.reservation.match import MatchingRows, PodMatch
from control.scheduler.plugins.reservation.offering import SCORE_BITS, Offering, everything, offer_of
from control.scheduler.plugins.reservation.owners import EventOwners
from control.scheduler.plugins.reservation.reservepods import ReservePods
from control.scheduler.plugins.reservation.selectorindex import LabelIndex, SelectorIndexMetrics
from control.scheduler.plugins.reservation.subject import shared_subject
from control.scheduler.state.columns import IntArray, Reasons16, RowArray, Rows
from control.scheduler.state.pods import POD, PodInfo
from control.scheduler.state.table import selected
from koordlet.api.annotations.reservation import ALLOCATED, ReservationAllocated
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import WireError
from koordlet.api.pages.placement import ConsideredReservation

NO_MATCH: Final = "node(s) no reservations match reservation affinity"
NO_ROOM: Final = "node(s) no reservation(s) to meet the requirements"
FIRST_BY_ORDER: Final = 1000
"""The score, before scaling, of the node with the smallest order."""


class ReservationPlugin(Plugin):
    """See the module text."""

    name: ClassVar[str] = "Reservation"
    reads: ClassVar[Reads] = Reads.PODS

    def __init__(self, args: ReservationArgs | None, handle: Handle) -> None:
        super().__init__(args or ReservationArgs(), handle)
        self.args: ReservationArgs
        self.subject = shared_subject(handle)
        self.book: ReservationBook = self.subject.book
        gates = handle.gates
        skips_node_fit = gates is not None and gates.enabled("SkipReservationFitsNode")
        self._fitting = Fitting(self.book, self.args, skips_node_fit=skips_node_fit)
        self._offering = Offering(self._fitting)
        self._event_owners = EventOwners()
        self._node_labels = gates is None or not gates.enabled("OmitNodeLabelsForReservation")
        metrics = None if handle.client is None else SelectorIndexMetrics.of(handle.client.registry)
        settings = self.args.reservation_selector_index
        self._labels = LabelIndex(settings, self.book, node_labels=self._node_labels, metrics=metrics)
        self._rows = MatchingRows(self.book, handle.table, self._labels)
        self._annotations = AllocatedWriter(handle)
        self._reserve_pods = ReservePods(self.book, self._fitting, self.args, self.reasons, self._annotations)
        self._preemption = self._preempting(handle) if self.args.enable_preemption else None
        self._memo = results.memo_key(self.name, handle)
        self.book.deciders[handle.profile] = self._on_trial
        self._no_match = self.reasons.number(Code.UNRESOLVABLE, NO_MATCH)

    def _preempting(self, handle: Handle) -> Preemption:
        """Room that a victim used in a reservation returns to that reservation, because the book counts trials."""
        return Preemption(
            handle,
            self.name,
            ReservationVictims(),
            percentage=self.args.min_candidate_nodes_percentage,
            absolute=self.args.min_candidate_nodes_absolute,
        )

    def connect(self, runtime: PluginRuntime) -> None:
        super().connect(runtime)
        if self._preemption is not None:
            self._preemption.connect(runtime)
        self._offering.connect(runtime.profile.plugins.values())

    # Queue

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("AssignedPod", frozenset(("Delete", "ScaleDown"))),
            EventInterest("Reservation", hint=self._may_help),
            EventInterest("UnscheduledPod", frozenset(("Update", "Label", "ScaleDown"))),
            EventInterest("Node", frozenset(("Add", "Allocatable", "Label"))),
        )

    def _may_help(self, pod: PodInfo, old: Any, new: Any) -> bool:
        if new is not None and new is self.subject.unchanged:
            return False
        if pod.subject != POD:
            return True
        return any(
            reservation is not None and owned_by(self._event_owners.of(reservation), pod.pod)
            for reservation in (old, new)
        )

    # PreFilter

    def before_pre_filter(self, state: CycleState, pod: PodInfo) -> PluginStatus:
        pod_conditions = self._conditions(pod)
        if isinstance(pod_conditions, str):
            return error(pod_conditions)
        if pod_conditions is NO_CONDITIONS and not self.book.index:
            return SUCCESS
        if holds_room(pod):
            self._reserve_pods.before_pre_filter(state, pod)
            return SUCCESS
        match = self._match(state, pod)
        state.variant = match.variant
        if len(match.rows):
            state.credit = match
            match.offers = lambda row: self._offering.offers(state, match, row)
            if _looks_at_pods(pod):
                rooms = [room for row in match.rows.tolist() for room in match.on(row)]
                state.undo.append(self.book.lift(rooms))
        return SUCCESS

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        if holds_room(pod):
            return self._reserve_pods.pre_filter(state, pod)
        match = self._known_match(state, pod)
        if match is None:
            return results.SKIP_FILTER
        if match.required:
            if not len(match.rows):
                return PreFilterResult(unresolvable(NO_MATCH))
            return PreFilterResult(rows=match.rows)
        return results.PASS_ALL if len(match.rows) and not match.conditions.ignores else results.SKIP_FILTER

    def _conditions(self, pod: PodInfo) -> PodConditions | str:
        """What pods of this shape demand, or which annotation is malformed."""
        pod_conditions: PodConditions | str | None = pod.shape.memo.get(self.name)
        if pod_conditions is None:
            try:
                pod_conditions = NO_CONDITIONS if holds_room(pod) else conditions(pod.shape.pod)
            except WireError as failure:
                pod_conditions = str(failure)
            pod.shape.memo[self.name] = pod_conditions
        return pod_conditions

    def _match(self, state: CycleState, pod: PodInfo) -> PodMatch:
        """The match of the pod, computed once per cycle."""
        match = self._known_match(state, pod)
        if match is None:
            pod_conditions = self._conditions(pod)
            pod_conditions = NO_CONDITIONS if isinstance(pod_conditions, str) else pod_conditions
            groups = () if pod_conditions.ignores else self.book.index.matching(pod)
            match = PodMatch(self.book, pod, pod_conditions, groups, node_labels=self._node_labels)
            if groups or pod_conditions.ignores:
                self._rows.fill(match)
            state.data[self.name] = match
        return match

    def _known_match(self, state: CycleState, pod: PodInfo) -> PodMatch | None:
        match: PodMatch | None = state.data.get(self.name)
        return match if match is not None and match.pod is pod else None

    # Filter

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        if holds_room(pod):
            return self._reserve_pods.filter(state, pod, rows)
        match = self._match(state, pod)
        some = results.scalar_rows(rows)
        if some is not None:
            none = self._no_match if match.required else 0
            pairs = zip(some, match.rows_of(some), strict=True)
            return results.reasons([self._reject(state, match, row) if possible else none for row, possible in pairs])
        chosen = selected(rows, self.table.size)
        numbers = np.full(len(chosen), self._no_match if match.required else 0, np.int16)
        for at in np.flatnonzero(match.mask(chosen)).tolist():
            numbers[at] = self._reject(state, match, int(chosen[at]))
        return numbers

    def _reject(self, state: CycleState, match: PodMatch, row: int) -> int:
        """0, or the reason why neither a reservation of the row nor the node itself fits (spec 06 §4.5)."""
        if match.conditions.ignores:
            return 0  # NodeResourcesFit decides
        rooms = match.on(row)
        if not rooms:
            return self._no_match if match.required else 0
        texts: list[str] = []
        short_names: set[str] = set()
        for room in rooms:
            if not self._fitting.usable(match, room):
                continue
            fit = self._fitting.with_room(match, row, room, rooms)
            if fit.ok:
                refusal = self._offering.refusal(state, match, room)
                if not refusal:
                    return 0
                texts.append(PREFIX + refusal)
            short_names.update(fit.by_node)
            texts += [short.text(figures=bool(match.conditions.name)) for short in fit.in_room]
        if match.required:
            texts += map(by_node, sorted(short_names))
            return self.reasons.number(Code.UNSCHEDULABLE, *(texts or [NO_ROOM]))
        short = sorted(short_names) or self._fitting.short_on_node(match, row, rooms)
        return self.reasons.number(Code.UNSCHEDULABLE, *map(by_node, short)) if short else 0

    # PostFilter

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        match = self._known_match(state, pod)
        counts = [] if match is None else reasons(match, failure)
        if self._preemption is None:
            return PostFilterResult(unschedulable(*counts))
        result = self._preemption.post_filter(state, pod, failure)
        if result.status.code is not Code.UNSCHEDULABLE:
            return result
        return PostFilterResult(unschedulable(*counts, *result.status.reasons), result.nominated)

    def after_post_filter(
        self, state: CycleState, pod: PodInfo, failure: FitError, result: PostFilterResult | None
    ) -> None:
        """A reservation of the pod that is not offered now may be offered later, whatever rejects the pod now."""
        match = self._known_match(state, pod)
        if match is not None and match.groups:
            failure.narrowed_by |= {self.name}

    # Score

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        if holds_room(pod):
            return SUCCESS if self._reserve_pods.scores(state) else SKIP
        match = self._known_match(state, pod)
        return SKIP if match is None or not len(match.rows) or match.conditions.ignores else SUCCESS

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        """[len(rows)]: the score of the reservation that the pod would take, below its order."""
        if holds_room(pod):
            return self._reserve_pods.score(state, selected(rows, self.table.size))
        match = self._match(state, pod)
        some = results.scalar_rows(rows)
        if some is not None:
            pairs = zip(some, match.rows_of(some), strict=True)
            return results.scores(
                [self._offering.rate(state, match, row) if possible else 0 for row, possible in pairs]
            )
        chosen = selected(rows, self.table.size)
        scores = np.zeros(len(chosen), np.int64)
        for at in np.flatnonzero(match.mask(chosen)).tolist():
            scores[at] = self._offering.rate(state, match, int(chosen[at]))
        return scores

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        if holds_room(pod):
            return scores
        if scores.min(initial=0) >= 0 and scores.max(initial=0) <= MAX_SCORE:  # no order
            return default_normalize(scores)
        orders = scores >> SCORE_BITS
        plain: IntArray = scores & ((1 << SCORE_BITS) - 1)
        ordered = orders != 0
        if ordered.any():
            plain[ordered & (orders == orders[ordered].min())] = FIRST_BY_ORDER
        return np.minimum(default_normalize(plain), MAX_SCORE)

    # After the choice

    def nominate(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        if holds_room(pod):
            return self._reserve_pods.nominate(state, row)
        match = self._known_match(state, pod)
        if match is None or (not len(match.rows) and not match.required):
            return SUCCESS
        if match.conditions.ignores:
            if match.on(row):
                state.taken = everything(match, row)
            return SUCCESS
        best = self._offering.best(state, match, row)
        if best is not None:
            state.data[_taken(pod)], state.taken = best[0], offer_of(best[0])
        elif match.required:
            return unschedulable(NO_MATCH)
        elif rooms := match.on(row):
            short = self._fitting.short_on_node(match, row, rooms)  # what they hold is not for the pod now
            return unschedulable(*map(by_node, short)) if short else SUCCESS
        return SUCCESS

    def reserve(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        self._reserve_pods.reserve(state, pod)
        room: ReservedRoom | None = state.data.get(_taken(pod))
        if room is not None:
            if not room.offered:
                return unschedulable(f"{PREFIX}is not available any more")
            self.book.owners.assign(pod, room.uid)
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        self._reserve_pods.unreserve(state, pod)
        self.book.owners.unreserve(pod)
        written: ReservedRoom | None = state.data.pop(_written(pod), None)
        if written is not None:
            self._annotations.remove(pod, written.uid)

    async def pre_bind(self, state: CycleState, pod: PodInfo, row: int, changed: Pod) -> PluginStatus:
        if pod.subject != POD:
            return await self._reserve_pods.pre_bind(state, pod)
        room: ReservedRoom | None = state.data.get(_taken(pod))
        model = None if room is None else room.model
        if room is None or model is None or model.terminal:
            match = self._known_match(state, pod)
            if match is not None and match.required:
                return unschedulable(NO_MATCH)
            self.book.owners.release(pod)
            changed.metadata.annotations.pop(ALLOCATED.key, None)  # of an earlier attempt, or its author's
            return SUCCESS
        changed.metadata.annotations = ALLOCATED.put(
            changed.metadata.annotations, ReservationAllocated(name=model.name, uid=model.uid)
        )
        state.data[_written(pod)] = room
        return SUCCESS

    async def apply_patch(self, state: CycleState, pod: PodInfo, original: Pod, changed: Pod) -> PluginStatus:
        if pod.subject != RESERVATION:
            return SKIP
        return await self.subject.patch(pod, original, changed)

    async def bind(self, state: CycleState, pod: PodInfo, node: str) -> PluginStatus:
        if pod.subject != RESERVATION:
            return SKIP
        return await self.subject.bind(pod, node)

    def _on_trial(self, pod: PodInfo) -> str:
        """For nominated pods, and for gangs that are planned pod by pod."""
        state = CycleState(trial=True)
        best = self._offering.best(state, self._match(state, pod), pod.row)
        return "" if best is None else best[0].uid

    # Process

    def considered(self, state: CycleState, pod: PodInfo, limit: int) -> list[ConsideredReservation]:
        """The reservations that a pod could use, after `state` was prepared for it."""
        match = self._known_match(state, pod)
        if match is None:
            return []
        return considered(
            match, self._fitting, self.table, limit, lambda room: self._offering.refusal(state, match, room)
        )

    async def stop(self) -> None:
        await self._annotations.stop()

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "nodeReservations/{node}": lambda node: pages.on_node(self.book, self.table, node),
            "reservationSelectorIndex": lambda **query: self._labels.page(detail=query.get("detail") == "true"),
        }


def _taken(pod: PodInfo) -> str:
    return f"Reservation/taken/{pod.uid}"


def _written(pod: PodInfo) -> str:
    return f"Reservation/written/{pod.uid}"


def _looks_at_pods(pod: PodInfo) -> bool:
    """Whether other pods on nodes matter to the pod: then the reserve pods of its own reservations must not."""
    spec = pod.shape.pod.spec
    affinity = spec.affinity
    return bool(spec.topology_spread_constraints) or (
        affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    )
