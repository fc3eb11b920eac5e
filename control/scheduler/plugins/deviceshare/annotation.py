"""The annotation device-allocated: written when a pod is bound, read when it is bound already (spec 06 §3.4, §3.9).

A tenant may have written the annotation of a bound pod. So it counts for not more than the pod requests: of types that
it requests, at most as many GPUs, and not more of each device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from control.devices.inventory import MAX_DEVICES, MAX_FUNCTIONS, MAX_MINOR, DeviceInventory, amounts_of
from control.devices.needs import DeviceNeed
from control.devices.requests import WHOLE
from control.devices.room import DeviceHolding, HeldDevice
from koordlet.api import names
from koordlet.api.annotations.device import (
    ALLOCATED,
    AllocatedVirtualFunction,
    DeviceAllocationExtension,
    PodDeviceAllocation,
)
from koordlet.api.annotations.reservation import RESIZE_ALLOCATABLE, ResizeAllocatable
from koordlet.api.crs.device import GPU
from koordlet.api.encoding.quantity import BINARY_SI, DECIMAL_SI, Quantity
from koordlet.api.encoding.quoting import quoted
from koordlet.api.encoding.wire import WireError

_COMPLETED: Final = (names.RESOURCE_GPU_MEMORY, names.RESOURCE_GPU_MEMORY_RATIO)
"""Amounts that the scheduler adds to those of the request."""


class RefusedDevices(ValueError):
    """The annotation does not count; the message is the reason."""


def allocated_text(holding: DeviceHolding, inventory: DeviceInventory) -> str:
    """The annotation for a holding; ids are those of the node's devices."""

    def device(kind: str, held: HeldDevice) -> PodDeviceAllocation:
        unit = inventory.units.get(kind, {}).get(held.minor)
        functions = [AllocatedVirtualFunction(minor=minor, bus_id=bus_id) for minor, bus_id in held.functions]
        extension = None
        if functions or held.template:
            extension = DeviceAllocationExtension(vfs=functions, gpu_shared_resource_template=held.template)
        amounts = {name: _quantity(name, amount) for name, amount in sorted(held.amounts.items())}
        return PodDeviceAllocation(
            minor=held.minor, resources=amounts, id="" if unit is None else unit.id, extension=extension
        )

    return ALLOCATED.text({kind: [device(kind, held) for held in devices] for kind, devices in holding.items()})


def resized_text(holding: DeviceHolding, annotations: Mapping[str, str]) -> str:
    """The annotation with which a Reservation offers all resources of its devices, not only those of its template
    (gate ResizePod). Raises WireError if it is malformed in `annotations`."""
    sums: dict[str, int] = {}
    for devices in holding.values():
        for device in devices:
            for name, amount in device.amounts.items():
                sums[name] = sums.get(name, 0) + amount
    known = RESIZE_ALLOCATABLE.get(annotations)
    resources = {} if known is None else known.resources
    summed = {name: _quantity(name, amount) for name, amount in sorted(sums.items())}
    return RESIZE_ALLOCATABLE.text(ResizeAllocatable(resources={**resources, **summed}))


def holding_of(annotations: Mapping[str, str], need: DeviceNeed) -> DeviceHolding | None:
    """What the annotation gives a pod with this need; None without annotation. Raises RefusedDevices."""
    try:
        allocated = ALLOCATED.get(annotations)
    except WireError as error:
        raise RefusedDevices(str(error)) from error
    if not allocated:
        return None
    holding: dict[str, tuple[HeldDevice, ...]] = {}
    for kind, devices in sorted(allocated.items()):
        if kind not in need.requests:
            raise RefusedDevices(f"the pod requests no {quoted(kind)}")
        limit = need.requests[kind].count if kind == GPU else MAX_DEVICES
        if len(devices) > limit:
            raise RefusedDevices(f"{len(devices)} devices of type {kind} are more than {limit}")
        if len({device.minor for device in devices}) < len(devices):
            raise RefusedDevices(f"a {kind} is listed twice")
        holding[kind] = tuple(
            _held(kind, device, need) for device in sorted(devices, key=lambda allocation: allocation.minor)
        )
    return holding


def _held(kind: str, device: PodDeviceAllocation, need: DeviceNeed) -> HeldDevice:
    """Raises RefusedDevices."""
    if not 0 <= device.minor <= MAX_MINOR:
        raise RefusedDevices(f"minor {device.minor} is not from 0 to {MAX_MINOR}")
    requested = need.requests[kind].amounts
    try:
        amounts = amounts_of(device.resources)
    except ValueError as error:
        raise RefusedDevices(str(error)) from error
    for name, amount in amounts.items():
        limit = WHOLE if name == names.RESOURCE_GPU_MEMORY_RATIO else amount
        if amount > requested.get(name, limit):
            raise RefusedDevices(f"{amount} of {name} is more than the pod requests")
    extension = device.extension or DeviceAllocationExtension()
    if len(extension.vfs) > MAX_FUNCTIONS:
        raise RefusedDevices(f"more than {MAX_FUNCTIONS} virtual functions")
    counted = {n: a for n, a in amounts.items() if a and (n in requested or (kind == GPU and n in _COMPLETED))}
    functions = tuple((function.minor, function.bus_id) for function in extension.vfs)
    return HeldDevice(device.minor, counted, functions, extension.gpu_shared_resource_template)


def _quantity(name: str, amount: int) -> Quantity:
    return Quantity.of(amount, BINARY_SI if name == names.RESOURCE_GPU_MEMORY else DECIMAL_SI)
