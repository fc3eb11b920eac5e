"""Computes the content of this node's NodeResourceTopology from facts (spec 02 §3.8). Pure.

The reporter calls `compute` in each round, compares the result, publishes it within koordlet and writes it if the
API server's object differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from koordlet.api import names
from koordlet.api.annotations import Annotation
from koordlet.api.annotations import topology as wire
from koordlet.api.annotations.node import RESERVATION, NodeReservation, SystemQOSResource, system_qos_resource
from koordlet.api.core import Node
from koordlet.api.cpus import CPUListError, format_cpus, parse_cpus
from koordlet.api.crs.topology import ResourceInfo, Zone
from koordlet.api.encoding.quantity import BINARY_SI, ZERO, Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.statesinformer.nrt.cpus import CPUs, NotEnoughCPUs, cpu_infos, take_by_topology
from koordlet.statesinformer.nrt.kubelet import (
    STATIC,
    KubeletConfig,
    ReservedCPUError,
    cpu_manager_policy,
    pinned_by_kubelet,
    reserved_cpus,
    topology_policy,
)
from koordlet.statesinformer.nrt.pools import SharePools, pinned_pods, split
from koordlet.statesinformer.pods.model import PodMeta
from koordlet.system.cpu.cputopology import CpuTopology
from koordlet.system.proc.procfs import NumaMemInfo

ZONE_TYPE: Final = "Node"
HUGE_PAGES: Final = {"hugepages-1Gi": 1 << 20, "hugepages-2Mi": 2 << 10}
"""Resource -> page size in KiB."""
OWNED_RESOURCES: Final = frozenset({"cpu", "memory", *HUGE_PAGES})
_SYSTEM_QOS: Final[Annotation[SystemQOSResource]] = Annotation(names.ANNOTATION_SYSTEM_QOS_RESOURCE, SystemQOSResource)


class TopologyError(RuntimeError):
    """The topology cannot be computed; the message names the missing or invalid input."""


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """The CPUs and the memory of this machine, from the metrics advisor."""

    cpus: CpuTopology
    basic: wire.CPUBasicInfo
    numa: Mapping[int, NumaMemInfo]
    """Has huge pages only if they are reported separately from memory (gate HugePageReport)."""


@dataclass(frozen=True, slots=True)
class TopologyStatus:
    """The part of the object that koordlet owns."""

    annotations: Mapping[str, str]
    numa_reservation: str
    """Value of the label `enable-numa-reservation`; empty: no label."""
    policy: str
    """The one element of `topologyPolicies`."""
    zones: tuple[Zone, ...]
    """By NUMA node number."""
    pools: SharePools
    problems: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Inputs that were ignored: key of the annotation, or `kubelet` -> message for the log."""


def compute(
    machine: MachineInfo,
    node: Node,
    pods: Sequence[PodMeta],
    *,
    kubelet: KubeletConfig | None,
    kubelet_state: Mapping[str, Mapping[str, str]],
) -> TopologyStatus:
    """The desired status. `kubelet`: its configuration, None if it is not queried. `kubelet_state`: the CPU manager's
    checkpoint, used with the static policy only. Raises TopologyError."""
    cpus = cpu_infos(machine.cpus)
    if not cpus:
        raise TopologyError("no CPUs are known")
    everything = frozenset(cpu.id for cpu in cpus)
    pinned = pinned_pods(pods)
    problems: dict[str, str] = {}

    reserved: CPUs = frozenset()
    allocs: list[wire.PodCPUAlloc] = []
    if kubelet is not None and kubelet.cpu_manager_policy == STATIC:
        try:
            reserved = reserved_cpus(kubelet, cpus)
        except ReservedCPUError as error:
            problems["kubelet"] = f"kubelet /configz: {error}"
        allocs = pinned_by_kubelet(kubelet_state, pods)
    kubelet_cpus = frozenset().union(*(parse_cpus(alloc.cpuset) for alloc in allocs))

    reservation = _reservation(node, cpus, problems)
    system = _system_qos(node)
    withheld = parse_cpus(reservation.reserved_cpus) | _exclusive(system, problems)
    pools = split(cpus, everything - kubelet_cpus, pinned, withheld)
    return TopologyStatus(
        annotations={
            wire.CPU_BASIC_INFO.key: wire.CPU_BASIC_INFO.text(machine.basic),
            wire.CPU_TOPOLOGY.key: wire.cpu_topology_text(cpus),
            wire.CPU_SHARED_POOLS.key: wire.shared_pools_text(pools.ls),
            wire.BE_CPU_SHARED_POOLS.key: wire.shared_pools_text(pools.be),
            wire.KUBELET_CPU_MANAGER.key: wire.KUBELET_CPU_MANAGER.text(cpu_manager_policy(kubelet, reserved)),
            wire.POD_CPU_ALLOCS.key: wire.pod_cpu_allocs_text(allocs),
            RESERVATION.key: RESERVATION.text(reservation),
            _SYSTEM_QOS.key: "null" if system is None else _SYSTEM_QOS.text(system),
        },
        numa_reservation=node.metadata.labels.get(names.LABEL_ENABLE_NUMA_RESERVATION, ""),
        policy=topology_policy(kubelet),
        zones=tuple(_zones(machine, node)),
        pools=pools,
        problems=problems,
    )


