"""The devices of every node and what pods hold of them, kept in columns and as numbered states (spec 06 §3.2).

One book per table, shared by all profiles. Holdings follow the pods that the table counts, trials included. A row whose
node, Device or pods changed is only marked; `sync` computes it before it is read.

Equal nodes have equal states: the same devices with the same amounts in use. Decisions depend on nothing else, so they
are remembered by the number of the state and not by node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Final
from weakref import WeakKeyDictionary, WeakValueDictionary, proxy

from control.devices.holdings import NodeDeviceHoldings, PodDevices, UsedKey
from control.devices.inventory import DeviceInventory, read_inventory
from control.devices.needs import DeviceNeed, need_of
from control.devices.partitions import table_of
from control.devices.room import NO_USE, DeviceHolding, DeviceState, DeviceTraits
from control.reservation.matching import allocated_uid
from control.reservation.reservepod import TEMPLATE_GPU_RESOURCES
from control.scheduler.framework.handle import Handle
from control.scheduler.plugins.deviceshare.annotation import RefusedDevices, holding_of
from control.scheduler.plugins.deviceshare.columns import RESOURCES, DeviceColumns, TypeBlock
from control.scheduler.plugins.schedulinghint import designates
from control.scheduler.state.allocations import Allocations
from control.scheduler.state.credit import Offer
from control.scheduler.state.pods import POD, PodInfo, Shape
from control.scheduler.state.table import NodeTable
from koordlet.api import names
from koordlet.api.annotations.device import PARTITION_HONOR, gpu_partition_policy
from koordlet.api.annotations.reservation import ignores_reservations
from koordlet.api.core.podresources import pod_requests
from koordlet.api.crs.device import FPGA, GPU, RDMA, Device
from koordlet.api.devicerequest import GPU_RESOURCES, DeviceRequestError
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger

log = get_logger(__name__)

DEVICE, ALLOCATION, CONFLICT, TEMPLATES = "device", "allocation", "conflict", "templates"
KINDS: Final = (DEVICE, ALLOCATION, CONFLICT, TEMPLATES)
"""Kinds of input that is malformed, refused or contradicts other input."""
MAX_STATES: Final = 1 << 15
"""States that are numbered; then numbers start again."""
LIMITING: Final = {GPU: GPU_RESOURCES, RDMA: {names.RESOURCE_RDMA}, FPGA: {names.RESOURCE_FPGA}}
"""Type -> resources, of which a Restricted reservation restricts the type."""
_NEED: Final = "DeviceShare/need"
_DEVICE_RESOURCES: Final = GPU_RESOURCES | {names.RESOURCE_RDMA, names.RESOURCE_FPGA}
_NEED_ANNOTATIONS: Final = (
    names.ANNOTATION_DEVICE_ALLOCATE_HINT,
    names.ANNOTATION_DEVICE_JOINT_ALLOCATE,
    names.ANNOTATION_GPU_PARTITION_SPEC,
)
_needs: Final[WeakValueDictionary[object, DeviceNeed]] = WeakValueDictionary()
"""By what `need_of` reads."""
EMPTY: Final = NodeDeviceHoldings()


class DeviceBook:
    """See the module text. A `PodListener` through `allocations`."""

    _of: ClassVar[WeakKeyDictionary[NodeTable, DeviceBook]] = WeakKeyDictionary()
    """Values must not hold their keys, so a book has only a proxy of its table."""

    @classmethod
    def of(cls, handle: Handle) -> DeviceBook:
        """The book of the handle's table."""
        book = cls._of.get(handle.table)
        if book is None:
            book = cls._of[handle.table] = cls(handle)
        return book

    def __init__(self, handle: Handle) -> None:
        self._table: NodeTable = proxy(handle.table)
        self.columns = DeviceColumns(handle.table)
        self.deciders: dict[str, Callable[[PodInfo], PodDevices | None]] = {}
        """By profile: what a pod without a node would get on the row that it is counted on in a trial."""
        self.changed_rows: list[Callable[[int], None]] = []
        """Called for each row that `sync` computed."""
        self.malformed: Counter[str] = Counter()
        """Kind of input -> how often it was malformed or refused."""
        self.inventories: dict[str, DeviceInventory] = {}
        """By node. They may be older than the node, and outlive the Device while the node exists."""
        self._gone: set[str] = set()
        """Nodes whose Device is gone."""
        self.holdings: dict[int, NodeDeviceHoldings] = {}
        self._layouts: dict[object, int] = {}
        """Everything of a state but its uses -> number."""
        self._numbers: dict[object, int] = {}
        """(layout, key of the uses) -> number of the state."""
        self.states: dict[int, DeviceState] = {}
        """By number."""
        self._blocks: dict[tuple[int, str, UsedKey | None], TypeBlock] = {}
        """(layout, type, key of its uses) -> columns."""
        self.generation = 0
        """Grows when remembered decisions are void: the numbers start again, or templates changed."""
        self._changed: set[int] = set()
        self._node_position = 0
        self.allocations: Allocations[PodDevices] = Allocations(self._read, self._apply)
        handle.table.listen(self.allocations)
        if handle.objects is not None:
            handle.objects.informer(Device).add_handler(
                self.device_seen, lambda _, new: self.device_seen(new), self.device_gone
            )

    # Input

    def device_seen(self, device: Device) -> None:
        name = device.metadata.name
        inventory = self.inventories[name] = read_inventory(device)
        self._gone.discard(name)
        for error in inventory.errors:
            self._refuse(DEVICE, f"Device {name}", error)
        row = self._touch(name)
        holdings = None if row is None else self.holdings.get(row)
        if row is not None and holdings is not None:
            for uid, holding in holdings.given.items():
                for reason in EMPTY.conflicts(uid, holding, inventory):
                    self._refuse(CONFLICT, f"pod {self._table.pods[row][uid].key}", reason)

    def device_gone(self, device: Device) -> None:
        name = device.metadata.name
        inventory = self.inventories.get(name)
        if inventory is None:
            return
        if self._table.row(name) is None:
            del self.inventories[name]
        else:
            self.inventories[name] = inventory.without_devices()
            self._gone.add(name)
        self._touch(name)

    def _touch(self, node: str) -> int | None:
        row = self._table.rows.get(node)
        if row is not None:
            self._changed.add(row)
            self._table.touch(row)
        return row

    def _read(self, pod: PodInfo) -> PodDevices | None:
        if not pod.pod.spec.node_name:  # a trial; the annotation would be its owner's
            decide = self.deciders.get(pod.shape.scheduler)
            return None if decide is None else decide(pod)
        annotations = pod.pod.metadata.annotations
        if names.ANNOTATION_DEVICE_ALLOCATED not in annotations:
            return None
        try:
            holding = holding_of(annotations, need_of_shape(pod.shape))
            if holding is None:
                return None
            return PodDevices(holding, allocated_uid(pod.pod) if pod.subject == POD else "")
        except (RefusedDevices, DeviceRequestError, WireError) as error:
            self._refuse(ALLOCATION, f"pod {pod.key}", f"{names.ANNOTATION_DEVICE_ALLOCATED}: {error}")
            return None

    def _apply(self, row: int, pod: PodInfo, holding: PodDevices, sign: int) -> None:
        """What two bound pods claim is not free until both are gone."""
        holdings = self.holdings.setdefault(row, NodeDeviceHoldings())
        self._changed.add(row)
        if sign > 0:
            ignores = ignores_reservations(pod.shape.labels)
            for reason in () if ignores else holdings.conflicts(pod.uid, holding, self.inventory(row)):
                self._refuse(CONFLICT, f"pod {pod.key}", f"{names.ANNOTATION_DEVICE_ALLOCATED}: {reason}")
            holdings.add(pod.uid, holding)
            return
        holdings.remove(pod.uid)
        if not holdings.given:
            del self.holdings[row]

    def refuse_templates(self, what: str, reason: str) -> None:
        self._refuse(TEMPLATES, what, reason)

    def forget_decisions(self) -> None:
        """What decides about every node changed."""
        self.generation += 1
        for name in self.inventories:
            self._touch(name)

    def _refuse(self, kind: str, what: str, reason: str) -> None:
        self.malformed[kind] += 1
        log.once(f"{kind}:{what}", "Devices: malformed, refused or contradictory input", object=what, reason=reason)

    # Rows

    def sync(self) -> None:
        """Compute the rows that changed."""
        table, node_log = self._table, self._table.node_log
        if self._node_position != node_log.end:
            rows = node_log.since(self._node_position)
            self._node_position = node_log.end
            self._changed.update(range(table.size) if rows is None else rows)
            for name in [name for name in self._gone if table.row(name) is None]:
                self._gone.discard(name)
                self.inventories.pop(name, None)
        if len(self._numbers) > MAX_STATES or len(self._layouts) > MAX_STATES:
            for numbers in (self._numbers, self._layouts, self.states, self._blocks):
                numbers.clear()
            self.columns.state.data[:] = 0
            self.generation += 1
            self._changed.update(range(table.size))
        if not self._changed:
            return
        changed_rows, self._changed = self._changed, set()
        for row in changed_rows:
            self._compute(row)
            for changed in self.changed_rows:
                changed(row)

    def inventory(self, row: int) -> DeviceInventory:
        return self.inventories.get(self._table.names[row], NO_DEVICES)

    def state(self, row: int) -> DeviceState | None:
        """None: the node has no Device object. Call `sync` before."""
        return self.states.get(self.columns.state.data.item(row))

    def offered(self, row: int, offer: Offer) -> int | None:
        """The number of the state in which the pod may use the reservations of an offer; None if they hold no devices.
        Call `sync` before."""
        holdings, number = self.holdings.get(row), self.columns.state.data.item(row)
        if holdings is None or not number or not any(uid in holdings.given for uid in offer.uids):
            return None
        reserved = [holdings.given[uid].devices for uid in offer.uids if uid in holdings.given]
        left = holdings.left(offer.uids)
        with holdings.without(offer.uids):
            uses, used = holdings.sums.uses(), tuple(holdings.sums.keys().items())
        kinds = {kind for devices in reserved for kind in devices}
        preferred = {
            kind: frozenset(device.minor for devices in reserved for device in devices.get(kind, ())) for kind in kinds
        }
        limits = {kind: left.uses().get(kind, NO_USE) for kind in kinds if offer.restricted & LIMITING.get(kind, set())}
        state = self.states[number]
        key = (
            "offer",
            self._layouts[state.inventory.layout, state.traits],
            used,
            tuple(sorted(preferred.items(), key=lambda item: item[0])),
            tuple((kind, left.keys().get(kind)) for kind in sorted(limits)),
        )
        state_number = self._numbers.get(key)
        if state_number is None:
            state_number = self._numbers[key] = len(self._numbers) + 1
            self.states[state_number] = replace(state, uses=uses, preferred=preferred, limits=limits)
        return state_number

    def _compute(self, row: int) -> None:
        inventory = self.inventories.get(self._table.names[row])
        if inventory is None:
            if self.columns.state.data[row]:
                self.columns.clear(row)
            return
        node = self._table.nodes[row]
        labels = {} if node is None else node.metadata.labels
        traits = DeviceTraits(
            labels.get(names.LABEL_GPU_VENDOR, ""),
            labels.get(names.LABEL_GPU_MODEL, ""),
            labels.get(names.LABEL_GPU_ISOLATION_PROVIDER, ""),
            gpu_partition_policy(labels) == PARTITION_HONOR,
        )
        holdings = self.holdings.get(row, EMPTY)
        layout = self._layouts.setdefault((inventory.layout, traits), len(self._layouts) + 1)
        uses = holdings.sums.keys()
        key = (layout, tuple(uses.items()))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers) + 1
            self.states[number] = DeviceState(inventory, traits, holdings.sums.uses())
        if self.columns.state.data[row] != number:
            state = self.states[number]
            blocks = {kind: self._block(layout, kind, uses.get(kind), state) for kind in RESOURCES}
            self.columns.put(row, number, traits, blocks, honors=table_of(state)[1])

    def _block(self, layout: int, kind: str, uses: UsedKey | None, state: DeviceState) -> TypeBlock:
        block = self._blocks.get((layout, kind, uses))
        if block is None:
            block = self._blocks[layout, kind, uses] = TypeBlock.of(state, kind)
        return block


