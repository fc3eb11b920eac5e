"""Node views built by hand, for strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from koordlet.api.core import Node, Pod
from koordlet.api.crs.slo import NodeSLOSpec
from koordlet.api.encoding.wire import convert
from koordlet.qosmanager.engine.view import BestEffortCgroup, HostAppView, NodeView, PodView
from koordlet.qosmanager.engine.viewbuilder import MEMORY_FILES
from koordlet.resourceexecutor import Setting, Value
from koordlet.statesinformer.nodeslo.effective import effective
from koordlet.statesinformer.pods.informer import describe
from koordlet.system.cgroup.naming import CgroupDriver
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.cpu.cputopology import Cpu, CpuTopology

MakePod = Callable[..., PodView]


def topology(rows: Mapping[int, tuple[int, int, int]]) -> CpuTopology:
    """CPU -> (core, socket, node)."""
    cpus = [Cpu(cpu, core, socket, node, None, None, None) for cpu, (core, socket, node) in rows.items()]
    return CpuTopology(tuple(sorted(cpus, key=lambda c: (c.node, c.socket, c.core, c.id))), smt=True, turbo=False)


def flat(count: int, per_socket: int | None = None) -> CpuTopology:
    """Hardware threads (0,1), (2,3) ...; `per_socket` CPUs to each socket and NUMA node."""
    size = per_socket or count
    return topology({cpu: (cpu // 2, cpu // size, cpu // size) for cpu in range(count)})


def make_pod(
    name: str = "pod",
    *,
    qos: str = "",
    kube: str = "Burstable",
    cpu: int | None = None,
    memory: int | None = None,
    phase: str = "Running",
    containers: int = 1,
    spec: Mapping[str, Any] | None = None,
    cpuset: str = "",
    init: str = "",
    **metadata: Any,
) -> PodView:
    """A running pod as the kubelet lists it. `init`: name of a running init container; `spec` has its limits."""
    labels = {**metadata.pop("labels", {}), **({"koordinator.sh/qosClass": qos} if qos else {})}
    annotations = dict(metadata.pop("annotations", {}))
    if cpuset:
        annotations["scheduling.koordinator.sh/resource-status"] = f'{{"cpuset":"{cpuset}"}}'
    names = [f"c{number}" for number in range(containers)]
    statuses = [{"name": c, "containerID": f"containerd://{name}-{c}", "state": {"running": {}}} for c in names]
    document = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": labels,
            "annotations": annotations,
            **metadata,
        },
        "spec": {"containers": [{"name": c} for c in names], **(spec or {})},
        "status": {"phase": phase, "qosClass": kube, "containerStatuses": statuses},
    }
    if init:
        running = {"name": init, "containerID": f"containerd://{name}-{init}", "state": {"running": {}}}
        document["status"]["initContainerStatuses"] = [running, {"name": "waits", "containerID": ""}]
    return PodView.of(describe(convert(document, Pod), CgroupDriver.CGROUPFS), cpu, memory)


def make_node(
    cpu: str = "8", memory: str = "16Gi", annotations: Mapping[str, str] | None = None, **allocatable: str
) -> Node:
    """`allocatable` is the capacity unless given."""
    capacity = {"cpu": cpu, "memory": memory}
    document = {
        "metadata": {"name": "n", "annotations": dict(annotations or {})},
        "status": {"capacity": capacity, "allocatable": {**capacity, **allocatable}},
    }
    return convert(document, Node)


def make_view(**fields: Any) -> NodeView:
    """A node of 8 CPUs without pods; `slo` is a NodeSLO spec as JSON, `held` the settings that the kernel has."""
    held: Mapping[Setting, Value] = fields.pop("held", {})
    slo = effective(convert(fields.pop("slo", {}), NodeSLOSpec))
    defaults: dict[str, Any] = {
        "now": 1000.0,
        "slo": slo,
        "node": make_node(),
        "pods": (),
        "current": held.get,
        "qos_dirs": {"BestEffort": "kubepods/besteffort"},
        "topology": flat(8),
        "memory_files": frozenset(MEMORY_FILES),
    }
    values = {**defaults, **fields}
    best_effort = BestEffortCgroup.read(values["qos_dirs"].get("BestEffort", ""), values["current"])
    return NodeView(**{"best_effort_cgroup": best_effort, **values})


@pytest.fixture
def pod() -> MakePod:
    return make_pod


__all__ = ["CPUSet", "HostAppView"]
