"""Annotations that koordlet writes on NodeResourceTopology (spec 01 §5.4)."""

from __future__ import annotations

from typing import Final

import msgspec

from koordlet.api import names
from koordlet.api.annotations._base import Annotation, DefaultAnnotation
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import written


class CPUInfo(Frozen):
    """The position of a logical CPU."""

    id: int = written(int)
    core: int = written(int)
    socket: int = written(int)
    node: int = written(int)


class CPUTopology(Frozen):
    """All CPUs of a node, sorted by id."""

    detail: list[CPUInfo] = []


class CPUSharedPool(Frozen):
    """CPUs of one NUMA node that are not pinned to any pod."""

    socket: int = written(int)
    node: int = written(int)
    cpuset: str = ""


class PodCPUAlloc(Frozen):
    """CPUs that are pinned to a pod."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    cpuset: str = ""
    managed_by_kubelet: bool = False


class CPUBasicInfo(Frozen):
    """The CPU model of a node and its features."""

    cpu_model: str = ""
    hyper_thread_enabled: bool = False
    turbo_enabled: bool = False
    cat_l3_cbm_mask: str = ""
    vendor_id: str = msgspec.field(default="", name="vendorID")


class KubeletCPUManagerPolicy(Frozen):
    """The kubelet's CPU manager policy."""

    policy: str = ""
    options: dict[str, str] = {}
    reserved_cpus: str = msgspec.field(default="", name="reservedCPUs")


CPU_TOPOLOGY: Final[DefaultAnnotation[CPUTopology]] = DefaultAnnotation(
    names.ANNOTATION_CPU_TOPOLOGY, CPUTopology, CPUTopology
)
CPU_SHARED_POOLS: Final[DefaultAnnotation[list[CPUSharedPool]]] = DefaultAnnotation(
    names.ANNOTATION_CPU_SHARED_POOLS, list[CPUSharedPool], list
)
BE_CPU_SHARED_POOLS: Final[DefaultAnnotation[list[CPUSharedPool]]] = DefaultAnnotation(
    names.ANNOTATION_BE_CPU_SHARED_POOLS, list[CPUSharedPool], list
)
POD_CPU_ALLOCS: Final[DefaultAnnotation[list[PodCPUAlloc]]] = DefaultAnnotation(
    names.ANNOTATION_POD_CPU_ALLOCS, list[PodCPUAlloc], list
)
CPU_BASIC_INFO: Final[Annotation[CPUBasicInfo]] = Annotation(names.ANNOTATION_CPU_BASIC_INFO, CPUBasicInfo)
KUBELET_CPU_MANAGER: Final[DefaultAnnotation[KubeletCPUManagerPolicy]] = DefaultAnnotation(
    names.ANNOTATION_CPU_MANAGER_POLICY, KubeletCPUManagerPolicy, KubeletCPUManagerPolicy
)


def cpu_topology_text(cpus: list[CPUInfo]) -> str:
    """The text of the annotation, CPUs sorted by id."""
    return CPU_TOPOLOGY.text(CPUTopology(detail=sorted(cpus, key=lambda cpu: cpu.id)))


def shared_pools_text(pools: list[CPUSharedPool]) -> str:
    """The text of the annotation, pools sorted by socket and node."""
    return CPU_SHARED_POOLS.text(sorted(pools, key=lambda pool: (pool.socket, pool.node)))


def pod_cpu_allocs_text(allocs: list[PodCPUAlloc]) -> str:
    """The text of the annotation, allocations sorted by uid; `null` for none, like a Go nil slice."""
    return POD_CPU_ALLOCS.text(sorted(allocs, key=lambda alloc: alloc.uid)) if allocs else "null"
