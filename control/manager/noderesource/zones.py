"""NUMA zones: the capacities in a NodeResourceTopology, and the desired zones (spec 04 §6.4). Pure.

A zone's NUMA id is the number in its name (`node-1`), else its index in the list. A patch replaces the whole list of
zones, so the list is built from the API server's current object: fields of other writers are preserved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from control.manager.noderesource.units import Amounts, amounts, milli_ratio
from koordlet.api import names
from koordlet.api.crs.topology import NodeResourceTopology, Zone
from koordlet.api.encoding.quantity import BINARY_SI, ZERO, Quantity, QuantityError

BATCH: Final = (names.RESOURCE_BATCH_CPU, names.RESOURCE_BATCH_MEMORY)
_NAME = re.compile(r"node-(\d{1,4})", re.ASCII)
_FIELDS = ("capacity", "allocatable", "available")

ZoneValues = Sequence[Mapping[str, Quantity]]
"""Resource -> amount per zone, in the order of the object."""


def zone_capacities(topology: NodeResourceTopology | None) -> list[tuple[int, Amounts]]:
    """(NUMA id, allocatable) of every zone; empty when no zone lists cpu or memory."""
    if topology is None:
        return []
    capacities = []
    for index, zone in enumerate(topology.zones):
        match = _NAME.fullmatch(zone.name)
        capacities.append((int(match[1]) if match else index, amounts(_allocatable(zone))))
    listed = any(_allocatable(zone) for zone in topology.zones)
    return capacities if listed else []


def _allocatable(zone: Zone) -> dict[str, Quantity]:
    return {resource.name: resource.allocatable for resource in zone.resources if resource.name in ("cpu", "memory")}


def zone_values(zones: Sequence[Amounts], ratio: float | None) -> list[dict[str, Quantity]]:
    """Zone amounts (nano-cores, milli-bytes) as quantities: milli-cores times the normalization ratio, and bytes."""
    values = []
    for cpu, memory in zones:
        milli_cores = -(-cpu // 10**6)
        batch_cpu = Quantity.of(milli_cores)
        if ratio is not None and ratio > 1:
            batch_cpu = Quantity.milli(milli_ratio(milli_cores * 1000, ratio))
        values.append(
            {names.RESOURCE_BATCH_CPU: batch_cpu, names.RESOURCE_BATCH_MEMORY: Quantity.milli(memory, BINARY_SI)}
        )
    return values


def zero_values(count: int) -> list[dict[str, Quantity]]:
    """The values of zones of a node that overcommits nothing."""
    return [dict.fromkeys(BATCH, ZERO) for _ in range(count)]


def is_diff(old: Quantity, new: Quantity, threshold: float) -> bool:
    """Whether an amount changed by more than `threshold` times the old amount (spec 04 §2)."""
    before = old.milli_value()
    return abs(new.milli_value() - before) > before * threshold


def must_rewrite(
    topology: NodeResourceTopology, desired: ZoneValues, threshold: float, *, refresh: bool, clearing: bool
) -> bool:
    """Whether `rewritten` would change the cached object. Called for every node in every pass, so it builds nothing."""
    if len(topology.zones) != len(desired):
        return False
    exact = refresh or clearing
    for zone, values in zip(topology.zones, desired, strict=True):
        missing = len(values)
        for resource in zone.resources:
            value = values.get(resource.name)
            if value is None:
                continue
            missing -= 1
            for old in (resource.capacity, resource.allocatable, resource.available):
                if old != value and (exact or is_diff(old, value, threshold)):
                    return True
        if missing and not clearing:
            return True
    return False


def rewritten(
    zones: Sequence[Mapping[str, Any]], desired: ZoneValues, threshold: float, *, refresh: bool, clearing: bool
) -> list[dict[str, Any]] | None:
    """The zones with the desired amounts, or None when nothing must be written.

    A listed amount is replaced if it changed by more than `threshold`, with `refresh` or `clearing` if it changed at
    all. An amount that is not listed is added, except with `clearing`.
    """
    if len(zones) != len(desired):
        return None  # the topology changed meanwhile; its watch event queues this node again
    changed, result = False, []
    for zone, values in zip(zones, desired, strict=True):
        listed = [dict(resource) for resource in zone.get("resources") or ()]
        by_name = {resource.get("name"): resource for resource in listed}
        for name, value in values.items():
            entry = by_name.get(name)
            if entry is None:
                if not clearing:
                    listed.append({"name": name, **dict.fromkeys(_FIELDS, str(value))})
                    listed.sort(key=lambda resource: str(resource.get("name")))
                    changed = True
                continue
            for field in _FIELDS:
                old = _quantity(entry.get(field))
                exact = refresh or clearing
                if old is None or (old != value if exact else is_diff(old, value, threshold)):
                    entry[field] = str(value)
                    changed = True
        result.append({**zone, "resources": listed})
    return result if changed else None


def _quantity(value: Any) -> Quantity | None:
    if value is None:
        return None
    try:
        return Quantity(str(value))
    except QuantityError:
        return None  # a malformed amount is replaced
