"""The devices of a node as its Device object reports them (spec 06 §3.2)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

from koordlet.api import names
from koordlet.api.annotations.device import (
    PARTITION_HONOR,
    PartitionTable,
    gpu_partition_policy,
    gpu_partitions,
    gpu_partitions_text,
)
from koordlet.api.crs.device import GPU, Device, DeviceInfo
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.quoting import quoted
from koordlet.api.encoding.wire import WireError

MAX_AMOUNT: Final = 1 << 53
"""Bound of every amount, so that sums fit into columns of 64 bits."""
MAX_DEVICES: Final = 64
"""Devices of one type on a node that are used."""
MAX_TYPES: Final = 8
"""Types of devices on a node that are used."""
MAX_MINOR: Final = (1 << 20) - 1
"""The kernel's largest minor number of a device node."""
MAX_FUNCTIONS: Final = 256
"""Virtual functions of a PCI device."""
MAX_PARTITIONS: Final = 256
"""Partitions in the table of a node."""
UNKNOWN_NUMA: Final = -1
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """`numa`: NUMA node, `UNKNOWN_NUMA` if it is unknown; `pcie`: PCIe switch, unique in the node."""

    numa: int
    pcie: str


@dataclass(frozen=True, slots=True)
class FunctionGroup:
    """Virtual functions with the same labels. `functions`: (minor, bus id)."""

    labels: Mapping[str, str]
    functions: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class DeviceUnit:
    """One device. `total`: empty if it is unhealthy; `place`: None if the topology is unknown."""

    minor: int
    id: str = ""
    total: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    place: DevicePlace | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    groups: tuple[FunctionGroup, ...] = ()


@dataclass(frozen=True)
class DeviceInventory:
    """All devices of a node."""

    units: Mapping[str, Mapping[int, DeviceUnit]] = field(default_factory=dict)
    """Type -> minor -> device, minors ascending."""
    partitions: PartitionTable | None = None
    honors_partitions: bool = False
    """By the Device, which has a partition table, only its partitions may be allocated."""
    vendor: str = ""
    model: str = ""
    planned: bool | None = None
    """Label `secondary-device-well-planned`."""
    errors: tuple[str, ...] = ()
    """What is malformed and therefore ignored."""

    @cached_property
    def layout(self) -> Hashable:
        """Equal for nodes whose devices a decision does not distinguish; ids are left out."""
        units = tuple(
            (kind, unit.minor, _items(unit.total), unit.place, _items(unit.labels), _group_items(unit.groups))
            for kind, by_minor in self.units.items()
            for unit in by_minor.values()
        )
        table = None if self.partitions is None else gpu_partitions_text(self.partitions)
        return units, table, self.honors_partitions, self.vendor

    def without_devices(self) -> DeviceInventory:
        """The same devices without amounts: the Device object is gone, its devices may still be in use (§3.2)."""
        units = {
            kind: {minor: replace(unit, total=NOTHING) for minor, unit in by_minor.items()}
            for kind, by_minor in self.units.items()
        }
        return replace(self, units=units, errors=())


def read_inventory(device: Device) -> DeviceInventory:
    """The usable part of a Device; what is malformed is left out and named in `errors`."""
    errors: list[str] = []
    units: dict[str, dict[int, DeviceUnit]] = {}
    for at, info in enumerate(device.spec.devices):
        try:
            unit = _unit(info)
            _check_room(units, info.type, unit)
        except ValueError as error:
            errors.append(f"spec.devices[{at}]: {error}")
            continue
        units.setdefault(info.type, {})[unit.minor] = unit
    labels = device.metadata.labels
    partitions = None
    try:
        partitions = _partitions(device)
    except (WireError, ValueError) as error:
        errors.append(str(error))
    return DeviceInventory(
        {kind: dict(sorted(by_minor.items())) for kind, by_minor in sorted(units.items())},
        partitions,
        partitions is not None and gpu_partition_policy(labels) == PARTITION_HONOR,
        labels.get(names.LABEL_GPU_VENDOR, ""),
        labels.get(names.LABEL_GPU_MODEL, ""),
        {"true": True, "false": False}.get(labels.get(names.LABEL_SECONDARY_DEVICE_WELL_PLANNED, "")),
        tuple(errors),
    )


