"""CPUs that pods have for themselves, and the pools that are left for the others (spec 02 §3.8, step 7). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from koordlet.api.annotations.scheduling import RESOURCE_STATUS
from koordlet.api.annotations.topology import CPUInfo, CPUSharedPool
from koordlet.api.cpus import CPUListError, format_cpus, parse_cpus
from koordlet.api.encoding.wire import WireError
from koordlet.api.qos import LSE, raw_qos
from koordlet.statesinformer.nrt.cpus import CPUs
from koordlet.statesinformer.pods.model import PodMeta


@dataclass(frozen=True, slots=True)
class PinnedPod:
    """A pod to which the scheduler gave CPUs."""

    uid: str
    qos: str
    """As labelled; empty without a label."""
    cpus: CPUs


def pinned_pods(pods: Iterable[PodMeta]) -> tuple[list[PinnedPod], dict[str, str]]:
    """Pods with CPUs of their own, and what is wrong with annotations that cannot be read (pod uid -> text)."""
    pinned, problems = [], {}
    for meta in pods:
        if meta.pod is None:
            continue
        try:
            status = RESOURCE_STATUS.get(meta.pod.metadata.annotations)
            cpus = parse_cpus(status.cpuset)
        except (WireError, CPUListError) as error:
            problems[meta.uid] = f"pod {meta.namespace}/{meta.name}: {RESOURCE_STATUS.key}: {error}"
            continue
        if cpus:
            pinned.append(PinnedPod(meta.uid, raw_qos(meta.pod.metadata.labels), cpus))
    return pinned, problems


def shared_pools(cpus: Sequence[CPUInfo], shared: CPUs, withheld: CPUs) -> list[CPUSharedPool]:
    """The CPUs of `shared` by NUMA node, sorted by socket and node; less those `withheld`, which may leave a pool
    without CPUs but does not remove it."""
    pools: dict[int, tuple[int, set[int]]] = {}
    for cpu in cpus:
        if cpu.id in shared:
            pools.setdefault(cpu.node, (cpu.socket, set()))[1].add(cpu.id)
    made = [
        CPUSharedPool(socket=socket, node=node, cpuset=format_cpus(members - withheld))
        for node, (socket, members) in pools.items()
    ]
    return sorted(made, key=lambda pool: (pool.socket, pool.node))


def pool_cpus(pools: Iterable[CPUSharedPool]) -> CPUs:
    """All CPUs of some pools."""
    return frozenset().union(*(parse_cpus(pool.cpuset) for pool in pools))


@dataclass(frozen=True, slots=True)
class SharePools:
    """The pools of the latency-sensitive pods without CPUs of their own, and those of BestEffort pods."""

    ls: list[CPUSharedPool]
    be: list[CPUSharedPool]


def split(cpus: Sequence[CPUInfo], usable: CPUs, pinned: Iterable[PinnedPod], withheld: CPUs) -> SharePools:
    """LS pods keep off every pinned CPU, BE pods only off those of LSE pods."""
    own, exclusive = set[int](), set[int]()
    for pod in pinned:
        own |= pod.cpus
        if pod.qos == LSE:
            exclusive |= pod.cpus
    return SharePools(shared_pools(cpus, usable - own, withheld), shared_pools(cpus, usable - exclusive, withheld))
