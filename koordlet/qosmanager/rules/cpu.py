"""What the node's objects say about its CPUs, as strategies and hooks need it (spec 03 §4.6, §4.8).

`NodeRules` keeps the last good word: its two methods are state callbacks (NODE_TOPOLOGY, NODE_METADATA), and what
can't be read changes nothing and is said once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from koordlet.api.annotations.node import RATIO_DIFFERENCE, RESERVATION, normalization_ratio, system_qos_resource
from koordlet.api.annotations.topology import BE_CPU_SHARED_POOLS, CPU_SHARED_POOLS, KUBELET_CPU_MANAGER, CPUSharedPool
from koordlet.api.core import Node
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger
from koordlet.statesinformer.nrt.kubelet import STATIC
from koordlet.system.cpu.cpuset import CPUSet, CPUSetError

log = get_logger(__name__)

NOT_NORMALIZED = 1.0
Pools = Mapping[int, CPUSet]
"""NUMA node -> CPUs."""


@dataclass(frozen=True, slots=True)
class CPURules:
    """NodeResourceTopology's annotations. `withheld`: CPUs that no pod may use but those of class SYSTEM."""

    shared: Pools = field(default_factory=dict)
    """CPUs that no pod has for itself, for services."""
    best_effort: Pools = field(default_factory=dict)
    """CPUs that no LSE pod has for itself."""
    system: CPUSet = field(default_factory=CPUSet)
    """CPUs of class SYSTEM."""
    withheld: CPUSet = field(default_factory=CPUSet)
    kubelet_static: bool = False
    """Whether the kubelet's CPU manager pins containers itself."""


def joined(pools: Pools, nodes: Iterable[int] | None = None) -> CPUSet:
    """The CPUs of some NUMA nodes' pools, of all when None."""
    found = CPUSet()
    for node in pools if nodes is None else nodes:
        found |= pools.get(node, CPUSet())
    return found


def cpu_rules(topology: NodeResourceTopology) -> CPURules:
    """Raises WireError naming the annotation when one of them is malformed: then none of them counts."""
    annotations = topology.metadata.annotations
    system = system_qos_resource(annotations)
    own = CPUSet() if system is None else _cpus(system.cpuset, "system-qos-resource")
    reservation = RESERVATION.get(annotations)
    reserved = CPUSet() if reservation is None else _cpus(reservation.reserved_cpus, RESERVATION.key)
    return CPURules(
        shared=_pools(CPU_SHARED_POOLS.get(annotations), CPU_SHARED_POOLS.key),
        best_effort=_pools(BE_CPU_SHARED_POOLS.get(annotations), BE_CPU_SHARED_POOLS.key),
        system=own,
        withheld=reserved | (own if system is not None and system.exclusive else CPUSet()),
        kubelet_static=KUBELET_CPU_MANAGER.get(annotations).policy == STATIC,
    )


def _pools(given: Iterable[CPUSharedPool], key: str) -> Pools:
    pools: dict[int, CPUSet] = {}
    for pool in given:
        pools[pool.node] = pools.get(pool.node, CPUSet()) | _cpus(pool.cpuset, key)
    return pools


def _cpus(text: str, key: str) -> CPUSet:
    try:
        return CPUSet.parse(text)
    except CPUSetError as error:
        raise WireError(str(error), where=f"annotation {key}", path="cpuset") from error


class NodeRules:
    """`cpu` is None while no topology was readable; `normalization` is 1 for a node like the cluster's normal one."""

    def __init__(self) -> None:
        self.cpu: CPURules | None = None
        self.normalization = NOT_NORMALIZED

    def topology(self, _type: object, found: object, _target: object = None) -> None:
        """NodeResourceTopology changed."""
        assert isinstance(found, NodeResourceTopology)
        try:
            self.cpu = cpu_rules(found)
        except WireError as error:
            log.once(f"rules:{error}", "the CPU pools known before stay in force", error=str(error))

    def node(self, _type: object, found: object, _target: object = None) -> None:
        """The Node's labels or annotations changed. A ratio that differs by less than 0.01 is the same one."""
        assert isinstance(found, Node)
        try:
            ratio = normalization_ratio(found.metadata.annotations)
        except WireError as error:
            log.once(f"rules:{error}", "the CPU normalization known before stays in force", error=str(error))
            return
        wanted = NOT_NORMALIZED if ratio is None else ratio
        if ratio is None or abs(wanted - self.normalization) >= RATIO_DIFFERENCE:
            self.normalization = wanted