def _items(mapping: Mapping[str, object]) -> Hashable:
    return tuple(sorted(mapping.items()))


def _group_items(groups: tuple[FunctionGroup, ...]) -> Hashable:
    return tuple((_items(group.labels), group.functions) for group in groups)


def amounts_of(resources: Mapping[str, Quantity]) -> dict[str, int]:
    """Whole units, rounded up. Raises ValueError for a negative amount."""
    amounts = {name: quantity.value() for name, quantity in resources.items()}
    for name, amount in amounts.items():
        if amount < 0:
            raise ValueError(f"resource {quoted(name)} is negative")
    return {name: min(amount, MAX_AMOUNT) for name, amount in amounts.items()}


def _unit(info: DeviceInfo) -> DeviceUnit:
    if info.minor is None or not 0 <= info.minor <= MAX_MINOR:
        raise ValueError(f"minor {info.minor} is not from 0 to {MAX_MINOR}")
    if not info.type:
        raise ValueError("the type is missing")
    place = None
    if info.topology is not None:
        place = DevicePlace(max(info.topology.node_id, UNKNOWN_NUMA), info.topology.pcie_id)
    total = amounts_of(info.resources)
    return DeviceUnit(
        info.minor,
        info.id,
        {name: amount for name, amount in total.items() if amount} if info.health else NOTHING,
        place,
        info.labels,
        tuple(_groups(info)),
    )


def _groups(info: DeviceInfo) -> Iterator[FunctionGroup]:
    seen: set[str] = set()
    for group in info.vf_groups:
        functions = [(function.minor, function.bus_id) for function in group.vfs]
        for _, bus_id in functions:
            if not bus_id or bus_id in seen:
                raise ValueError(f"virtual function {quoted(bus_id)} has no bus id or is listed twice")
            seen.add(bus_id)
        yield FunctionGroup(group.labels, tuple(sorted(functions, key=lambda function: function[1])))
    if len(seen) > MAX_FUNCTIONS:
        raise ValueError(f"more than {MAX_FUNCTIONS} virtual functions")


def _check_room(units: Mapping[str, Mapping[int, DeviceUnit]], kind: str, unit: DeviceUnit) -> None:
    here = units.get(kind)
    if here is None:
        if len(units) >= MAX_TYPES:
            raise ValueError(f"more than {MAX_TYPES} types")
        return
    if unit.minor in here:
        raise ValueError(f"{quoted(kind)} {unit.minor} is listed twice")
    if len(here) >= MAX_DEVICES:
        raise ValueError(f"more than {MAX_DEVICES} devices of type {quoted(kind)}")
    partitions = {partition for known in here.values() for group in known.groups for _, partition in group.functions}
    for group in unit.groups:
        for _, bus_id in group.functions:
            if bus_id in partitions:
                raise ValueError(f"virtual function {quoted(bus_id)} belongs to two devices")


def _partitions(device: Device) -> PartitionTable | None:
    """Raises WireError or ValueError."""
    table = gpu_partitions(device.metadata.annotations)
    if table is None:
        return None
    listed = [(size, partition) for size, partitions in table.items() for partition in partitions]
    where = f"annotation {names.ANNOTATION_GPU_PARTITIONS}"
    if len(listed) > MAX_PARTITIONS:
        raise ValueError(f"{where}: more than {MAX_PARTITIONS} partitions")
    for size, partition in listed:
        if len(set(partition.minors)) != size or len(partition.minors) != size:
            raise ValueError(f"{where}: {partition.minors} are not {size} different {GPU}s")
    return table
