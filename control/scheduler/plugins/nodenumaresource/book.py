"""The topology of every node and what pods hold there, kept in columns and for single nodes (spec 06 §2.2, §2.3).

One book per table, shared by all profiles. Holdings follow the pods that the table counts, trials included. A row whose
node, topology or pods changed is only marked; `sync` computes it before it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary, proxy

from control.numa.affinity import NodeRoom, ZoneRoom
from control.numa.holdings import IDLE, SHARED, SINGLE, Holding, NodeHoldings
from control.numa.report import NumaReport, read_report
from control.numa.reserved import within
from control.reservation.matching import allocated_uid
from control.scheduler.framework.handle import Handle
from control.scheduler.plugins.nodenumaresource.annotation import RefusedAllocation, holding_of
from control.scheduler.plugins.nodenumaresource.columns import (
    BIND_CODES,
    MAX_RESOURCES,
    NUMA_CODES,
    UNPUBLISHED,
    NumaColumns,
)
from control.scheduler.plugins.nodenumaresource.needs import ProvidedHints
from control.scheduler.plugins.nodenumaresource.ratios import INVALID, UNIT, amplify, ratios_of
from control.scheduler.plugins.nodenumaresource.roomstates import NodePolicies, RoomState, RoomStates
from control.scheduler.state.allocations import Allocations
from control.scheduler.state.credit import Offer
from control.scheduler.state.pods import POD, PodInfo, Shape
from control.scheduler.state.table import NodeTable
from koordlet.api import names
from koordlet.api.annotations.node import cpu_bind_policy, numa_topology_policy
from koordlet.api.annotations.reservation import ignores_reservations
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding.quoting import quoted
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger

log = get_logger(__name__)

MAX_REFS: Final = 1
"""How many pods may share a CPU."""
STATUS_CODES: Final = {IDLE: 0, SINGLE: 1, SHARED: 2}
EMPTY: Final = NumaReport()
TOPOLOGY, RATIO, ALLOCATION = "topology", "ratio", "allocation"
KINDS: Final = (TOPOLOGY, RATIO, ALLOCATION)
"""Kinds of malformed input."""


@dataclass(frozen=True)
class OfferedRoom:
    """`status`: by position of the zone."""

    room: NodeRoom
    status: tuple[str, ...]


class NumaBook:
    """See the module text. A `PodListener` through `allocations`."""

    _of: ClassVar[WeakKeyDictionary[NodeTable, NumaBook]] = WeakKeyDictionary()
    """Values must not hold their keys, so a book has only a proxy of its table."""

    @classmethod
    def of(cls, handle: Handle) -> NumaBook:
        """The book of the handle's table."""
        book = cls._of.get(handle.table)
        if book is None:
            book = cls._of[handle.table] = cls(handle)
        return book

    @classmethod
    def existing(cls, handle: Handle) -> NumaBook | None:
        """None if no profile has the plugin."""
        return cls._of.get(handle.table)

    def __init__(self, handle: Handle) -> None:
        self._table: NodeTable = proxy(handle.table)
        self.columns = NumaColumns(handle.table)
        self.deciders: dict[str, Callable[[PodInfo], Holding | None]] = {}
        """By profile: what a pod without a node would get on the row that it is counted on in a trial."""
        self.affinities: dict[str, Callable[[PodInfo, int, Offer | None], frozenset[int] | None]] = {}
        """By profile: the zones that all resources of a pod must be from on a row; None: any. With an offer: if the pod
        takes it."""
        self.decided: tuple[str, int, frozenset[int] | None] = ("", -1, None)
        """(uid, row, zones) of the last decision by which a pod counts."""
        self.providers: dict[str, Callable[[Shape], ProvidedHints | None]] = {}
        """By profile: the hints of another plugin for pods of a shape; None: it has none."""
        self.before_sync: list[Callable[[], None]] = []
        """Called by `sync`: providers call `forget` for rows whose reservations changed."""
        self.malformed: Counter[str] = Counter()
        """Kind of input -> how often it was malformed or refused."""
        self.reports: dict[str, NumaReport] = {}
        """By node. They may be older than the node."""
        self.holdings: dict[int, NodeHoldings] = {}
        self._ratios: dict[int, Mapping[str, int]] = {}
        """By row: ratios by which zone amounts are multiplied."""
        self.zone_ids: dict[int, tuple[int, ...]] = {}
        """By row."""
        self.demanding = 0
        """Number of nodes with a CPU bind policy, a NUMA topology policy or a ratio: they concern every pod."""
        self._demands: set[int] = set()
        self.offers: dict[int, dict[Any, Any]] = {}
        """By row: what `decision` caches about reservations; cleared when the row changes."""
        self._equal = RoomStates()
        self._states: dict[int, RoomState] = {}
        """By row, as of the last `sync`."""
        self._changed: set[int] = set()
        self._node_position = 0
        self.allocations: Allocations[Holding] = Allocations(self._read, self._apply)
        handle.table.listen(self.allocations)
        if handle.objects is not None:
            handle.objects.informer(NodeResourceTopology).add_handler(
                self.topology_seen, lambda _, new: self.topology_seen(new), self.topology_gone
            )

    # Input

    def topology_seen(self, topology: NodeResourceTopology) -> None:
        name = topology.metadata.name
        report = self.reports[name] = self._limited(read_report(topology))
        for error in report.errors:
            self._refuse(TOPOLOGY, f"NodeResourceTopology {name}", error)
        self._touch(name)

    def _limited(self, report: NumaReport) -> NumaReport:
        """The report without resources beyond the limit, so that columns and rooms have the same resources."""
        named = {name for zone in report.zones for name in zone.total}
        ignored = {name for name in sorted(named) if self.columns.resource(name) is None}
        for name in sorted(ignored):
            self._refuse(TOPOLOGY, f"resource {quoted(name)}", f"zones have more than {MAX_RESOURCES} resources")
        if not ignored:
            return report
        kept = ({name: amount for name, amount in zone.total.items() if name not in ignored} for zone in report.zones)
        zones = (replace(zone, total=total) for zone, total in zip(report.zones, kept, strict=True))
        return replace(report, zones=tuple(zones))

    def topology_gone(self, topology: NodeResourceTopology) -> None:
        if self.reports.pop(topology.metadata.name, None) is not None:
            self._touch(topology.metadata.name)

    def _touch(self, node: str) -> None:
        row = self._table.rows.get(node)
        if row is not None:
            self._changed.add(row)
            self._table.touch(row)

    def assign(self, pod: PodInfo, holding: Holding) -> None:
        """The pod, which is counted, gets `holding`."""
        self.allocations.assign(pod, holding)

    def _read(self, pod: PodInfo) -> Holding | None:
        if not pod.pod.spec.node_name:  # a trial; the annotation would be its owner's
            decide = self.deciders.get(pod.shape.scheduler)
            return None if decide is None else decide(pod)
        annotations = pod.pod.metadata.annotations
        if names.ANNOTATION_RESOURCE_STATUS not in annotations:
            return None
        try:
            holding = holding_of(annotations, pod.requests)
            if holding is None or pod.subject != POD:
                return holding
            return replace(holding, reservation=allocated_uid(pod.pod))
        except RefusedAllocation as error:
            self._refuse(ALLOCATION, f"pod {pod.key}", f"{names.ANNOTATION_RESOURCE_STATUS}: {error}")
            return None

    def _apply(self, row: int, pod: PodInfo, holding: Holding, sign: int) -> None:
        """A CPU that two bound pods claim is not free."""
        holdings = self.holdings.setdefault(row, NodeHoldings())
        self._changed.add(row)
        if sign > 0:
            if holdings.claimed_by_others(pod.uid, holding) and not ignores_reservations(pod.shape.labels):
                text = f"{names.ANNOTATION_RESOURCE_STATUS}: another pod of the node holds some of its CPUs"
                self._refuse(ALLOCATION, f"pod {pod.key}", text)
            holdings.add(pod.uid, holding)
            return
        holdings.remove(pod.uid)
        if not holdings.given:
            del self.holdings[row]

    def _refuse(self, kind: str, what: str, reason: str) -> None:
        self.malformed[kind] += 1
        log.once(f"{kind}:{what}", "Ignoring a malformed or refused part", object=what, reason=reason)

    # Rows

    def sync(self) -> None:
        """Compute the rows that changed."""
        for prepare in self.before_sync:
            prepare()
        table, node_log = self._table, self._table.node_log
        if self._node_position != node_log.end:
            rows = node_log.since(self._node_position)
            self._node_position = node_log.end
            self._changed.update(range(table.size) if rows is None else rows)
        if self._changed:
            changed, self._changed = self._changed, set()
            for row in changed:
                self._compute(row)

    def forget(self, row: int) -> None:
        """What reservations of the row give, by a provider, changed."""
        self.offers.pop(row, None)

    def report(self, row: int) -> NumaReport:
        return self.reports.get(self._table.names[row], EMPTY)

    def state(self, row: int) -> RoomState:
        """Call `sync` before."""
        return self._states[row]

    def policies(self, row: int) -> NodePolicies:
        """Call `sync` before."""
        return self._states[row].policies

    def _policies(self, row: int) -> NodePolicies:
        node = self._table.nodes[row]
        labels: Mapping[str, str] = {} if node is None else node.metadata.labels
        report = self.report(row)
        policy = numa_topology_policy(labels, report.policy)
        return (
            cpu_bind_policy(labels, report.kubelet_policy, report.kubelet_options),
            policy if policy in NUMA_CODES else "",
            labels.get(names.LABEL_NUMA_ALLOCATE_STRATEGY, ""),
        )

    def room(self, row: int) -> NodeRoom:
        """What is free on a node. Call `sync` before."""
        return self._states[row].room

    def offered(self, row: int, offer: Offer) -> OfferedRoom | None:
        """What a pod may use of a node through reservations; None if they hold neither CPUs nor zones there."""
        holdings = self.holdings.get(row)
        reserved = [] if holdings is None else [holdings.given[uid] for uid in offer.uids if uid in holdings.given]
        if holdings is None or not any(reserved):
            return None
        left = holdings.left(offer.uids)
        with holdings.without(offer.uids):
            room = replace(self._room(row), preferred=left.cpus)
            status = self._zone_status(row)
        return OfferedRoom(within(room, reserved[0], left, offer.restricted) if offer.restricted else room, status)

    def _room(self, row: int) -> NodeRoom:
        report = self.report(row)
        holdings = self.holdings.get(row) or NodeHoldings()
        layout, ratios = report.layout, self._ratios.get(row, {})
        free = layout.cpus & ~report.reserved & ~holdings.full(MAX_REFS)
        cpu_ratio = ratios.get("cpu", 0)
        zones = []
        for zone in report.zones:
            cpus = layout.nodes.get(zone.id, 0)
            used = holdings.zones.get(zone.id, {})
            bound = 1000 * (holdings.cpus & cpus).bit_count()
            extra = 1000 * (holdings.undivided & cpus).bit_count() + amplify(bound, cpu_ratio) - bound
            total = zone.total if report.amplified else {n: amplify(a, ratios.get(n, 0)) for n, a in zone.total.items()}
            available = {n: a - used.get(n, 0) - (extra if n == "cpu" else 0) for n, a in total.items()}
            zones.append(ZoneRoom(zone.id, available, total, free & cpus))
        return NodeRoom(layout, free, zones, holdings.held())

    def ratios(self, row: int) -> dict[str, float]:
        """The amplification ratios of a node."""
        return {name: ratio / UNIT for name, ratio in self._ratios.get(row, {}).items()}

    def pod(self, row: int, uid: str) -> PodInfo:
        return self._table.pods[row][uid]

    def zone_status(self, row: int) -> tuple[str, ...]:
        """By position of the zone. Call `sync` before."""
        return self._states[row].status

    def _zone_status(self, row: int) -> tuple[str, ...]:
        report, holdings = self.report(row), self.holdings.get(row)
        status = {} if holdings is None else holdings.status(report.layout)
        return tuple(status.get(zone.id, IDLE) for zone in report.zones)

    def _compute(self, row: int) -> None:
        columns = self.columns
        self.offers.pop(row, None)
        columns.ratio.data[row] = self._read_ratios(row)
        policies = self._policies(row)
        bind, numa, _ = policies
        columns.bind_policy.data[row] = BIND_CODES.get(bind, 0)
        columns.numa_policy.data[row] = NUMA_CODES.get(numa, 0)
        if bind in BIND_CODES or numa or columns.ratio.data[row]:
            self._demands.add(row)
        else:
            self._demands.discard(row)
        self.demanding = len(self._demands)
        state = self._states[row] = self._equal.of(self._room(row), self._zone_status(row), policies)
        room, layout = state.room, state.room.layout
        whole, first = layout.whole_cores(room.free), layout.first_of_cores(room.free)
        columns.cpus_per_core.data[row] = layout.cpus_per_core
        columns.cpus.data[:, row] = room.free.bit_count(), whole.bit_count(), first.bit_count()
        holdings = self.holdings.get(row)
        columns.bound.data[row] = 0 if holdings is None else holdings.cpus.bit_count()
        columns.zones.data[row] = len(room.zones)
        self.zone_ids[row] = tuple(zone.id for zone in room.zones)
        columns.zone_total.data[:, :, row] = UNPUBLISHED
        for at, (zone, code) in enumerate(zip(room.zones, state.status, strict=True)):
            columns.zone_status.data[at, row] = STATUS_CODES[code]
            cpus = zone.cpus
            columns.zone_cpus.data[at, :, row] = (
                cpus.bit_count(),
                (whole & cpus).bit_count(),
                (first & cpus).bit_count(),
            )
            for name, total in zone.total.items():
                index = columns.resources[name]
                columns.zone_total.data[at, index, row] = total
                columns.zone_available.data[at, index, row] = max(0, zone.available[name])

    def _read_ratios(self, row: int) -> int:
        """The cpu ratio of a row, and its ratios for zones."""
        node = self._table.nodes[row]
        self._ratios.pop(row, None)
        if node is None or names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO not in node.metadata.annotations:
            return 0
        try:
            ratios = ratios_of(node.metadata.annotations)
        except WireError as error:
            self._refuse(RATIO, f"node {node.metadata.name}", str(error))
            return INVALID
        self._ratios[row] = ratios
        return ratios.get("cpu", 0)
