"""The node's CPU rules for strategies and hooks, from NodeResourceTopology and Node annotations (spec 03 §4.6, §4.8).

`NodeRules` keeps the last valid values: its two methods are state callbacks (NODE_TOPOLOGY, NODE_METADATA). Malformed
annotations change nothing and are logged once.
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
    """NodeResourceTopology's annotations. `withheld`: CPUs that only pods of class SYSTEM may use."""

    shared: Pools = field(default_factory=dict)
    """CPUs that are not pinned to any pod; services share them."""
    best_effort: Pools = field(default_factory=dict)
    """CPUs that are not pinned to an LSE pod."""
    system: CPUSet = field(default_factory=CPUSet)
    """CPUs of class SYSTEM."""
    withheld: CPUSet = field(default_factory=CPUSet)
    kubelet_static: bool = False
    """Whether the kubelet's CPU manager pins containers itself."""


def joined(pools: Pools, nodes: Iterable[int] | None = None) -> CPUSet:
    """The CPUs of some NUMA nodes' pools, of all when None."""
    cpus = CPUSet()
    for node in pools if nodes is None else nodes:
        cpus |= pools.get(node, CPUSet())
    return cpus


def cpu_rules(topology: NodeResourceTopology) -> CPURules:
    """Raises WireError naming the annotation when one of them is malformed; then none of them is used."""
    annotations = topology.metadata.annotations
    system = system_qos_resource(annotations)
    system_cpus = CPUSet() if system is None else _cpus(system.cpuset, "system-qos-resource")
    reservation = RESERVATION.get(annotations)
    reserved = CPUSet() if reservation is None else _cpus(reservation.reserved_cpus, RESERVATION.key)
    return CPURules(
        shared=_pools(CPU_SHARED_POOLS.get(annotations), CPU_SHARED_POOLS.key),
        best_effort=_pools(BE_CPU_SHARED_POOLS.get(annotations), BE_CPU_SHARED_POOLS.key),
        system=system_cpus,
        withheld=reserved | (system_cpus if system is not None and system.exclusive else CPUSet()),
        kubelet_static=KUBELET_CPU_MANAGER.get(annotations).policy == STATIC,
    )


def _pools(entries: Iterable[CPUSharedPool], key: str) -> Pools:
    pools: dict[int, CPUSet] = {}
    for pool in entries:
        pools[pool.node] = pools.get(pool.node, CPUSet()) | _cpus(pool.cpuset, key)
    return pools


def _cpus(text: str, key: str) -> CPUSet:
    try:
        return CPUSet.parse(text)
    except CPUSetError as error:
        raise WireError(str(error), where=f"annotation {key}", path="cpuset") from error


class NodeRules:
    """`cpu` is None until a readable topology arrived; `normalization` is 1 for a node of the cluster's reference
    speed."""

    def __init__(self) -> None:
        self.cpu: CPURules | None = None
        self.normalization = NOT_NORMALIZED

    def topology(self, topology: object) -> None:
        """NodeResourceTopology changed."""
        assert isinstance(topology, NodeResourceTopology)
        try:
            self.cpu = cpu_rules(topology)
        except WireError as error:
            log.once(f"rules:{error}", "Malformed CPU pools; the previous ones stay in force", error=str(error))

    def node(self, node: object) -> None:
        """The Node's labels or annotations changed. A ratio that differs by less than 0.01 counts as unchanged."""
        assert isinstance(node, Node)
        try:
            ratio = normalization_ratio(node.metadata.annotations)
        except WireError as error:
            text = "Malformed CPU normalization ratio; the previous one stays in force"
            log.once(f"rules:{error}", text, error=str(error))
            return
        desired = NOT_NORMALIZED if ratio is None else ratio
        if ratio is None or abs(desired - self.normalization) >= RATIO_DIFFERENCE:
            self.normalization = desired
