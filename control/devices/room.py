"""What is free on a node, as one allocation may see it (spec 06 §3.5)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field

from control.devices.inventory import UNKNOWN_NUMA, DeviceInventory, DeviceUnit
from control.devices.requests import completed


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that a pod holds, and how much of it. `functions`: (minor, bus id) of virtual functions."""

    minor: int
    amounts: Mapping[str, int]
    functions: tuple[tuple[int, str], ...] = ()
    template: str = ""


DeviceHolding = Mapping[str, tuple[HeldDevice, ...]]
"""What a pod holds, by type of device."""


@dataclass(frozen=True)
class DeviceTraits:
    """Labels of a Node that decide about devices. `honors_partitions`: its label is `Honor`."""

    vendor: str = ""
    model: str = ""
    isolation: str = ""
    honors_partitions: bool = False


@dataclass(frozen=True)
class TypeUse:
    """What pods hold of the devices of one type."""

    amounts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """By minor, only amounts above 0."""
    functions: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By minor: bus ids of virtual functions."""


NO_USE = TypeUse()


@dataclass(frozen=True)
class DeviceState:
    """All that a decision about one node depends on."""

    inventory: DeviceInventory
    traits: DeviceTraits = DeviceTraits()
    uses: Mapping[str, TypeUse] = field(default_factory=dict)
    preferred: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Type -> minors that a reservation holds for the pod."""
    limits: Mapping[str, TypeUse] = field(default_factory=dict)
    """Type -> what is left in a Restricted reservation; the pod gets nothing else of the type."""

    def use(self, kind: str) -> TypeUse:
        return self.uses.get(kind, NO_USE)


class TypeRoom:
    """The devices of one type that may be chosen. Minors are ascending."""

    def __init__(
        self,
        units: Mapping[int, DeviceUnit],
        use: TypeUse,
        chosen: Callable[[DeviceUnit], bool],
        preferred: frozenset[int],
        limit: TypeUse | None,
    ) -> None:
        self.units = {minor: unit for minor, unit in units.items() if unit.total and chosen(unit)}
        self.free: dict[int, dict[str, int]] = {}
        """By minor and resource that the device has."""
        for minor, unit in self.units.items():
            used = use.amounts.get(minor, {})
            self.free[minor] = {name: max(0, total - used.get(name, 0)) for name, total in unit.total.items()}
        self.in_use = frozenset(minor for minor, used in use.amounts.items() if any(used.values()))
        """Minors with usage on the node, whether or not they may be chosen."""
        self.functions = use.functions
        self.preferred = preferred
        self._limit = limit
        if limit is not None:
            self.units = {minor: unit for minor, unit in self.units.items() if minor in limit.amounts}
            for minor in self.units:
                left = limit.amounts[minor]
                self.free[minor] = {name: min(free, left.get(name, 0)) for name, free in self.free[minor].items()}

    def only(self, minors: Collection[int]) -> TypeRoom:
        """The same room with fewer devices."""
        fewer = copy(self)
        fewer.units = {minor: unit for minor, unit in self.units.items() if minor in minors}
        return fewer

    def free_function(self, minor: int, bus_id: str) -> bool:
        """Whether the pod may use this virtual function."""
        if self._limit is not None and self._limit.functions:
            return bus_id in self._limit.functions.get(minor, ())
        return bus_id not in self.functions.get(minor, ())

    def fits(self, minor: int, request: Mapping[str, int]) -> bool:
        """A resource that the device lacks is not compared."""
        free = self.free[minor]
        if not any(free.values()):
            return False
        completed_request = completed(request, self.units[minor].total)
        return all(amount <= free[name] for name, amount in completed_request.items() if name in free)

    def fitting(self, request: Mapping[str, int]) -> list[int]:
        return [minor for minor in self.units if self.fits(minor, request)]

    def pcie(self, minor: int) -> str | None:
        place = self.units[minor].place
        return None if place is None else place.pcie


def type_room(
    state: DeviceState, kind: str, numa: Collection[int] | None, chosen: Callable[[DeviceUnit], bool]
) -> TypeRoom:
    """`numa`: the NUMA nodes that devices must be on; those of unknown NUMA nodes may be chosen, too."""

    def allowed(unit: DeviceUnit) -> bool:
        if numa is not None:
            place = unit.place
            if place is None or (place.numa != UNKNOWN_NUMA and place.numa not in numa):
                return False
        return chosen(unit)

    preferred, limit = state.preferred.get(kind, frozenset()), state.limits.get(kind)
    return TypeRoom(state.inventory.units.get(kind, {}), state.use(kind), allowed, preferred, limit)