NO_DEVICES: Final = DeviceInventory()


def need_of_shape(shape: Shape) -> DeviceNeed:
    """Raises DeviceRequestError or WireError."""
    need: DeviceNeed | None = shape.memo.get(_NEED)
    if need is None:
        requests, template = pod_requests(shape.pod), shape.annotations.get(TEMPLATE_GPU_RESOURCES)
        if template is not None:  # a tenant who writes this annotation only gets less than the pod requests
            dropped = GPU_RESOURCES.difference(template.split(","))
            requests = {name: amount for name, amount in requests.items() if name not in dropped}
        need = _shared_need(requests, shape.annotations, shape.labels)
        if need.requests and designates(shape, "DeviceShare"):
            need = replace(need, designated=_designated(shape, need))
        shape.memo[_NEED] = need
    return need


def _designated(shape: Shape, need: DeviceNeed) -> DeviceHolding | None:
    """What device-allocated of a pending pod designates. Raises WireError."""
    try:
        return holding_of(shape.annotations, need)
    except RefusedDevices as refused:
        raise WireError(str(refused), where=names.ANNOTATION_DEVICE_ALLOCATED) from refused


def _shared_need(
    requests: Mapping[str, Quantity], annotations: Mapping[str, str], labels: Mapping[str, str]
) -> DeviceNeed:
    """One need for equal demands: pods of different quotas and gangs have different shapes, and decisions are
    remembered by need."""
    key = (
        tuple((name, requests[name].value()) for name in sorted(_DEVICE_RESOURCES & requests.keys())),
        tuple(annotations.get(name) for name in _NEED_ANNOTATIONS),
        labels.get(names.LABEL_GPU_ISOLATION_PROVIDER),
    )
    need = _needs.get(key)
    if need is None:
        need = _needs[key] = need_of(requests, annotations, labels)
    return need
