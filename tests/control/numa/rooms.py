"""Nodes with NUMA zones for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from control.numa.accumulator import HeldCPUs
from control.numa.affinity import NodeRoom, ZoneRoom
from tests.control.numa.layouts import layout, mask

GIB = 1 << 30


def room(
    shape: tuple[int, int, int, int],
    amounts: Sequence[Mapping[str, int]],
    *,
    taken: str = "",
    used: Mapping[int, Mapping[str, int]] | None = None,
) -> NodeRoom:
    """`amounts`: total by zone; `taken`: CPUs that are allocated; `used`: amounts by zone that are allocated."""
    cores = layout(*shape)
    free = cores.cpus & ~mask(taken)
    zones = [
        ZoneRoom(
            zone,
            {name: amount - (used or {}).get(zone, {}).get(name, 0) for name, amount in total.items()},
            total,
            free & cores.nodes.get(zone, 0),
        )
        for zone, total in enumerate(amounts)
    ]
    return NodeRoom(cores, free, zones, HeldCPUs())
