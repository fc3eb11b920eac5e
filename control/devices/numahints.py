"""NUMA hints of devices: which sets of NUMA nodes have the devices for a pod (spec 06 §3.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from control.devices.inventory import UNKNOWN_NUMA, DeviceInventory
from control.devices.needs import DeviceNeed
from control.devices.room import DeviceHolding
from control.devices.search import DevicesLacking
from koordlet.api.crs.device import GPU

SAME_GPUS: Final = 500
"""Score of a set whose GPUs are those that the pod would get without NUMA: more than cpu and memory together."""
MAX_NUMA_NODES: Final = 8
"""The work doubles with each NUMA node."""


@dataclass(frozen=True, slots=True)
class NumaSet:
    """NUMA nodes that have all devices for a pod."""

    nodes: frozenset[int]
    preferred: bool
    score: int


Trial = Callable[[frozenset[int]], "DeviceHolding | DevicesLacking"]
"""NUMA nodes -> what the pod would get there."""


def numa_sets(inventory: DeviceInventory, need: DeviceNeed, trial: Trial) -> Mapping[str, Sequence[NumaSet]]:
    """Type -> the sets that can serve it; empty if no device reports its NUMA node. Raises DevicesLacking."""
    nodes = sorted(_numa_nodes(inventory))[:MAX_NUMA_NODES]
    whole = trial(frozenset(nodes))
    if isinstance(whole, DevicesLacking):
        raise whole
    served: list[tuple[frozenset[int], int]] = []
    for size in range(1, len(nodes) + 1):
        for members in combinations(nodes, size):
            chosen = frozenset(members)
            holding = trial(chosen)
            if not isinstance(holding, DevicesLacking):
                same = GPU not in need.requests or _minors(holding) == _minors(whole)
                served.append((chosen, SAME_GPUS if same else 0))
    smallest = min((len(chosen) for chosen, _ in served), default=0)
    sets = [NumaSet(chosen, len(chosen) == smallest, score) for chosen, score in served]
    return dict.fromkeys(need.requests, sets) if nodes else {}


def _numa_nodes(inventory: DeviceInventory) -> set[int]:
    return {
        unit.place.numa
        for units in inventory.units.values()
        for unit in units.values()
        if unit.place is not None and unit.place.numa != UNKNOWN_NUMA
    }


def _minors(holding: DeviceHolding) -> tuple[int, ...]:
    return tuple(device.minor for device in holding.get(GPU, ()))
