"""All devices of a pod on one node: each type by itself, or several types jointly (spec 06 §3.5, §3.6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from control.devices.inventory import DeviceUnit
from control.devices.needs import DeviceNeed
from control.devices.partitions import table_of, take_partition
from control.devices.rating import DeviceStrategy
from control.devices.requests import TypeRequest
from control.devices.room import DeviceHolding, DeviceState, HeldDevice, TypeRoom, type_room
from control.devices.search import DevicesLacking, held, take_default
from control.devices.tree import NODE, GPUScope, gpu_tree, take_close
from koordlet.api.annotations.device import (
    APPLY_FOR_ALL,
    EXCLUSIVE_PCIE_LEVEL,
    TOPOLOGY_SCOPE_LEVELS,
)
from koordlet.api.crs.device import GPU

NO_TREE: Final = "node(s) missing GPU Device Topology Tree"
MULTI_SHARED: Final = "node(s) Unsupported Multi-Shared GPU"
NO_SCOPED_GPUS: Final = "Insufficient Topology Scoped GPU Devices"
NO_GPUS: Final = "Insufficient GPU Devices"
NO_PRIMARY: Final = "node(s) Insufficient primary device"
JOINT_VIOLATED: Final = "node(s) Device Joint-Allocate rules violation"
NO_ISOLATION: Final = "GPUIsolationProviderHAMICore not found on the node"
NO_TEMPLATE: Final = "no matched GPU shared resource template"


def insufficient(kind: str) -> str:
    return f"Insufficient {kind} devices"


def allocate(
    state: DeviceState, need: DeviceNeed, strategy: DeviceStrategy, numa: Collection[int] | None = None
) -> DeviceHolding:
    """What the pod gets. `numa`: the NUMA nodes that its devices must be on. Raises DevicesLacking."""
    gpu = need.gpu
    if gpu is not None and gpu.shared and need.isolation and need.isolation != state.traits.isolation:
        raise DevicesLacking(NO_ISOLATION, final=True)
    return _Allocation(state, need, strategy, numa).run()


class _Allocation:
    """One call of `allocate`."""

    def __init__(
        self, state: DeviceState, need: DeviceNeed, strategy: DeviceStrategy, numa: Collection[int] | None
    ) -> None:
        self._state = state
        self._need = need
        self._strategy = strategy
        self._numa = numa
        self._rooms = {kind: self._room(kind) for kind in need.requests}

    def run(self) -> DeviceHolding:
        taken: dict[str, tuple[HeldDevice, ...]] = {}
        if self._need.joint:
            taken.update(self._jointly())
        for kind in self._need.requests:
            if kind not in taken:
                taken[kind] = self._take(kind)
        return {kind: taken[kind] for kind in sorted(taken)}

    def _room(self, kind: str) -> TypeRoom:
        hint = self._need.hint(kind)
        selector = hint.selector

        def selected(unit: DeviceUnit) -> bool:
            return selector is None or selector.holds(unit.labels)

        room = type_room(self._state, kind, self._numa, selected)
        if hint.exclusive_policy != EXCLUSIVE_PCIE_LEVEL:
            return room
        busy = {
            unit.place.pcie
            for minor, unit in self._state.inventory.units.get(kind, {}).items()
            if minor in room.in_use and unit.place is not None
        }
        return type_room(
            self._state,
            kind,
            self._numa,
            lambda unit: selected(unit) and unit.place is not None and unit.place.pcie not in busy,
        )

    def _jointly(self) -> Mapping[str, tuple[HeldDevice, ...]]:
        primary, *secondary = self._need.joint
        try:
            first = self._take(primary)
        except DevicesLacking as lacking:
            raise DevicesLacking(NO_PRIMARY, final=lacking.final) from lacking
        switches = self._switches(primary, first)
        taken = {primary: first}
        for kind in secondary:
            taken[kind] = self._take(kind, switches)
            if self._need.same_pcie and self._switches(kind, taken[kind]) != switches:
                raise DevicesLacking(JOINT_VIOLATED)
        return taken

    def _switches(self, kind: str, devices: tuple[HeldDevice, ...]) -> set[str]:
        room = self._rooms[kind]
        return {switch for device in devices if (switch := room.pcie(device.minor)) is not None}

    def _take(self, kind: str, switches: Collection[str] | None = None) -> tuple[HeldDevice, ...]:
        """`switches`: those of the primary type; None for the primary type itself."""
        room = self._rooms[kind]
        if room.preferred and self._need.hint(kind).allocate_strategy != APPLY_FOR_ALL:
            with suppress(DevicesLacking):  # if the reservation alone suffices
                return self._take_from(room.only(room.preferred), kind, switches)
        return self._take_from(room, kind, switches)

    def _take_from(self, room: TypeRoom, kind: str, switches: Collection[str] | None) -> tuple[HeldDevice, ...]:
        request, hint = self._need.requests[kind], self._need.hint(kind)
        units = self._state.inventory.units.get(kind, {})
        if not units:
            raise DevicesLacking(insufficient(kind), final=True)
        if hint.allocate_strategy == APPLY_FOR_ALL:
            if not room.units:
                raise DevicesLacking(insufficient(kind), final=True)
            request = replace(request, count=len(room.units))
        if hint.vf_selector is not None and not any(unit.groups for unit in units.values()):
            raise DevicesLacking(f"Insufficient {kind} VirtualFunctions", final=True)
        most = 0
        if switches and kind != GPU:  # a pod never gets more GPUs than it requests
            most = len(switches)
            if self._need.same_pcie:
                request = replace(request, count=max(request.count, most))
        if kind == GPU and hint.vf_selector is None and not switches:
            devices = self._gpus(room, request)
            if devices is not None:
                return devices

        def score(minor: int) -> int:
            return self._strategy.of_device(room, minor, request.amounts)

        taken = take_default(room, request, score, hint.vf_selector, switches or (), most)
        if len(taken) < request.count:
            raise DevicesLacking(insufficient(kind))
        return tuple(sorted(taken, key=lambda device: device.minor))

    def _gpus(self, room: TypeRoom, request: TypeRequest) -> tuple[HeldDevice, ...] | None:
        """By partition or topology; None: by the default search."""
        scope = self._need.hint(GPU).required_topology_scope
        if not request.shared:
            table, honored = table_of(self._state)
            try:
                return _all(room, request, take_partition(room, request, table, self._need.partition))
            except DevicesLacking:
                if honored or self._need.partition is not None:
                    raise
        tree = self._tree(room)
        if tree is None or (request.shared and request.count > 1):
            if scope:
                raise DevicesLacking(NO_TREE if tree is None else MULTI_SHARED, final=True)
            return None

        def score(minor: int) -> int:
            return self._strategy.of_device(room, minor, request.amounts)

        minors = take_close(room, tree, request, TOPOLOGY_SCOPE_LEVELS.get(scope, NODE), score)
        if not minors:
            raise DevicesLacking(NO_SCOPED_GPUS if scope else NO_GPUS)
        return _all(room, request, minors)

    def _tree(self, room: TypeRoom) -> GPUScope | None:
        """None if the place of any GPU of the node is unknown."""
        if any(unit.place is None for unit in self._state.inventory.units[GPU].values()):
            return None
        return gpu_tree(room)


def _all(room: TypeRoom, request: TypeRequest, minors: Collection[int]) -> tuple[HeldDevice, ...]:
    return tuple(held(room, minor, request) for minor in minors)
