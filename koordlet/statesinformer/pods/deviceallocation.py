"""The devices that the scheduler allocated to pods (`device-allocated`), as far as koordlet accepts them. Pure.

The annotation belongs to the scheduler, but users who may change a pod may be able to change it, and root acts on it.
So koordlet accepts only devices that this node has, amounts within 100 percent of a device, and only what other pods
leave: a device may be shared by percent, a virtual function may not. A refused or malformed allocation counts as
absent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from koordlet.api import names
from koordlet.api.annotations.device import ALLOCATED, PodDeviceAllocation
from koordlet.api.core import Pod, is_terminated
from koordlet.api.crs.device import FPGA, GPU, RDMA
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.quoting import quoted
from koordlet.api.encoding.remembered import RememberedTexts
from koordlet.api.encoding.wire import WireError
from koordlet.statesinformer.pods.cpuallocation import precedence

WHOLE_PERCENT: Final = 100
SHARED: Final = {
    GPU: (names.RESOURCE_GPU_MEMORY_RATIO, names.RESOURCE_GPU_CORE),
    RDMA: (names.RESOURCE_RDMA,),
    FPGA: (names.RESOURCE_FPGA,),
}
"""Resources in percent of a device, by which pods share it. The first one is above 0 in every allocation; a device
without any of them is allocated as a whole."""
MAX_DEVICES: Final = 64
"""Devices of one type in an allocation."""
MAX_MINOR: Final = (1 << 20) - 1
"""The kernel's largest minor number of a device node."""
MAX_FUNCTIONS: Final = 256
"""Virtual functions of an allocation: those of a PCI device."""

MinorsOf = Callable[[str], Collection[int] | None]
"""Type of device -> minors of the node's devices of that type; None while they are unknown."""
_Unit = tuple[str, str]
"""A device or a virtual function: type, and minor or PCI address."""
_Share = tuple[_Unit, str, Quantity]
"""A unit, a resource, and percent of it."""


