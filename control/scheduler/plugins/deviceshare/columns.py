"""What filters and scores read of the devices of all nodes, as columns over the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from control.devices.requests import WHOLE, TypeRequest
from control.devices.room import DeviceState, DeviceTraits, type_room
from control.scheduler.state.columns import IntArray, Mask, RowArray
from control.scheduler.state.table import NodeTable
from koordlet.api import names
from koordlet.api.crs.device import FPGA, GPU, RDMA

UNLISTED: Final = -1
"""Amount of a resource that a device lacks, or of a device that does not exist."""
RESOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    GPU: (
        names.RESOURCE_GPU_CORE,
        names.RESOURCE_GPU_MEMORY,
        names.RESOURCE_GPU_MEMORY_RATIO,
        names.RESOURCE_HUAWEI_NPU_CORE,
        names.RESOURCE_HUAWEI_NPU_CPU,
        names.RESOURCE_HUAWEI_NPU_DVPP,
    ),
    RDMA: (names.RESOURCE_RDMA,),
    FPGA: (names.RESOURCE_FPGA,),
}
"""Type of device -> what pods may request of it."""
_WIDTH: Final = 8


@dataclass(frozen=True, eq=False)
class TypeBlock:
    """The devices of one type of a state: what `TypeColumns` hold for its rows."""

    total: IntArray
    """[device, resource]"""
    free: IntArray
    """[device, resource]"""
    total_sum: IntArray
    """[resource]"""
    free_sum: IntArray
    """[resource]"""
    listed: int
    tree: bool

    @classmethod
    def of(cls, state: DeviceState, kind: str) -> TypeBlock:
        room, units = type_room(state, kind, None, lambda unit: True), state.inventory.units.get(kind, {})
        resources = RESOURCES[kind]
        total = [[unit.total.get(name, UNLISTED) for name in resources] for unit in room.units.values()]
        free = [[room.free[minor].get(name, UNLISTED) for name in resources] for minor in room.units]
        shape = (len(room.units), len(resources))
        tree = all(unit.place is not None for unit in units.values())
        totals, frees = (np.array(amounts, np.int64).reshape(shape) for amounts in (total, free))
        total_sum, free_sum = (np.maximum(amounts, 0).sum(axis=0) for amounts in (totals, frees))
        return cls(totals, frees, total_sum, free_sum, len(units), tree)


class TypeColumns:
    """The devices of one type; addressed by their positions in ascending order of minors."""

    def __init__(self, table: NodeTable, resources: tuple[str, ...]) -> None:
        self.resources = {name: index for index, name in enumerate(resources)}
        shape = (_WIDTH, len(resources))
        self.total = table.matrix(*shape, dtype=np.int64, fill=UNLISTED)
        """[device, resource, row]"""
        self.free = table.matrix(*shape, dtype=np.int64, fill=UNLISTED)
        """[device, resource, row]"""
        self.total_sum = table.matrix(len(resources), dtype=np.int64)
        """[resource, row]"""
        self.free_sum = table.matrix(len(resources), dtype=np.int64)
        """[resource, row]"""
        self.listed = table.column(np.int64)
        """Devices in the inventory, unhealthy ones included."""
        self.usable = table.column(np.int64)
        """Devices that have resources."""
        self.tree = table.column(np.bool_, False)
        """The place of every device is known."""
        self._blocks: dict[int, TypeBlock] = {}
        """By row: what was put."""

    def put(self, row: int, block: TypeBlock) -> None:
        previous = self._blocks.get(row)
        if previous is block:
            return
        number = len(block.free)
        if number > len(self.free.data):
            for matrix in (self.total, self.free):
                matrix.widen(number, len(self.resources))
        if previous is not None and len(previous.free) > number:
            self.clear(row)
        self._blocks[row] = block
        self.total.data[:number, :, row], self.free.data[:number, :, row] = block.total, block.free
        self.total_sum.data[:, row], self.free_sum.data[:, row] = block.total_sum, block.free_sum
        self.listed.data[row], self.usable.data[row], self.tree.data[row] = block.listed, number, block.tree

    def clear(self, row: int) -> None:
        if self._blocks.pop(row, None) is None:
            return
        self.total.data[:, :, row] = self.free.data[:, :, row] = UNLISTED
        self.total_sum.data[:, row] = self.free_sum.data[:, row] = 0
        self.listed.data[row] = self.usable.data[row] = self.tree.data[row] = 0

    def fitting(self, request: TypeRequest, rows: RowArray) -> IntArray:
        """[row]: number of devices with room; see `TypeRoom.fits`."""
        free = self.free.data[:, :, rows]
        ok: Mask = np.any(free > 0, axis=1)
        for name, amount in request.amounts.items():
            ok &= _covers(free[:, self.resources[name]], amount)
        memory, ratio = names.RESOURCE_GPU_MEMORY, names.RESOURCE_GPU_MEMORY_RATIO
        if (memory in request.amounts) != (ratio in request.amounts):
            size = self.total.data[:, self.resources[memory]][:, rows]
            if memory in request.amounts:
                part = np.maximum(1, request.amounts[memory] * WHOLE // np.maximum(size, 1))
                ok &= (size <= 0) | _covers(free[:, self.resources[ratio]], part)
            else:
                ok &= (size <= 0) | _covers(free[:, self.resources[memory]], request.amounts[ratio] * size // WHOLE)
        count: IntArray = ok.sum(axis=0)
        return count


class DeviceColumns:
    """`state`: number of the state of the row's devices (`DeviceBook`), 0 for a node without Device object."""

    def __init__(self, table: NodeTable) -> None:
        self.state = table.column(np.int64)
        self.honors = table.column(np.bool_, False)
        """Only GPU partitions may be allocated."""
        self.isolation = table.column(np.int64)
        """Number of the label `gpu-isolation-provider` in `labels`."""
        self.model = table.column(np.int64)
        """Number of (vendor, model) in `models`."""
        self.labels: dict[str, int] = {"": 0}
        self.models: dict[tuple[str, str], int] = {("", ""): 0}
        self.types = {kind: TypeColumns(table, resources) for kind, resources in RESOURCES.items()}

    def put(
        self, row: int, number: int, traits: DeviceTraits, blocks: Mapping[str, TypeBlock], *, honors: bool
    ) -> None:
        self.state.data[row] = number
        self.honors.data[row] = honors
        self.isolation.data[row] = self.labels.setdefault(traits.isolation, len(self.labels))
        self.model.data[row] = self.models.setdefault((traits.vendor, traits.model), len(self.models))
        for kind, columns in self.types.items():
            columns.put(row, blocks[kind])

    def clear(self, row: int) -> None:
        self.state.data[row] = self.isolation.data[row] = self.model.data[row] = 0
        self.honors.data[row] = False
        for columns in self.types.values():
            columns.clear(row)


def _covers(free: IntArray, amount: IntArray | int) -> Mask:
    covers: Mask = (free == UNLISTED) | (free >= amount)
    return covers
