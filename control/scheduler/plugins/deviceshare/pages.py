"""Pages of devices: what nodes have, what is free, and who holds what (spec 06 §7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from control.devices.inventory import DeviceUnit
from control.devices.room import type_room
from control.scheduler.plugins.deviceshare.book import EMPTY, DeviceBook
from control.scheduler.state.table import NodeTable

Detail = dict[str, dict[str, dict[str, str]]]
"""Type -> minor -> resource -> amount."""


def page(book: DeviceBook, table: NodeTable, row: int) -> dict[str, Any]:
    """Of a node with a Device object. Call `DeviceBook.sync` before."""
    state, inventory = book.state(row), book.inventory(row)
    total: Detail = {}
    free: Detail = {}
    used: Detail = {}
    places: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, units in inventory.units.items():
        total[kind] = {str(minor): _amounts(unit.total) for minor, unit in units.items()}
        places[kind] = {str(minor): _place(unit) for minor, unit in units.items()}
        if state is not None:
            room = type_room(state, kind, None, lambda unit: True)
            free[kind] = {str(minor): _amounts(amounts) for minor, amounts in room.free.items()}
    holdings = book.holdings.get(row, EMPTY)
    held: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
    for kind, use in holdings.sums.uses().items():
        used[kind] = {str(minor): _amounts(amounts) for minor, amounts in sorted(use.amounts.items())}
    for uid, holding in holdings.given.items():
        pod = table.pods[row][uid]
        for kind, devices in holding.devices.items():
            by_pod = held.setdefault(kind, {})
            by_pod[f"{pod.namespace}/{pod.name}"] = {str(device.minor): _amounts(device.amounts) for device in devices}
    return {
        "deviceTotal": _sums(total),
        "deviceFree": _sums(free),
        "deviceUsed": _sums(used),
        "deviceTotalDetail": total,
        "deviceFreeDetail": free,
        "deviceUsedDetail": used,
        "allocateSet": held,
        "devicePlaces": places,
    }


def _place(unit: DeviceUnit) -> dict[str, Any]:
    if unit.place is None:
        return {}
    return {"numaNode": unit.place.numa, "pcie": unit.place.pcie}


def _sums(detail: Detail) -> dict[str, str]:
    sums: dict[str, int] = {}
    for by_minor in detail.values():
        for amounts in by_minor.values():
            for name, amount in amounts.items():
                sums[name] = sums.get(name, 0) + int(amount)
    return _amounts(sums)


def _amounts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: str(amount) for name, amount in sorted(amounts.items())}
