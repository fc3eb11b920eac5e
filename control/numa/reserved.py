"""What a pod may use of a node through its reservations (spec 06 §2.9)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from control.numa.affinity import NodeRoom, ZoneRoom
from control.numa.holdings import Holding


def within(room: NodeRoom, reserved: Holding, left: Holding, resources: Collection[str]) -> NodeRoom:
    """The room of a node without what a Restricted reservation does not have left.

    `reserved`: what it got; kinds that it did not get are not limited. `left`: what its owners do not hold.
    `resources`: the names that it restricts."""
    cpus = left.cpus if reserved.cpus and "cpu" in resources else ~0

    def limited(zone: ZoneRoom) -> ZoneRoom:
        available = dict(zone.available)
        if reserved.zones:
            amounts = left.zones.get(zone.id, {})
            for name in available.keys() & set(resources):
                available[name] = min(available[name], amounts.get(name, 0))
        return replace(zone, available=available, cpus=zone.cpus & cpus)

    return replace(room, free=room.free & cpus, zones=[limited(zone) for zone in room.zones])