@dataclass(frozen=True, slots=True)
class AllocatedDevices:
    """What a pod's annotation gives it."""

    devices: Mapping[str, tuple[PodDeviceAllocation, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By type; empty for none."""
    shares: tuple[_Share, ...] = ()
    """What it takes from other pods."""
    error: str = ""
    """Why the annotation is malformed; empty otherwise."""
    refused: str = ""
    """Why its devices are not accepted; empty otherwise."""


NO_DEVICES: Final = AllocatedDevices()


def devices_of_pod(pod: Pod) -> AllocatedDevices:
    """The allocation of a pod, without regard to node and other pods."""
    text = pod.metadata.annotations.get(names.ANNOTATION_DEVICE_ALLOCATED)
    if not text or is_terminated(pod):
        return NO_DEVICES
    if ALLOCATED.limits is not None and len(text) > ALLOCATED.limits.chars:
        text = text[: ALLOCATED.limits.chars + 1]  # refused by its length
    try:
        return _parsed(text)
    except WireError as error:
        return AllocatedDevices(error=f"pod {pod.metadata.key}: {error}")


def accept_devices(
    allocations: Mapping[str, tuple[Pod, AllocatedDevices]], held: Mapping[str, AllocatedDevices], minors: MinorsOf
) -> dict[str, AllocatedDevices]:
    """The allocations of all pods of the node by UID, of which no two overlap. `held`: what each pod was accepted with
    before; it takes precedence, as for CPUs."""

    def order(uid: str) -> tuple[bool, bool, str, str]:
        pod, allocation = allocations[uid]
        return precedence(pod, uid, keeps=uid in held and held[uid].shares == allocation.shares)

    accepted: dict[str, AllocatedDevices] = {}
    taken: dict[tuple[_Unit, str], Quantity] = {}
    holders: dict[_Unit, str] = {}
    for uid in sorted(allocations, key=order):
        pod, allocation = allocations[uid]
        problem = _problem(allocation, taken, holders, minors) if allocation.shares else ""
        if problem:
            allocation = _refuse(allocation, problem)
        for unit, resource, percent in allocation.shares:
            taken[unit, resource] = taken.get((unit, resource), _NONE) + percent
            holders[unit] = pod.metadata.key
        accepted[uid] = allocation
    return accepted


def _problem(
    allocation: AllocatedDevices,
    taken: Mapping[tuple[_Unit, str], Quantity],
    holders: Mapping[_Unit, str],
    minors: MinorsOf,
) -> str:
    """Why an allocation is not accepted beside those before it; empty if it is."""
    for kind, devices in allocation.devices.items():
        known = minors(kind)
        missing = [] if known is None else [device.minor for device in devices if device.minor not in known]
        if missing:
            return f"this node has no {kind} {missing[0]}"
    for unit, resource, percent in allocation.shares:
        if unit not in holders:
            continue
        before = taken.get((unit, resource), _NONE)
        exclusive = resource == _EXCLUSIVE or (unit, _EXCLUSIVE) in taken
        if exclusive or before + percent > _WHOLE:
            return f"pod {holders[unit]} has {' '.join(unit)}"
    return ""


def _refuse(allocation: AllocatedDevices, reason: str) -> AllocatedDevices:
    return replace(
        allocation, devices=NO_DEVICES.devices, shares=(), refused=f"{names.ANNOTATION_DEVICE_ALLOCATED}: {reason}"
    )


def _parse(text: str) -> AllocatedDevices:
    """Raises WireError."""
    allocated = ALLOCATED.get({names.ANNOTATION_DEVICE_ALLOCATED: text}) or {}
    shares: list[_Share] = []
    for kind, devices in allocated.items():
        if len(devices) > MAX_DEVICES:
            raise _invalid(f"{quoted(kind)} has {len(devices)} devices, at most {MAX_DEVICES} are allowed")
        if len({device.minor for device in devices}) < len(devices):
            raise _invalid(f"{quoted(kind)} has a minor twice")
        for device in devices:
            shares += _shares(kind, device)
    units = [(unit, resource) for unit, resource, _ in shares]
    if len(set(units)) < len(units):
        raise _invalid("has a virtual function twice")
    return AllocatedDevices(
        MappingProxyType({kind: tuple(devices) for kind, devices in allocated.items()}), tuple(shares)
    )


def _shares(kind: str, device: PodDeviceAllocation) -> list[_Share]:
    if not 0 <= device.minor <= MAX_MINOR:
        raise _invalid(f"{quoted(kind)} has minor {device.minor}, which is not from 0 to {MAX_MINOR}")
    unit = (kind, str(device.minor))
    resources = SHARED.get(kind, ())
    amounts = {resource: device.resources[resource] for resource in resources if resource in device.resources}
    for resource, percent in amounts.items():
        if not _NONE <= percent <= _WHOLE:
            raise _invalid(f"{kind} {device.minor} has {resource} {percent}, which is not from 0 to {WHOLE_PERCENT}")
    if amounts and not amounts.get(resources[0]):
        raise _invalid(f"{kind} {device.minor} has no {resources[0]}")
    shares = [(unit, resource, percent) for resource, percent in amounts.items()]
    functions = [] if device.extension is None else device.extension.vfs
    if len(functions) > MAX_FUNCTIONS:
        raise _invalid(f"{kind} {device.minor} has {len(functions)} virtual functions, at most {MAX_FUNCTIONS} exist")
    shares += [((kind, function.bus_id), _EXCLUSIVE, _WHOLE) for function in functions]
    return shares or [(unit, _EXCLUSIVE, _WHOLE)]


def _invalid(reason: str) -> WireError:
    return WireError(reason, where=f"annotation {names.ANNOTATION_DEVICE_ALLOCATED}")


_EXCLUSIVE: Final = ""
"""The resource of a unit that only one pod may have."""
_NONE: Final = Quantity.of(0)
_WHOLE: Final = Quantity.of(WHOLE_PERCENT)
_parsed: Final = RememberedTexts(_parse, WireError, max_chars=2 << 20)
