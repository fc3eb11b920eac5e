"""The plugin: decides at Filter and Reserve, writes device-allocated at PreBind (spec 06 §3).

Filter and Score read columns, exactly and for all rows. Reserve runs the whole rule for the chosen node and counts what
the pod gets; from then on the bound pod's annotation is the only record of it. A node without Device object passes: its
devices are left to the kubelet's device plugins, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from control.devices.allocate import NO_TEMPLATE
from control.devices.handoff import LOCKS, annotations_for, labels_for
from control.devices.holdings import PodDevices
from control.devices.needs import DeviceNeed
from control.devices.rating import DeviceStrategy
from control.devices.room import DeviceHolding
from control.devices.search import DevicesLacking
from control.scheduler.config.args import DeviceShareArgs
from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import (
    CycleState,
    EventInterest,
    Plugin,
    PreFilterResult,
    Reads,
    default_normalize,
)
from control.scheduler.framework.runtime import PluginRuntime
from control.scheduler.framework.status import SKIP, SUCCESS, PluginStatus, error, unresolvable, unschedulable
from control.scheduler.plugins import results
from control.scheduler.plugins.deviceshare import pages
from control.scheduler.plugins.deviceshare.alignment import NumaAlignment
from control.scheduler.plugins.deviceshare.annotation import allocated_text, resized_text
from control.scheduler.plugins.deviceshare.book import DeviceBook, need_of_shape
from control.scheduler.plugins.deviceshare.decision import StateDecisions
from control.scheduler.plugins.deviceshare.explaining import details
from control.scheduler.plugins.deviceshare.filtering import DeviceFilter
from control.scheduler.plugins.deviceshare.metrics import DeviceShareMetrics
from control.scheduler.plugins.deviceshare.nodelocks import NodeLocks
from control.scheduler.plugins.deviceshare.scoring import DeviceScore
from control.scheduler.plugins.deviceshare.sharing import SharingTemplates
from control.scheduler.state.columns import IntArray, Reasons16, RowArray, Rows
from control.scheduler.state.credit import Offer
from control.scheduler.state.pods import POD, PodInfo
from control.scheduler.state.table import selected
from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.crs.device import GPU
from koordlet.api.devicerequest import DeviceRequestError
from koordlet.api.encoding.wire import WireError

_DECISION: Final = "DeviceShare/decision"
MOST: Final = "MostAllocated"


class DeviceShare(Plugin):
    """See the module text."""

    name: ClassVar[str] = "DeviceShare"
    reads: ClassVar[Reads] = Reads.PODS

    def __init__(self, args: DeviceShareArgs | None, handle: Handle) -> None:
        super().__init__(args or DeviceShareArgs(), handle)
        self.args: DeviceShareArgs
        self.book = DeviceBook.of(handle)
        scoring = self.args.scoring_strategy
        strategy = DeviceStrategy(
            scoring.type == MOST, {resource.name: resource.weight for resource in scoring.resources}
        )
        shared = self.args.gpu_shared_resource_templates_config
        self._templates = SharingTemplates(shared, handle, self.book.refuse_templates, self.book.forget_decisions)
        self._decisions = StateDecisions(self.book, strategy, self._templates)
        self._score = DeviceScore(self.book, strategy)
        self._hands_off = handle.gates is not None and handle.gates.enabled("DevicePluginAdaption")
        self._resizes = handle.gates is not None and handle.gates.enabled("ResizePod")
        unsupported = self.args.gpu_share_unsupported_models
        self._filter = DeviceFilter(self.book, self.reasons, self._decisions, unsupported, hands_off=self._hands_off)
        self._locks = NodeLocks(handle)
        self.book.deciders[handle.profile] = self._on_trial
        self._alignment = NumaAlignment(
            self.book, self._decisions, handle, disabled=self.args.disable_device_numa_topology_alignment
        )
        if handle.client is not None:
            DeviceShareMetrics.once(handle.client.registry, self.book)

    def connect(self, runtime: PluginRuntime) -> None:
        super().connect(runtime)
        self._alignment.connect()

    def interests(self) -> Sequence[EventInterest]:
        return (
            EventInterest("AssignedPod", frozenset(("Delete", "ScaleDown"))),
            EventInterest("Device"),
            EventInterest("ConfigMap"),
            EventInterest("Node", frozenset(("Add", "Allocatable", "Label", "Annotation"))),
            EventInterest("UnscheduledPod", frozenset(("Label", "Update", "ScaleDown"))),
        )

    # Cycle

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        try:
            need = need_of_shape(pod.shape)
        except (DeviceRequestError, WireError) as failure:
            return PreFilterResult(unresolvable(str(failure)))
        if not need.requests:
            return results.SKIP_FILTER
        if self._templates.hopeless(need):
            return PreFilterResult(unresolvable(NO_TEMPLATE))
        self.book.sync()
        return results.PASS_ALL

    def filter(self, state: CycleState, pod: PodInfo, rows: Rows) -> Reasons16:
        self.book.sync()
        numbers = self._check(pod, rows)
        if state.credit is None or not numbers.any():
            return numbers
        chosen = selected(rows, self.table.size)
        for at in np.flatnonzero(state.credit.mask(chosen) & (numbers != 0)).tolist():
            if state.credit.offers(int(chosen[at])):  # the pod gets there what the node alone cannot give
                numbers[at] = 0
        return numbers

    def refuses_offer(self, state: CycleState, pod: PodInfo, row: int, offer: Offer) -> str:
        """Also for a reservation without devices: then the node itself must serve the pod."""
        need = self._need_or_none(pod)
        if need is None:
            return ""
        self.book.sync()
        number = self._filter.check_row(need, row, self._numa(pod, row, offer), offer)
        return self.reasons.status(number).message if number else ""

    def _check(self, pod: PodInfo, rows: Rows) -> Reasons16:
        """[row]: 0, or why the node itself cannot serve the pod."""
        need = need_of_shape(pod.shape)
        some = results.scalar_rows(rows)
        if some is not None:
            return results.reasons([self._filter.check_row(need, row, self._numa(pod, row)) for row in some])
        every = selected(rows, self.table.size)
        out = self._filter.check(need, every)
        at = self._alignment.policy_positions(pod, every)
        if len(at):
            first, kinds = self._alignment.kinds(every[at])
            some = every[at[first]].tolist()
            numbers = [self._filter.check_row(need, row, self._numa(pod, row)) for row in some]
            out[at] = np.array(numbers, np.int16)[kinds]
        return out

    def rejection_details(self, pod: PodInfo, row: int) -> Sequence[str]:
        self.book.sync()
        state = self.book.state(row)
        return [] if state is None else [*details(state, need_of_shape(pod.shape))]

    def pre_score(self, state: CycleState, pod: PodInfo, rows: RowArray) -> PluginStatus:
        return SKIP if self._need_or_none(pod) is None else SUCCESS

    def score(self, state: CycleState, pod: PodInfo, rows: Rows) -> IntArray:
        need = self._need_or_none(pod)
        if need is None:
            return results.zeros(rows, self.table.size)
        self.book.sync()
        some = results.scalar_rows(rows)
        if some is not None:
            return results.scores([self._score.score_row(need, row) for row in some])
        return self._score.scores(need, selected(rows, self.table.size))

    def normalize(self, state: CycleState, pod: PodInfo, rows: RowArray, scores: IntArray) -> IntArray:
        return default_normalize(scores)

    def reserve(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        need = self._need_or_none(pod)
        if need is None:
            return SUCCESS
        self.book.sync()
        taken = state.taken
        try:
            holding = self._decisions.of_row(need, row, self._numa(pod, row, taken), taken)
        except DevicesLacking as lacking:
            return unschedulable(str(lacking))
        if holding:
            state.data[_DECISION] = holding
            self.book.allocations.assign(pod, PodDevices(holding, "" if taken is None else taken.owner_of))
        return SUCCESS

    def unreserve(self, state: CycleState, pod: PodInfo, row: int) -> None:
        self.book.allocations.unreserve(pod)

    async def pre_bind(self, state: CycleState, pod: PodInfo, row: int, changed: Pod) -> PluginStatus:
        holding: DeviceHolding | None = state.data.get(_DECISION)
        annotations = dict(changed.metadata.annotations)
        if holding is None:
            # A pending pod's annotation is its owner's: on a bound pod it would count as the scheduler's.
            annotations.pop(names.ANNOTATION_DEVICE_ALLOCATED, None)
        else:
            inventory = self.book.inventory(row)
            annotations[names.ANNOTATION_DEVICE_ALLOCATED] = allocated_text(holding, inventory)
            if self._resizes and pod.subject != POD:
                try:
                    annotations[names.ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE] = resized_text(holding, annotations)
                except WireError as failure:
                    return error(str(failure))
            if self._hands_off:
                lock = LOCKS.get(inventory.vendor) if GPU in holding and pod.subject == POD else None
                status = SUCCESS if lock is None else await self._locks.take(self.table.names[row], lock, pod)
                if not status.ok:
                    return status
                annotations |= annotations_for(holding, inventory, int(self.handle.clock.now() * 1e9))
                labels = changed.metadata.labels
                changed.metadata.labels = {**labels, **labels_for(holding, labels, self.table.names[row])}
        changed.metadata.annotations = annotations
        return SUCCESS

    def _on_trial(self, pod: PodInfo) -> PodDevices | None:
        """For nominated pods, and for gangs that are planned pod by pod."""
        need = self._need_or_none(pod)
        if need is None:
            return None
        self.book.sync()
        try:
            holding = self._decisions.of_row(need, pod.row, self._numa(pod, pod.row))
        except DevicesLacking:
            return None
        return PodDevices(holding) if holding else None

    def _numa(self, pod: PodInfo, row: int, offer: Offer | None = None) -> frozenset[int] | None:
        """The NUMA nodes that the devices must be on."""
        return self._alignment.affinity(pod, row, offer)

    def _need_or_none(self, pod: PodInfo) -> DeviceNeed | None:
        """None if the pod needs no devices."""
        try:
            need = need_of_shape(pod.shape)
        except (DeviceRequestError, WireError):  # rejected at PreFilter
            return None
        return need if need.requests else None

    # Pages

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        return {"nodeDeviceSummaries": self.pages, "nodeDeviceSummaries/{name}": self.page}

    def pages(self) -> dict[str, Any]:
        """Every node with a Device object."""
        self.book.sync()
        rows = ((name, self.table.row(name)) for name in sorted(self.book.inventories))
        return {name: pages.page(self.book, self.table, row) for name, row in rows if row is not None}

    def page(self, name: str) -> dict[str, Any]:
        """Raises LookupError for a node without Device object."""
        row = self.table.row(name)
        self.book.sync()
        if row is None or name not in self.book.inventories:
            raise LookupError(f"cannot find node {name}")
        return pages.page(self.book, self.table, row)
