"""How the CPUs of a node belong to cores, NUMA nodes and sockets (annotation cpu-topology, spec 06 §2.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from control.numa.masks import numbers_of, union
from koordlet.api.cpus import MAX_CPU

MAX_ID: Final = 1 << 16
"""Ids of cores, NUMA nodes and sockets are below; the key of a core is `socket << 16 | core`."""


class LayoutError(ValueError):
    """A CPU topology contradicts itself or is out of bounds."""


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core. `key`: unique in the node; `cpus`: mask of its CPUs."""

    key: int
    socket: int
    node: int
    cpus: int


@dataclass(frozen=True)
class CoreLayout:
    """The CPUs of a node. Empty if it is unknown."""

    cores: tuple[Core, ...] = ()
    """By key."""
    nodes: Mapping[int, int] = field(default_factory=dict)
    """NUMA node -> mask of its CPUs, ascending."""
    sockets: Mapping[int, int] = field(default_factory=dict)
    """Socket -> mask of its CPUs, ascending."""

    @cached_property
    def cpus(self) -> int:
        """Mask of all CPUs."""
        return union(core.cpus for core in self.cores)

    @property
    def valid(self) -> bool:
        return bool(self.cores)

    @cached_property
    def number(self) -> int:
        """Number of CPUs."""
        return self.cpus.bit_count()

    @cached_property
    def cpus_per_core(self) -> int:
        """CPUs of the largest core. With CPUs offline, cores that lack one are never complete."""
        return max((core.cpus.bit_count() for core in self.cores), default=0)

    @cached_property
    def cpus_per_node(self) -> int:
        return self.number // len(self.nodes) if self.nodes else 0

    @cached_property
    def cpus_per_socket(self) -> int:
        return self.number // len(self.sockets) if self.sockets else 0

    @cached_property
    def socket_of_node(self) -> Mapping[int, int]:
        """NUMA node -> socket of its first core."""
        sockets: dict[int, int] = {}
        for core in self.cores:
            sockets.setdefault(core.node, core.socket)
        return sockets

    @cached_property
    def core_of(self) -> Mapping[int, Core]:
        """CPU -> core."""
        return {cpu: core for core in self.cores for cpu in numbers_of(core.cpus)}

    @cached_property
    def full_cores(self) -> tuple[Core, ...]:
        """The cores that have `cpus_per_core` CPUs."""
        return tuple(core for core in self.cores if core.cpus.bit_count() == self.cpus_per_core)

    @cached_property
    def _core_masks(self) -> tuple[int, ...]:
        return tuple(core.cpus for core in self.cores)

    @cached_property
    def _full_masks(self) -> tuple[int, ...]:
        return tuple(core.cpus for core in self.full_cores)

    def whole_cores(self, available: int) -> int:
        """Mask of the CPUs of those cores that are completely available."""
        whole = 0
        for cpus in self._full_masks:
            if cpus & available == cpus:
                whole |= cpus
        return whole

    def first_of_cores(self, available: int) -> int:
        """Mask of the lowest available CPU of each core."""
        mask = 0
        for cpus in self._core_masks:
            free = cpus & available
            mask |= free & -free
        return mask

    def touched_nodes(self, cpus: int) -> list[int]:
        """NUMA nodes that have some of these CPUs, ascending."""
        return [node for node, mask in self.nodes.items() if mask & cpus]


def layout_of(cpus: Iterable[tuple[int, int, int, int]]) -> CoreLayout:
    """The layout of CPUs as (id, core, socket, NUMA node). Raises LayoutError."""
    cores: dict[int, Core] = {}
    nodes: dict[int, int] = {}
    sockets: dict[int, int] = {}
    seen = 0
    for cpu, core, socket, node in cpus:
        if not 0 <= cpu < MAX_CPU:
            raise LayoutError(f"CPU {cpu} is not from 0 to {MAX_CPU - 1}")
        for kind, number in (("core", core), ("socket", socket), ("NUMA node", node)):
            if not 0 <= number < MAX_ID:
                raise LayoutError(f"{kind} {number} of CPU {cpu} is not from 0 to {MAX_ID - 1}")
        bit = 1 << cpu
        if seen & bit:
            raise LayoutError(f"CPU {cpu} is listed twice")
        seen |= bit
        key = socket << 16 | core
        known = cores.get(key)
        if known is not None and known.node != node:
            raise LayoutError(f"core {core} of socket {socket} is on NUMA nodes {known.node} and {node}")
        cores[key] = Core(key, socket, node, bit | (known.cpus if known else 0))
        nodes[node] = nodes.get(node, 0) | bit
        sockets[socket] = sockets.get(socket, 0) | bit
    return CoreLayout(
        tuple(core for _, core in sorted(cores.items())), dict(sorted(nodes.items())), dict(sorted(sockets.items()))
    )
