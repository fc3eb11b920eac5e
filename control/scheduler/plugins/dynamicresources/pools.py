"""The devices that ResourceSlices offer, by node. Pure.

Of a pool the slices of its highest generation count. A pool with fewer slices than it announces is incomplete: its
devices are offered, but a request for all devices has to wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from control.scheduler.plugins.dynamicresources.selectors import Version
from koordlet.api.core import Node
from koordlet.api.core.claims import DeviceAttribute, ResourceSlice, SliceDevice
from koordlet.api.core.selectors import NodeSelector, Taint
from koordlet.api.encoding.quantity import Quantity

NAME_FIELD: Final = "metadata.name"
REPELLING: Final = frozenset({"NoSchedule", "NoExecute"})
MAX_READS: Final = 32
"""What expressions read that is kept per device: tenants can name any attribute."""
_MISSING: Final = object()


class DeviceId(NamedTuple):
    """Unique in the cluster."""

    driver: str
    pool: str
    device: str


@dataclass(eq=False)
class ClaimableDevice:
    """A device that can be allocated as a whole."""

    id: DeviceId
    attributes: Mapping[str, Mapping[str, Any]]
    """Domain -> name -> int, bool, str or Version."""
    capacity: Mapping[str, Mapping[str, Quantity]]
    taints: Sequence[Taint] = ()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    """Where it can be used if `node_name` is empty; None: everywhere."""
    complete: bool = True
    """Whether all slices of its pool are known."""
    _read: dict[tuple[str, ...], Hashable] = field(default_factory=dict)

    @property
    def driver(self) -> str:
        return self.id.driver

    def values(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """`attributes` or `capacity`."""
        return self.attributes if kind == "attributes" else self.capacity

    def attribute(self, name: str) -> Any:
        """The value of a qualified attribute `domain/name`; None without it."""
        domain, _, short = name.rpartition("/")
        return self.attributes.get(domain, {}).get(short)

    def read(self, path: tuple[str, ...]) -> Hashable:
        """What an expression read, as a value that can be compared; see `selectors.Path`."""
        known = self._read.get(path, _MISSING)
        if known is _MISSING:
            if len(self._read) >= MAX_READS:
                self._read.clear()
            known = self._read[path] = self._find(path)
        return known

    def _find(self, path: tuple[str, ...]) -> Hashable:
        if path == ("driver",):
            return self.driver
        domains = self.values(path[0])
        match path:
            case (_,):
                return frozenset(domains)
            case (_, domain):
                return frozenset((name, str(value)) for name, value in domains.get(domain, {}).items())
            case (_, domain, name):
                value = domains.get(domain, {}).get(name)
                return (type(value), str(value))
        raise ValueError(path)


@dataclass
class Pools:
    """All usable devices. `unsupported`: number of devices that only a part of can be allocated, or that have to be
    bound to a node by their driver: they are not offered."""

    local: dict[str, list[ClaimableDevice]] = field(default_factory=lambda: defaultdict(list))
    """By node name."""
    shared: list[ClaimableDevice] = field(default_factory=list)
    """Usable on several nodes."""
    unsupported: int = 0
    nodes: dict[DeviceId, str] = field(default_factory=dict)
    """The node of each device, empty for a shared one."""

    @classmethod
    def of(cls, slices: Iterable[ResourceSlice]) -> Pools:
        """The devices in a fixed order: by driver, pool, slice, and as the slice lists them."""
        pools = cls()
        for (driver, pool), members in sorted(_newest(slices).items()):
            complete = len(members) >= members[0].spec.pool.resource_slice_count
            for each in sorted(members, key=lambda part: part.metadata.name):
                for device in each.spec.devices:
                    if _unsupported(device):
                        pools.unsupported += 1
                    else:
                        pools._add(_device(DeviceId(driver, pool, device.name), each, device, complete))
        return pools

    def _add(self, device: ClaimableDevice) -> None:
        (self.local[device.node_name] if device.node_name else self.shared).append(device)
        self.nodes[device.id] = device.node_name

    def on(self, node: Node) -> list[ClaimableDevice]:
        """The devices that pods of the node can use, those of the node first."""
        name = node.metadata.name
        labels, fields = node.metadata.labels, {NAME_FIELD: name}
        shared = [
            device
            for device in self.shared
            if device.node_selector is None
            or any(term.matches(labels, fields) for term in device.node_selector.node_selector_terms)
        ]
        return [*self.local.get(name, ()), *shared]


def _newest(slices: Iterable[ResourceSlice]) -> dict[tuple[str, str], list[ResourceSlice]]:
    newest: dict[tuple[str, str], list[ResourceSlice]] = {}
    for each in slices:
        key = (each.spec.driver, each.spec.pool.name)
        known = newest.get(key)
        if known is None or known[0].spec.pool.generation < each.spec.pool.generation:
            newest[key] = [each]
        elif known[0].spec.pool.generation == each.spec.pool.generation:
            known.append(each)
    return newest


def _unsupported(device: SliceDevice) -> bool:
    return bool(
        device.consumes_counters
        or device.allow_multiple_allocations
        or device.binds_to_node
        or device.binding_conditions
    )


def _device(device_id: DeviceId, of: ResourceSlice, device: SliceDevice, complete: bool) -> ClaimableDevice:
    attributes: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, attribute in device.attributes.items():
        domain, short = _qualified(name, device_id.driver)
        attributes[domain][short] = _attribute(attribute)
    capacity: dict[str, dict[str, Quantity]] = defaultdict(dict)
    for name, amount in device.capacity.items():
        domain, short = _qualified(name, device_id.driver)
        capacity[domain][short] = amount.value
    place: ResourceSlice | SliceDevice = device if of.spec.per_device_node_selection else of
    where = place if isinstance(place, SliceDevice) else place.spec
    return ClaimableDevice(
        device_id,
        dict(attributes),
        dict(capacity),
        device.taints,
        where.node_name,
        None if where.all_nodes else where.node_selector or NodeSelector(),
        complete,
    )


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, _, short = name.rpartition("/")
    return domain or driver, short


def _attribute(attribute: DeviceAttribute) -> Any:
    if attribute.version is not None:
        try:
            return Version(attribute.version)
        except ValueError:
            return attribute.version
    for value in (attribute.int_, attribute.bool_, attribute.string):
        if value is not None:
            return value
    return ""
