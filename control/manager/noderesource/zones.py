"""NUMA zones: what a NodeResourceTopology offers, and the zones as they should be written (spec 04 §6.4). Pure.

A zone stands for the NUMA node in its name (`node-1`), or for its place in the list. Zones are a list and so written
whole, from the object as the API server has it: what others keep in a zone stays as it is.
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

Wanted = Sequence[Mapping[str, Quantity]]
"""Per zone, in the order of the object: resource -> amount."""


def zone_capacities(topology: NodeResourceTopology | None) -> list[tuple[int, Amounts]]:
    """(NUMA id, allocatable) of every zone; empty when no zone lists cpu or memory."""
    if topology is None:
        return []
    found = []
    for index, zone in enumerate(topology.zones):
        match = _NAME.fullmatch(zone.name)
        found.append((int(match[1]) if match else index, amounts(_allocatable(zone))))
    listed = any(_allocatable(zone) for zone in topology.zones)
    return found if listed else []


def _allocatable(zone: Zone) -> dict[str, Quantity]:
    return {one.name: one.allocatable for one in zone.resources if one.name in ("cpu", "memory")}


def zone_values(lent: Sequence[Amounts], ratio: float | None) -> list[dict[str, Quantity]]:
    """Zone amounts (nano-cores, milli-bytes) as quantities: milli-cores times the normalization ratio, and bytes."""
    values = []
    for cpu, memory in lent:
        milli_cores = -(-cpu // 10**6)
        batch_cpu = Quantity.of(milli_cores)
        if ratio is not None and ratio > 1:
            batch_cpu = Quantity.milli(milli_ratio(milli_cores * 1000, ratio))
        values.append(
            {names.RESOURCE_BATCH_CPU: batch_cpu, names.RESOURCE_BATCH_MEMORY: Quantity.milli(memory, BINARY_SI)}
        )
    return values


def nothing(count: int) -> list[dict[str, Quantity]]:
    """What zones hold when nothing is lent."""
    return [dict.fromkeys(BATCH, ZERO) for _ in range(count)]


def is_diff(old: Quantity, new: Quantity, threshold: float) -> bool:
    """Whether an amount moved by more than the part `threshold` of what it was (spec 04 §2)."""
    before = old.milli_value()
    return abs(new.milli_value() - before) > before * threshold


def must_rewrite(
    topology: NodeResourceTopology, wanted: Wanted, threshold: float, *, refresh: bool, clearing: bool
) -> bool:
    """Whether `rewritten` would change a cached object: asked of every node all the time."""
    if len(topology.zones) != len(wanted):
        return False
    exact = refresh or clearing
    for zone, values in zip(topology.zones, wanted, strict=True):
        missing = len(values)
        for one in zone.resources:
            value = values.get(one.name)
            if value is None:
                continue
            missing -= 1
            for old in (one.capacity, one.allocatable, one.available):
                if old != value and (exact or is_diff(old, value, threshold)):
                    return True
        if missing and not clearing:
            return True
    return False


def rewritten(
    zones: Sequence[Mapping[str, Any]], wanted: Wanted, threshold: float, *, refresh: bool, clearing: bool
) -> list[dict[str, Any]] | None:
    """The zones with `wanted` in them, or None when nothing is to be written.

    A listed amount is replaced once it moved by more than `threshold`, or at all with `refresh`; one that is not listed
    is added, unless `clearing`: then only what is listed is set.
    """
    if len(zones) != len(wanted):
        return None  # the topology changed since; its event brings this node back
    changed, result = False, []
    for zone, values in zip(zones, wanted, strict=True):
        listed = [dict(one) for one in zone.get("resources") or ()]
        by_name = {one.get("name"): one for one in listed}
        for name, value in values.items():
            entry = by_name.get(name)
            if entry is None:
                if not clearing:
                    listed.append({"name": name, **dict.fromkeys(_FIELDS, str(value))})
                    listed.sort(key=lambda one: str(one.get("name")))
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
        return None  # what cannot be read is replaced
