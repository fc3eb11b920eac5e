"""Use of the node, and the part that belongs to no pod: node, NUMA and system figures (spec 02 §5.2, §5.7). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from koordlet.metricsadvisor.usage.readings import Readings


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Cores and bytes."""

    cores: float
    memory: float


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The node as a whole and by NUMA node."""

    cores: float
    memory: float
    memory_with_page_cache: float
    memory_total: float
    numa: Mapping[int, ResourceUse] = field(default_factory=dict)
    stolen: float = 0.0
    """Cores that tasks were ready to use and that a hypervisor gave to other machines."""
    busy_seconds: float = 0.0
    """CPU seconds used since boot."""
    stolen_seconds: float = 0.0


def node_use(old: Readings, new: Readings, node_of_cpu: Mapping[int, int]) -> NodeUse | None:
    """None without two readings of /proc/stat and one of /proc/meminfo, or when the ticks went back.

    Busy ticks are user, nice, system, irq and softirq. A NUMA node is included if all of it could be read; CPUs that
    came online in between are left out of the sum.
    """
    if old.ticks is None or new.ticks is None or new.memory is None:
        return None
    period = (new.at - old.at) * 1e9 / new.jiffy_ns
    if period <= 0 or new.ticks.total < old.ticks.total:
        return None
    numa_ticks: dict[int, int] = {}
    for cpu, ticks in new.ticks.by_cpu.items():
        before, node = old.ticks.by_cpu.get(cpu), node_of_cpu.get(cpu)
        if before is not None and node is not None and ticks >= before:
            numa_ticks[node] = numa_ticks.get(node, 0) + ticks - before
    return NodeUse(
        cores=(new.ticks.total - old.ticks.total) / period,
        memory=new.memory.used,
        memory_with_page_cache=new.memory.used_with_page_cache,
        memory_total=new.memory.total,
        numa={
            node: ResourceUse(numa_ticks[node] / period, info.used)
            for node, info in new.numa.items()
            if node in numa_ticks
        },
        stolen=max(new.ticks.stolen - old.ticks.stolen, 0) / period,
        busy_seconds=new.ticks.total * new.jiffy_ns / 1e9,
        stolen_seconds=new.ticks.stolen * new.jiffy_ns / 1e9,
    )


def system_use(node: NodeUse, pods: ResourceUse, host_apps: ResourceUse) -> ResourceUse:
    """The use that belongs to neither pods nor host applications; never negative."""
    return ResourceUse(
        max(node.cores - pods.cores - host_apps.cores, 0.0), max(node.memory - pods.memory - host_apps.memory, 0.0)
    )


def system_numa_use(node: NodeUse, system: ResourceUse, pods_memory: Mapping[int, float]) -> dict[int, ResourceUse]:
    """System use by NUMA node: memory by difference, CPU in proportion to the CPU use of each NUMA node.

    NUMA nodes for which the pods' memory is not known are left out.
    """
    total = sum(use.cores for use in node.numa.values())
    return {
        k: ResourceUse(system.cores * use.cores / total if total > 0 else 0.0, max(use.memory - pods_memory[k], 0.0))
        for k, use in node.numa.items()
        if k in pods_memory
    }
