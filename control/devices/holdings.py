"""What the pods of a node hold of its devices (spec 06 §3.2, §3.9)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from control.devices.inventory import DeviceInventory
from control.devices.room import DeviceHolding, TypeUse
from control.holdings import ReservedHoldings

UsedKey = tuple[object, ...]
"""Equal for nodes on which the same amounts of the same devices of one type are held."""


@dataclass(frozen=True)
class PodDevices:
    """What one pod got. `reservation`: uid of the reservation that it uses."""

    devices: DeviceHolding
    reservation: str = ""


def left_by(reserved: DeviceHolding, owners: Iterable[DeviceHolding]) -> DeviceHolding:
    """What a reservation still holds beside its owners."""
    taken = DeviceSums()
    for owner in owners:
        taken.count(owner, 1)
    return {
        kind: tuple(
            replace(
                device,
                amounts={
                    name: amount - used.get(name, 0)
                    for name, amount in device.amounts.items()
                    if amount > used.get(name, 0)
                },
                functions=tuple(
                    function for function in device.functions if function[1] not in taken.functions(kind, device.minor)
                ),
            )
            for device in devices
            for used in (taken.amounts(kind, device.minor),)
        )
        for kind, devices in reserved.items()
    }


class DeviceSums:
    """Sums of holdings by device."""

    def __init__(self) -> None:
        self._amounts: dict[str, dict[int, dict[str, int]]] = {}
        self._functions: dict[str, dict[int, dict[str, int]]] = {}
        """Type -> minor -> bus id -> number of pods."""

    def count(self, holding: DeviceHolding, sign: int) -> None:
        for kind, devices in holding.items():
            for device in devices:
                functions = ((bus_id, 1) for _, bus_id in device.functions)
                for table, items in ((self._amounts, device.amounts.items()), (self._functions, functions)):
                    held = table.setdefault(kind, {}).setdefault(device.minor, {})
                    for key, amount in items:
                        total = held.get(key, 0) + sign * amount
                        if total:
                            held[key] = total
                        else:
                            held.pop(key, None)
                    if not held:
                        del table[kind][device.minor]

    def amounts(self, kind: str, minor: int) -> Mapping[str, int]:
        return self._amounts.get(kind, {}).get(minor, {})

    def functions(self, kind: str, minor: int) -> Collection[str]:
        """Bus ids."""
        return self._functions.get(kind, {}).get(minor, {})

    def uses(self) -> dict[str, TypeUse]:
        """A copy, by type."""
        return {
            kind: TypeUse(
                {minor: dict(held) for minor, held in amounts.items()},
                {minor: frozenset(held) for minor, held in self._functions.get(kind, {}).items()},
            )
            for kind, amounts in self._amounts.items()
        }

    def keys(self) -> dict[str, UsedKey]:
        """By type with uses, ordered."""
        return {
            kind: tuple(
                (minor, tuple(sorted(held.items())))
                for table in (self._amounts, self._functions)
                for minor, held in sorted(table.get(kind, {}).items())
            )
            for kind, by_minor in sorted(self._amounts.items())
            if by_minor or self._functions.get(kind)
        }


class NodeDeviceHoldings(ReservedHoldings[PodDevices]):
    """Devices. They do not depend on the Device object, which may arrive later or shrink."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = DeviceSums()

    def left(self, uids: Iterable[str]) -> DeviceSums:
        """What these reservations hold together beside their owners."""
        left = DeviceSums()
        for uid in uids:
            if uid in self.counted:
                left.count(self.counted[uid].devices, 1)
        return left

    def _left_by(self, reserved: PodDevices, owners: Iterable[PodDevices]) -> PodDevices:
        return replace(reserved, devices=left_by(reserved.devices, (owner.devices for owner in owners)))

    def _count(self, holding: PodDevices, sign: int) -> None:
        self.sums.count(holding.devices, sign)

    def conflicts(self, uid: str, holding: PodDevices, inventory: DeviceInventory) -> Iterator[str]:
        """What of a holding others hold already, or the node does not have. Nothing while no device is known. What a
        reservation shares with its owners is no conflict."""
        own = self.left([holding.reservation]) if holding.reservation else DeviceSums()
        for owner in self._owners.get(uid, {}).values():
            own.count(owner.devices, 1)
        for kind, devices in holding.devices.items():
            units = inventory.units.get(kind, {})
            for device in devices:
                unit = units.get(device.minor)
                if unit is None:
                    if inventory.units:
                        yield f"the node has no {kind} {device.minor}"
                    continue
                used, shared = self.sums.amounts(kind, device.minor), own.amounts(kind, device.minor)
                if any(
                    used.get(name, 0) - shared.get(name, 0) + amount > unit.total[name]
                    for name, amount in device.amounts.items()
                    if name in unit.total
                ):
                    yield f"other pods hold {kind} {device.minor}"
                taken = set(self.sums.functions(kind, device.minor)) - set(own.functions(kind, device.minor))
                if any(bus_id in taken for _, bus_id in device.functions):
                    yield f"another pod holds a virtual function of {kind} {device.minor}"
