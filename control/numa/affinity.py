"""Dividing a request among NUMA zones, and the CPUs for it (spec 06 §2.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from control.numa.accumulator import (
    NOT_ENOUGH_CPUS,
    AllocationFailed,
    CPUSearchRules,
    HeldCPUs,
    satisfies,
    take,
    usable,
)
from control.numa.holdings import Holding
from control.numa.layout import CoreLayout
from koordlet.api.annotations.scheduling import BIND_FULL_PCPUS


@dataclass(frozen=True)
class NumaRequest:
    """What a pod requests on a node. Amounts are positive, cpu in milli-cores."""

    amounts: Mapping[str, int]
    cpus: int = 0
    """CPUs of its own; 0: shared CPUs."""
    rules: CPUSearchRules = field(default_factory=CPUSearchRules)
    required: bool = False
    """The bind policy of `rules` is a must."""

    @property
    def required_policy(self) -> str:
        return self.rules.policy if self.required else ""


@dataclass(frozen=True)
class ZoneRoom:
    """What is free in one NUMA zone."""

    id: int
    available: Mapping[str, int]
    """By published resource."""
    total: Mapping[str, int]
    cpus: int = 0
    """Mask of its free CPUs."""


@dataclass(frozen=True)
class NodeRoom:
    """What is free on a node."""

    layout: CoreLayout
    free: int
    """Mask of the free CPUs."""
    zones: Sequence[ZoneRoom] = ()
    """By id."""
    held: HeldCPUs = field(default_factory=HeldCPUs)
    preferred: int = 0
    """Mask of the CPUs that are taken first."""

    def publishes(self, resource: str) -> bool:
        return any(resource in zone.total for zone in self.zones)


def room_for(node: NodeRoom, request: NumaRequest, zone: ZoneRoom, resource: str) -> int:
    """How much of a resource the pod can get in a zone. For CPUs of its own: whole, free CPUs (or cores)."""
    available = max(0, zone.available.get(resource, 0))
    if resource != "cpu" or not request.cpus:
        return available
    cpus = min(available // 1000, usable(node.layout, zone.cpus, request.required_policy).bit_count())
    return 1000 * (cpus - cpus % _unit(node, request))


def allocate(node: NodeRoom, request: NumaRequest, zones: Sequence[ZoneRoom] | None) -> Holding:
    """CPUs and amounts for a pod: of these zones, or of the node (None). Raises AllocationFailed."""
    split: dict[int, dict[str, int]] = {}
    if zones is not None:
        for resource, amount in request.amounts.items():
            if node.publishes(resource):
                for zone, part in _split(node, request, zones, resource, amount).items():
                    split.setdefault(zone, {})[resource] = part
    cpus = _cpus(node, request, split) if request.cpus else 0
    return Holding(cpus, dict(sorted(split.items())), request.rules.exclusive if cpus else "")


def _split(
    node: NodeRoom, request: NumaRequest, zones: Sequence[ZoneRoom], resource: str, amount: int
) -> dict[int, int]:
    """Zone -> its part: even, but not more than a zone has."""
    rooms = sorted((room_for(node, request, zone, resource), zone.id) for zone in zones)
    bound = resource == "cpu" and request.cpus > 0
    unit = 1000 * _unit(node, request) if bound else 1
    left = amount
    parts: dict[int, int] = {}
    for visited, (room, zone) in enumerate(rooms):
        offer = left // unit // (len(rooms) - visited) * unit
        part = min(offer, room)
        if part > 0:
            parts[zone] = part
        left -= part
    if left > 0:
        raise AllocationFailed(f"Insufficient NUMA {resource}")
    return parts


def _unit(node: NodeRoom, request: NumaRequest) -> int:
    """CPUs that are given together."""
    return max(1, node.layout.cpus_per_core) if request.required_policy == BIND_FULL_PCPUS else 1


def _cpus(node: NodeRoom, request: NumaRequest, split: Mapping[int, Mapping[str, int]]) -> int:
    required, layout = request.required_policy, node.layout
    available = usable(layout, node.free, required)
    if request.cpus > available.bit_count():
        raise AllocationFailed(NOT_ENOUGH_CPUS)
    if any("cpu" in amounts for amounts in split.values()):
        chosen = 0
        for zone, amounts in split.items():
            here = available & layout.nodes.get(zone, 0)
            need = min(amounts.get("cpu", 0) // 1000, here.bit_count())
            if need:
                chosen |= take(layout, here, need, request.rules, node.held, node.preferred)
        if chosen.bit_count() != request.cpus:
            raise AllocationFailed(NOT_ENOUGH_CPUS)
    else:
        chosen = take(layout, available, request.cpus, request.rules, node.held, node.preferred)
    if not satisfies(layout, chosen, required):
        raise AllocationFailed(f"insufficient CPUs to satisfy required cpu bind policy {required}")
    return chosen
