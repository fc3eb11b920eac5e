"""GPU partitions: groups of GPUs that may be allocated together (spec 06 §3.5.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from control.devices.requests import TypeRequest
from control.devices.room import DeviceState, TypeRoom
from control.devices.search import DevicesLacking
from koordlet.api.annotations.device import (
    PARTITION_RESTRICTED,
    GPUPartition,
    GPUPartitionSpec,
    PartitionTable,
)

BUILT_IN_MODELS: Final = ("H100", "H800", "H20")
BUILT_IN_VENDORS: Final = ("", "nvidia")
NO_TABLE: Final = "node(s) missing GPU Partition Table"
NO_SIZE: Final = "node(s) Unsupported number of GPU requests"
NO_PARTITION: Final = "Insufficient Partitioned GPU Devices"
_WEIGHTS: Final = {8: 10_000, 4: 100, 2: 1}
"""Size of a partition -> what it counts that such a partition stays free."""


def _built_in() -> PartitionTable:
    def partitions(size: int) -> list[GPUPartition]:
        minors = (list(range(first, first + size)) for first in range(0, 8, size))
        return [GPUPartition(minors=members, gpu_link_type="NVLink", allocation_score=1) for members in minors]

    return {size: partitions(size) for size in (1, 2, 4, 8)}


BUILT_IN: Final = _built_in()


def table_of(state: DeviceState) -> tuple[PartitionTable | None, bool]:
    """(the partitions of a node, whether only they may be allocated)."""
    inventory, traits = state.inventory, state.traits
    if inventory.partitions is not None:
        return inventory.partitions, inventory.honors_partitions
    if traits.vendor in BUILT_IN_VENDORS and traits.model in BUILT_IN_MODELS:
        return BUILT_IN, traits.honors_partitions
    return None, False


def take_partition(
    room: TypeRoom,
    request: TypeRequest,
    table: PartitionTable | None,
    spec: GPUPartitionSpec | None,
) -> Sequence[int]:
    """The minors of the best partition. Raises DevicesLacking."""
    if table is None:
        raise DevicesLacking(NO_TABLE, final=True)
    if not table.get(request.count):
        raise DevicesLacking(NO_SIZE, final=True)
    groups = _by_score(table[request.count])
    if spec is not None and spec.allocate_policy == PARTITION_RESTRICTED:
        groups = groups[:1]
    for group in groups:
        candidates = [partition for partition in group if _usable(room, partition, request, spec)]
        if candidates:
            best = max(
                candidates, key=lambda partition: _left(table, request.count, room.in_use | set(partition.minors))
            )
            return sorted(best.minors)
    raise DevicesLacking(NO_PARTITION)


def _by_score(partitions: Iterable[GPUPartition]) -> list[list[GPUPartition]]:
    """Groups with the same score, the highest first."""
    groups: dict[int, list[GPUPartition]] = {}
    for partition in partitions:
        groups.setdefault(partition.allocation_score, []).append(partition)
    return [groups[score] for score in sorted(groups, reverse=True)]


def _usable(room: TypeRoom, partition: GPUPartition, request: TypeRequest, spec: GPUPartitionSpec | None) -> bool:
    if any(minor in room.in_use or minor not in room.units for minor in partition.minors):
        return False
    if spec is not None and spec.ring_bus_bandwidth is not None:
        bandwidth = partition.ring_bus_bandwidth
        if bandwidth is None or bandwidth < spec.ring_bus_bandwidth:
            return False
    return all(room.fits(minor, request.amounts) for minor in partition.minors)


def _left(table: PartitionTable, size: int, taken: Collection[int]) -> int:
    """How much the partitions count that stay free."""
    left = 0
    for other, weight in _WEIGHTS.items():
        if other >= size and table.get(other):
            best = _by_score(table[other])[0]
            left += weight * sum(
                partition.allocation_score for partition in best if not set(partition.minors) & set(taken)
            )
    return left
