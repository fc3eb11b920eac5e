"""Devices that a pending pod's annotation designates: only these may be chosen (spec 06 §2.9, §3.4, §3.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from control.devices.allocate import insufficient
from control.devices.inventory import UNKNOWN_NUMA, DeviceUnit
from control.devices.numahints import SAME_GPUS, NumaSet
from control.devices.room import DeviceHolding, DeviceState, HeldDevice, TypeUse
from control.devices.search import DevicesLacking

NO_NUMA: Final = "Designated Allocation Lack NUMA Node ID"


def only_designated(state: DeviceState, designated: DeviceHolding) -> DeviceState:
    """The state in which only these devices may be chosen, and of them what is designated."""
    limits = dict(state.limits)
    for kind, devices in designated.items():
        units, known = state.inventory.units.get(kind, {}), state.limits.get(kind)
        listed = [device for device in devices if device.minor in units]
        if known is not None:
            listed = [device for device in listed if device.minor in known.amounts]
        amounts = {device.minor: _limited(device, units[device.minor], known) for device in listed}
        functions = {device.minor: frozenset(bus_id for _, bus_id in device.functions) for device in listed}
        if known is not None and known.functions:
            functions = {minor: chosen & known.functions.get(minor, frozenset()) for minor, chosen in functions.items()}
        else:
            used = state.use(kind).functions
            functions = {minor: chosen - used.get(minor, frozenset()) for minor, chosen in functions.items()}
        named = any(device.functions for device in devices)
        limits[kind] = TypeUse(amounts, functions if named else {} if known is None else known.functions)
    return replace(state, limits=limits)


def _limited(device: HeldDevice, unit: DeviceUnit, known: TypeUse | None) -> Mapping[str, int]:
    """A resource that is not designated is limited only by what is free."""
    amounts = {**unit.total, **device.amounts}
    if known is None:
        return amounts
    left = known.amounts[device.minor]
    return {name: min(amount, left.get(name, 0)) for name, amount in amounts.items()}


def check_designated(holding: DeviceHolding, designated: DeviceHolding) -> None:
    """Raises DevicesLacking if the pod would get other devices than the designated ones."""
    for kind, devices in designated.items():
        if _identity(holding.get(kind, ())) != _identity(devices):
            raise DevicesLacking(insufficient(kind))


def _identity(devices: Sequence[HeldDevice]) -> list[tuple[int, list[str]]]:
    return sorted((device.minor, sorted(bus_id for _, bus_id in device.functions)) for device in devices)


def designated_sets(state: DeviceState, designated: DeviceHolding, kinds: Sequence[str]) -> dict[str, list[NumaSet]]:
    """The NUMA hint: the NUMA nodes of all designated devices, for each requested type. Raises DevicesLacking."""
    nodes: set[int] = set()
    for kind, devices in designated.items():
        for device in devices:
            unit = state.inventory.units.get(kind, {}).get(device.minor)
            if unit is None:
                raise DevicesLacking(insufficient(kind))
            if unit.place is None or unit.place.numa == UNKNOWN_NUMA:
                raise DevicesLacking(NO_NUMA)
            nodes.add(unit.place.numa)
    return {kind: [NumaSet(frozenset(nodes), True, SAME_GPUS)] for kind in kinds}
