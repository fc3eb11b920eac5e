"""What decisions about a node depend on. Nodes that are equal in it share a state, and with it what was decided."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from control.numa.affinity import NodeRoom

NodePolicies = tuple[str, str, str]
"""(CPU bind policy, NUMA topology policy, NUMA allocation strategy or "") of a node."""


@dataclass(frozen=True, eq=False)
class RoomState:
    """`status`: by position of the zone."""

    room: NodeRoom
    status: tuple[str, ...]
    policies: NodePolicies
    choices: dict[Any, Any] = field(default_factory=dict)
    """What `decision` remembers."""


class RoomStates:
    """A state lives as long as a node is in it."""

    def __init__(self) -> None:
        self._states: WeakValueDictionary[Hashable, RoomState] = WeakValueDictionary()

    def of(self, room: NodeRoom, status: tuple[str, ...], policies: NodePolicies) -> RoomState:
        """The references of CPUs do not count: no CPU is given to two pods."""
        zones = tuple(
            (zone.id, zone.cpus, tuple(zone.available.items()), tuple(zone.total.items())) for zone in room.zones
        )
        # A state keeps its layout, so that the id stands for this layout while the key exists.
        exclusive = room.held.exclusive_cores, room.held.exclusive_nodes
        key = (id(room.layout), room.free, zones, exclusive, status, policies)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = RoomState(room, status, policies)
        return state
