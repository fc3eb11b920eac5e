"""The ResourceSlices that make them equal to the node's devices. Pure.

All slices of a node form one pool with the node's name. Every change gives all of them the next generation, so that a
scheduler never combines old and new slices. A device's taints follow from its attribute `healthy`; they are not
compared, because an API server without the feature DRADeviceTaints drops them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.core.claims import (
    DeviceAttribute,
    DeviceCapacity,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
)
from koordlet.api.core.selectors import Taint
from koordlet.api.crs.device import DeviceInfo
from koordlet.api.encoding.wire import to_builtins
from koordlet.statesinformer.devices.status import NodeDevices
from koordlet.statesinformer.ownobject import owned_by

DRIVER: Final = names.DEVICE_DRIVER
UNHEALTHY: Final = f"{DRIVER}/unhealthy"
"""Key of the taint of a device with a fault."""
MAX_SLICE_DEVICES: Final = 64
"""Kubernetes allows 128 devices in a slice, and 64 if one of them has a taint."""
MAX_SLICES: Final = 8
"""Of a node: 512 devices."""
MAX_STRING_CHARS: Final = 64
"""Kubernetes' limit for an attribute."""
_MAX_NODE_CHARS: Final = 253 - len(f"-{DRIVER}-{MAX_SLICES - 1}")
"""Of a node's name in the names of its slices, which have at most 253 characters."""
_HASH_CHARS: Final = 16
_STANDARD: Final = "resource.kubernetes.io"
"""Domain of the attributes that all drivers share."""
_CAPACITY: Final = {names.RESOURCE_GPU_MEMORY: "memory", names.RESOURCE_GPU_CORE: "cores"}


@dataclass(frozen=True)
class SliceChanges:
    """What to write. `patches`: merge patches by the name of the slice."""

    created: tuple[ResourceSlice, ...] = ()
    patches: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.created or self.patches or self.deleted)


def offered(
    status: NodeDevices, stored: Sequence[ResourceSlice], problem: Callable[[str], object]
) -> list[SliceDevice]:
    """The devices to publish. Stored devices of types that `status` does not cover are kept."""
    devices: dict[str, SliceDevice] = {}
    for info in status.devices:
        name = f"{info.type}-{info.minor}"
        if info.minor is None or info.minor < 0:
            problem(f"{info.type} {info.id} has no minor number")
        elif name in devices:
            problem(f"two devices are called {name}")
        else:
            devices[name] = _device(name, info, status.models.get(info.id, ""))
    for each in sorted(stored, key=_name):
        for device in each.spec.devices:
            kind = device.attributes.get("type")
            if kind is not None and kind.string not in status.types:
                devices.setdefault(device.name, device)
    if len(devices) > MAX_SLICES * MAX_SLICE_DEVICES:
        problem(f"only {MAX_SLICES * MAX_SLICE_DEVICES} of {len(devices)} devices are published")
    return list(devices.values())[: MAX_SLICES * MAX_SLICE_DEVICES]


def changes(node: Node, devices: Sequence[SliceDevice], stored: Sequence[ResourceSlice]) -> SliceChanges:
    """The difference between the slices of `devices` and the stored ones; empty if there is none."""
    by_name = {each.metadata.name: each for each in stored}
    known = {each.spec.pool.generation for each in stored}
    generation = max(known, default=0)
    desired = {each.metadata.name: each for each in _slices(node, devices, generation)}
    if (
        by_name.keys() == desired.keys()
        and len(known) <= 1
        and all(_content(each) == _content(by_name[name]) for name, each in desired.items())
    ):
        return SliceChanges()
    desired = {each.metadata.name: each for each in _slices(node, devices, generation + 1)}
    patches = {
        name: {
            "metadata": {"resourceVersion": by_name[name].metadata.resource_version},
            "spec": {"pool": to_builtins(each.spec.pool), "devices": to_builtins(each.spec.devices)},
        }
        for name, each in desired.items()
        if name in by_name
    }
    created = tuple(each for name, each in desired.items() if name not in by_name)
    return SliceChanges(created, patches, tuple(sorted(by_name.keys() - desired.keys())))


def _slices(node: Node, devices: Sequence[SliceDevice], generation: int) -> list[ResourceSlice]:
    parts = [devices[at : at + MAX_SLICE_DEVICES] for at in range(0, len(devices), MAX_SLICE_DEVICES)]
    node_name = node.metadata.name
    meta = owned_by(node, labels={}, annotations={})
    pool = ResourcePool(name=node_name, generation=generation, resource_slice_count=len(parts))
    return [
        ResourceSlice(
            metadata=msgspec.structs.replace(meta, name=f"{_shortened(node_name)}-{DRIVER}-{number}"),
            spec=ResourceSliceSpec(driver=DRIVER, pool=pool, node_name=node_name, devices=list(part)),
        )
        for number, part in enumerate(parts)
    ]


def _shortened(node_name: str) -> str:
    """The name; of a long one the beginning and a hash."""
    if len(node_name) <= _MAX_NODE_CHARS:
        return node_name
    beginning = node_name[: _MAX_NODE_CHARS - _HASH_CHARS - 1].rstrip(".-")
    return f"{beginning}-{hashlib.sha256(node_name.encode()).hexdigest()[:_HASH_CHARS]}"


def _content(of: ResourceSlice) -> tuple[int, list[SliceDevice]]:
    """What is compared."""
    devices = [msgspec.structs.replace(device, taints=[]) for device in of.spec.devices]
    return of.spec.pool.resource_slice_count, devices


def _name(of: ResourceSlice) -> str:
    return of.metadata.name


def _device(name: str, info: DeviceInfo, model: str) -> SliceDevice:
    attributes = {
        "type": DeviceAttribute(string=info.type),
        "minor": DeviceAttribute(int_=info.minor),
        "healthy": DeviceAttribute(bool_=info.health),
    }
    texts = {"uuid": info.id if len(info.id) <= MAX_STRING_CHARS else "", "model": model[:MAX_STRING_CHARS]}
    if info.topology is not None:
        attributes["numaNode"] = DeviceAttribute(int_=info.topology.node_id)
        texts |= {f"{_STANDARD}/pcieRoot": info.topology.pcie_id, f"{_STANDARD}/pciBusID": info.topology.bus_id}
    attributes |= {key: DeviceAttribute(string=text) for key, text in texts.items() if text}
    return SliceDevice(
        name=name,
        attributes=attributes,
        capacity={
            short: DeviceCapacity(value=info.resources[full])
            for full, short in _CAPACITY.items()
            if full in info.resources
        },
        taints=[] if info.health else [Taint(key=UNHEALTHY, value="true", effect="NoSchedule")],
    )
