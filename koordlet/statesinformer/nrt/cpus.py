"""Choosing whole CPUs of a machine, the kubelet's packed way (spec 02 §3.8). Pure.

CPUs are `CPUInfo` of the wire: id, core, socket, NUMA node, with core numbers that are unique on the machine.
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
    """More CPUs are asked for than there are."""


def cpu_infos(topology: CpuTopology) -> list[CPUInfo]:
    """The machine's CPUs by id. Cores are numbered through in the order of their first CPU, as lscpu does: the
    kernel's own core ids repeat across sockets."""
    cores: dict[tuple[int, int], int] = {}
    return [
        CPUInfo(id=cpu.id, core=cores.setdefault((cpu.socket, cpu.core), len(cores)), socket=cpu.socket, node=cpu.node)
        for cpu in sorted(topology.cpus, key=lambda cpu: cpu.id)
    ]


def take_by_topology(cpus: Sequence[CPUInfo], available: CPUs, count: int) -> CPUs:
    """`count` of the `available` CPUs: whole free sockets, then NUMA nodes, then cores, then single CPUs.

    Fuller sockets, nodes and cores come first, so that what is left stays in one piece. A socket or core is free when
    as many of its CPUs are available as the average one has, a NUMA node when all are. Zero or less takes nothing;
    raises NotEnoughCPUs.
    """
    if count <= 0:
        return frozenset()
    free = [cpu for cpu in cpus if cpu.id in available]
    if count > len(free):
        raise NotEnoughCPUs(f"{count} CPUs are asked for, {len(free)} are available")
    taken: set[int] = set()
    per_socket = len(cpus) // len({cpu.socket for cpu in cpus})
    per_core = len(cpus) // len({cpu.core for cpu in cpus})
    of_node = _members(cpus, _node)
    levels: tuple[tuple[_Key, Callable[[int, int], bool]], ...] = (
        (_socket, lambda _, found: found == per_socket),
        (_node, lambda node, found: found == len(of_node[node])),
        (_core, lambda _, found: found == per_core),
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
    """By socket, within it by NUMA node, within that by core: each time those with fewer available CPUs first."""
    sockets, nodes, cores = (
        {group: (len(ids), group) for group, ids in _members(cpus, key).items()} for key in (_socket, _node, _core)
    )
    return sorted(cpus, key=lambda cpu: (sockets[cpu.socket], nodes[cpu.node], cores[cpu.core], cpu.id))


def _members(cpus: Iterable[CPUInfo], key: _Key) -> dict[int, list[int]]:
    """Ids by group, groups in the order of their first CPU."""
    groups: dict[int, list[int]] = {}
    for cpu in cpus:
        groups.setdefault(key(cpu), []).append(cpu.id)
    return groups
