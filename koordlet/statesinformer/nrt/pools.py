"""CPUs pinned to pods, and the pools of CPUs that the other pods share (spec 02 §3.8, step 7). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from koordlet.api.annotations.topology import CPUInfo, CPUSharedPool
from koordlet.api.cpus import format_cpus, parse_cpus
from koordlet.api.qos import LSE, raw_qos
from koordlet.statesinformer.nrt.cpus import CPUs
from koordlet.statesinformer.pods.model import PodMeta


@dataclass(frozen=True, slots=True)
class PinnedPod:
    """A pod to which the scheduler assigned CPUs."""

    qos: str
    """The value of its label; empty without a label."""
    cpus: CPUs


def pinned_pods(pods: Iterable[PodMeta]) -> list[PinnedPod]:
    """The pods whose pinned CPUs koordlet accepted (`statesinformer.pods.cpuallocation`)."""
    return [
        PinnedPod(raw_qos(meta.pod.metadata.labels), meta.cpu_allocation.cpus)
        for meta in pods
        if meta.pod is not None and meta.cpu_allocation.cpus
    ]


def shared_pools(cpus: Sequence[CPUInfo], shared: CPUs, withheld: CPUs) -> list[CPUSharedPool]:
    """The CPUs of `shared` without those `withheld`, one pool per NUMA node, sorted by socket and node. A pool whose
    CPUs are all withheld stays as an empty pool."""
    pools: dict[int, tuple[int, set[int]]] = {}
    for cpu in cpus:
        if cpu.id in shared:
            pools.setdefault(cpu.node, (cpu.socket, set()))[1].add(cpu.id)
    by_node = [
        CPUSharedPool(socket=socket, node=node, cpuset=format_cpus(members - withheld))
        for node, (socket, members) in pools.items()
    ]
    return sorted(by_node, key=lambda pool: (pool.socket, pool.node))


def pool_cpus(pools: Iterable[CPUSharedPool]) -> CPUs:
    """All CPUs of some pools."""
    return frozenset().union(*(parse_cpus(pool.cpuset) for pool in pools))


@dataclass(frozen=True, slots=True)
class SharePools:
    """The pools of latency-sensitive pods without pinned CPUs, and those of BestEffort pods."""

    ls: list[CPUSharedPool]
    be: list[CPUSharedPool]


def split(cpus: Sequence[CPUInfo], usable: CPUs, pinned: Iterable[PinnedPod], withheld: CPUs) -> SharePools:
    """The LS pools exclude all pinned CPUs, the BE pools only those of LSE pods."""
    pinned_cpus = set[int]()
    exclusive = set[int]()
    for pod in pinned:
        pinned_cpus |= pod.cpus
        if pod.qos == LSE:
            exclusive |= pod.cpus
    return SharePools(
        ls=shared_pools(cpus, usable - pinned_cpus, withheld), be=shared_pools(cpus, usable - exclusive, withheld)
    )
