"""Selects CPUs like the kubelet's packed allocation (spec 02 §3.8). Pure.

CPUs are the wire format's `CPUInfo`: id, core, socket, NUMA node, with core numbers that are unique on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from koordlet.api.annotations.topology import CPUInfo
from koordlet.system.cpu.cputopology import CpuTopology

CPUs = frozenset[int]
_Key = Callable[[CPUInfo], int]
_socket: _Key = attrgetter("socket")
_node: _Key = attrgetter("node")
_core: _Key = attrgetter("core")


class NotEnoughCPUs(ValueError):
    """More CPUs are requested than available."""


def cpu_infos(topology: CpuTopology) -> list[CPUInfo]:
    """The machine's CPUs by id. Cores are numbered consecutively in the order of their first CPU, as lscpu does,
    because the kernel's core ids repeat across sockets."""
    cores: dict[tuple[int, int], int] = {}
    return [
        CPUInfo(id=cpu.id, core=cores.setdefault((cpu.socket, cpu.core), len(cores)), socket=cpu.socket, node=cpu.node)
        for cpu in sorted(topology.cpus, key=lambda cpu: cpu.id)
    ]


def take_by_topology(cpus: Sequence[CPUInfo], available: CPUs, count: int) -> CPUs:
    """`count` of the `available` CPUs: whole free sockets, then NUMA nodes, then cores, then single CPUs.

    Sockets, nodes and cores with fewer available CPUs come first, so that the remaining CPUs stay contiguous. A socket
    or core is free if it has as many available CPUs as the average socket or core has CPUs, a NUMA node if all its CPUs
    are available. A count of zero or less selects nothing; raises NotEnoughCPUs.
    """
    if count <= 0:
        return frozenset()
    free = [cpu for cpu in cpus if cpu.id in available]
    if count > len(free):
        raise NotEnoughCPUs(f"{count} CPUs are requested, {len(free)} are available")
    taken: set[int] = set()
    per_socket = len(cpus) // len({cpu.socket for cpu in cpus})
    per_core = len(cpus) // len({cpu.core for cpu in cpus})
    of_node = _members(cpus, _node)
    levels: tuple[tuple[_Key, Callable[[int, int], bool]], ...] = (
        (_socket, lambda _, available_count: available_count == per_socket),
        (_node, lambda node, available_count: available_count == len(of_node[node])),
        (_core, lambda _, available_count: available_count == per_core),
    )
    for key, is_free in levels:
        left = _ordered([cpu for cpu in free if cpu.id not in taken])
        for group, ids in _members(left, key).items():
            if is_free(group, len(ids)) and len(ids) <= count - len(taken):
                taken.update(ids)
    left = _ordered([cpu for cpu in free if cpu.id not in taken])
    taken.update(cpu.id for cpu in left[: count - len(taken)])
    return frozenset(taken)


def _ordered(cpus: Sequence[CPUInfo]) -> list[CPUInfo]:
    """Sorted by socket, NUMA node, core; at each level those with fewer available CPUs first."""
    sockets, nodes, cores = (
        {group: (len(ids), group) for group, ids in _members(cpus, key).items()} for key in (_socket, _node, _core)
    )
    return sorted(cpus, key=lambda cpu: (sockets[cpu.socket], nodes[cpu.node], cores[cpu.core], cpu.id))


def _members(cpus: Iterable[CPUInfo], key: _Key) -> dict[int, list[int]]:
    """CPU ids by group; groups in the order of their first CPU."""
    groups: dict[int, list[int]] = {}
    for cpu in cpus:
        groups.setdefault(key(cpu), []).append(cpu.id)
    return groups