def _reservation(node: Node, cpus: Sequence[wire.CPUInfo], problems: dict[str, str]) -> NodeReservation:
    """The node's reservation with concrete CPUs; empty if it is missing or invalid."""
    try:
        reservation = RESERVATION.get(node.metadata.annotations)
        if reservation is None:
            return NodeReservation()
        if reservation.reserved_cpus:
            return replace(reservation, reserved_cpus=format_cpus(parse_cpus(reservation.reserved_cpus)))
        count = reservation.resources.get("cpu", ZERO)
        taken = take_by_topology(cpus, frozenset(cpu.id for cpu in cpus), count.value() if count > ZERO else 0)
    except (WireError, CPUListError, NotEnoughCPUs) as error:
        problems[RESERVATION.key] = f"node {node.metadata.name}: {RESERVATION.key}: {error}"
        return NodeReservation()
    return replace(reservation, reserved_cpus=format_cpus(taken))


def _system_qos(node: Node) -> SystemQOSResource | None:
    """None if the Node has no annotations; an empty value if it has others but not this one."""
    try:
        return system_qos_resource(node.metadata.annotations or None)
    except WireError as error:
        raise TopologyError(f"node {node.metadata.name}: {error}") from error


def _exclusive(system: SystemQOSResource | None, problems: dict[str, str]) -> CPUs:
    """CPUs that only pods of class SYSTEM may use; none if they are malformed."""
    if system is None or not system.exclusive:
        return frozenset()
    try:
        return parse_cpus(system.cpuset)
    except CPUListError as error:
        problems[_SYSTEM_QOS.key] = f"annotation {_SYSTEM_QOS.key}: cpuset: {error}"
        return frozenset()


def _zones(machine: MachineInfo, node: Node) -> list[Zone]:
    """One for each NUMA node with CPUs; none on kernels without NUMA. Nodes with memory only (CXL, persistent memory)
    are left out: pods are placed by CPUs. Koordinator reports nothing of such machines."""
    of_node = machine.cpus.by_node
    if not machine.numa:
        return []
    if not set(of_node) <= set(machine.numa):
        raise TopologyError(f"NUMA nodes with CPUs: {sorted(of_node)}, NUMA nodes with memory: {sorted(machine.numa)}")
    withheld = _withheld(node, len(of_node))
    zones = []
    for number in sorted(of_node):
        memory = machine.numa[number]
        huge = {
            name: Quantity.of(memory.huge_pages.get(size, 0) * size * 1024, BINARY_SI)
            for name, size in HUGE_PAGES.items()
        }
        amounts = {
            "cpu": Quantity.of(len(of_node[number])),
            "memory": sum((-amount for amount in huge.values()), Quantity.of(memory.total, BINARY_SI)),
            **huge,
        }
        resources = []
        for name, capacity in sorted(amounts.items()):
            left = max(capacity - withheld.get(name, ZERO), ZERO.with_fmt(capacity.fmt))
            resources.append(ResourceInfo(name=name, capacity=capacity, allocatable=left, available=left))
        zones.append(Zone(name=f"node-{number}", type=ZONE_TYPE, resources=resources))
    return zones


def _withheld(node: Node, zones: int) -> dict[str, Quantity]:
    """Amounts subtracted from each zone: an equal share of capacity - allocatable, rounded up to milli-units."""
    if node.metadata.labels.get(names.LABEL_ENABLE_NUMA_RESERVATION) != names.TRUE:
        return {}
    capacity, allocatable = node.status.capacity, node.status.allocatable
    reserved = {name: capacity.get(name, ZERO) - allocatable.get(name, ZERO) for name in ("cpu", "memory")}
    return {
        name: Quantity.milli(-(-amount.milli_value() // zones), amount.fmt)
        for name, amount in reserved.items()
        if amount > ZERO
    }
