"""The cycle of reserve pods: node and policies of other reservations, and the pods that they take over (spec 06 §4.5,
§4.9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from control.reservation import preallocation
from control.reservation.model import ReservationModel
from control.scheduler.config.args import ReservationArgs
from control.scheduler.framework.plugin import CycleState, PreFilterResult, Reasons
from control.scheduler.framework.status import SUCCESS, Code, PluginStatus, unresolvable, unschedulable
from control.scheduler.plugins import results
from control.scheduler.plugins.reservation.annotating import AllocatedWriter
from control.scheduler.plugins.reservation.book import ReservationBook
from control.scheduler.plugins.reservation.fitting import Fitting
from control.scheduler.plugins.reservation.preallocation import NONE_FITS, PreAllocation, pre_allocating
from control.scheduler.state.columns import IntArray, Reasons16, RowArray, Rows
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import selected
from koordlet.api import names

OTHER_NODE: Final = "node(s) didn't match the nodeName specified by reservation"
OTHER_POLICY: Final = "node(s) reservation allocate policy conflict"
_TAKEN_OVER: Final = "Reservation/taken over"
_WRITTEN: Final = "Reservation/written to"


class ReservePods:
    """Methods have the contracts of those of `Plugin`."""

    def __init__(
        self, book: ReservationBook, fitting: Fitting, args: ReservationArgs, reasons: Reasons, writer: AllocatedWriter
    ) -> None:
        self._book = book
        self._table = book.table
        self._fitting = fitting
        self._config = args.pre_allocation_config
        self._reasons = reasons
        self._writer = writer
        self._other_node = reasons.number(Code.UNRESOLVABLE, OTHER_NODE)
        self._other_policy = reasons.number(Code.UNRESOLVABLE, OTHER_POLICY)

    def before_pre_filter(self, state: CycleState, pod: PodInfo) -> None:
        model = self._pre_allocating(pod)
        if model is not None and not preallocation.refusal(model, cluster_mode=True):
            state.credit = PreAllocation(self._book, self._fitting, self._config, pod, model)
            state.variant = (pod.uid, self._book.rooms[pod.uid].revision)

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        model = self._pre_allocating(pod)
        if model is not None:
            refused = preallocation.refusal(model, cluster_mode=self._config.enable_cluster_mode)
            return PreFilterResult(unresolvable(refused)) if refused else results.PASS_ALL
        wanted_node = pod.shape.annotations.get(names.ANNOTATION_RESERVATION_NODE)
        return results.PASS_ALL if wanted_node or self._book.held else results.SKIP_FILTER

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        table = self._table
        chosen = selected(rows, table.size)
        numbers = np.zeros(len(chosen), np.int16)
        node = pod.shape.annotations.get(names.ANNOTATION_RESERVATION_NODE)
        if node:
            numbers[chosen != table.rows.get(node, -1)] = self._other_node
        own = self._book.rooms.get(pod.uid)  # a pending pod in operating mode, which is Aligned, has no entry
        default = own is not None and own.model is not None and own.model.policy == ""
        over = taking_over(state)
        for at, row in enumerate(chosen.tolist()):
            if numbers[at]:
                continue
            if row in self._book.held:
                others = (room.model for room in self._book.held[row].values() if room.uid != pod.uid)
                if any(model is not None and (model.policy == "") != default for model in others):
                    numbers[at] = self._other_policy
                    continue
            if over is not None and over.chosen(row) is None:
                helps, texts = over.reasons(row)
                code = Code.UNSCHEDULABLE if helps else Code.UNRESOLVABLE
                numbers[at] = self._reasons.number(code, *texts)
        return numbers

    def scores(self, state: CycleState) -> bool:
        """Whether nodes have scores."""
        over = taking_over(state)
        return over is not None and over.model.several_pre_allocated

    def score(self, state: CycleState, rows: RowArray) -> IntArray:
        over = taking_over(state)
        if over is None:
            return np.zeros(len(rows), np.int64)
        values = [preallocation.score_of(len(over.chosen(row) or ())) for row in rows.tolist()]
        return np.array(values, np.int64)

    def nominate(self, state: CycleState, row: int) -> PluginStatus:
        over = taking_over(state)
        if over is None:
            return SUCCESS
        chosen = over.chosen(row)
        if chosen is None:
            return unschedulable(NONE_FITS)
        state.data[_TAKEN_OVER] = chosen
        return SUCCESS

    def reserve(self, state: CycleState, pod: PodInfo) -> None:
        """The pods that are taken over count as owners at once."""
        for owner in self._taken_over(state):
            self._book.owners.assign(owner, pod.uid)

    def unreserve(self, state: CycleState, pod: PodInfo) -> None:
        for owner in self._taken_over(state):
            if owner.row >= 0:
                self._book.owners.release(owner)
        for owner in state.data.pop(_WRITTEN, ()):
            self._writer.remove(owner, pod.uid, bound=True)

    async def pre_bind(self, state: CycleState, pod: PodInfo) -> PluginStatus:
        """Write the annotation of each pod that is taken over. What was written is removed if the binding fails."""
        written: list[PodInfo] = state.data.setdefault(_WRITTEN, [])
        for owner in self._taken_over(state):
            written.append(owner)
            status = await self._writer.add(owner, pod.name, pod.uid)
            if not status.ok:
                return status
        return SUCCESS

    def _pre_allocating(self, pod: PodInfo) -> ReservationModel | None:
        return pre_allocating(self._book.rooms.get(pod.uid))

    def _taken_over(self, state: CycleState) -> Sequence[PodInfo]:
        chosen: Sequence[PodInfo] = state.data.get(_TAKEN_OVER, ())
        return chosen


def taking_over(state: CycleState) -> PreAllocation | None:
    """The cycle's pre-allocation."""
    return state.credit if isinstance(state.credit, PreAllocation) else None
