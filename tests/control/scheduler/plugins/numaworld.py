"""Nodes with NUMA zones, a cycle with NodeNUMAResource over them, and restarts of the scheduler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from control.scheduler.config.args import NodeNUMAResourceArgs
from control.scheduler.cycle.cycle import Cycle
from control.scheduler.cycle.placement import Placement
from control.scheduler.plugins.defaultpreemption.plugin import DefaultPreemption
from control.scheduler.plugins.nodenumaresource import NodeNUMAResource
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from control.scheduler.state.pods import PodInfo
from koordlet.api import names
from koordlet.api.core import Node, Pod
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding import wire
from tests.control.scheduler.build import Cluster, node, pod
from tests.control.scheduler.plugins.quotaworld import HeldObjects
from tests.control.scheduler.toys import cycle_of

POINTS = {
    "preFilter": ("NodeNUMAResource",),
    "filter": ("NodeNUMAResource", "NodeResourcesFit"),
    "score": ("NodeNUMAResource",),
    "reserve": ("NodeNUMAResource",),
    "preBind": ("NodeNUMAResource",),
    "postFilter": ("DefaultPreemption",),
}
REGISTRY = {plugin.name: plugin for plugin in (NodeNUMAResource, NodeResourcesFit, DefaultPreemption)}
KIB = 1 << 10


def detail(sockets: int, nodes: int, cores: int, threads: int) -> list[dict[str, int]]:
    """The CPUs of a regular layout: sockets, NUMA nodes per socket, cores per NUMA node, CPUs per core."""
    return [
        {
            "id": cpu,
            "core": cpu // threads,
            "node": cpu // (cores * threads),
            "socket": cpu // (nodes * cores * threads),
        }
        for cpu in range(sockets * nodes * cores * threads)
    ]


def topology(
    name: str,
    shape: tuple[int, int, int, int],
    *,
    policy: str = "",
    memory: str = "32Gi",
    reserved: str = "",
    zones: bool = True,
    annotations: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> NodeResourceTopology:
    """`memory`, `more` (further resources): of each zone."""
    cpus = shape[2] * shape[3]
    listed = [
        {
            "name": f"node-{number}",
            "type": "Node",
            "resources": [
                {"name": key, "capacity": amount, "allocatable": amount, "available": amount}
                for key, amount in {"cpu": str(cpus), "memory": memory, **(more or {})}.items()
            ],
        }
        for number in range(shape[0] * shape[1] if zones else 0)
    ]
    return wire.convert(
        {
            "metadata": {
                "name": name,
                "annotations": {
                    names.ANNOTATION_CPU_TOPOLOGY: json.dumps({"detail": detail(*shape)}),
                    **({names.ANNOTATION_NODE_RESERVATION: json.dumps({"reservedCPUs": reserved})} if reserved else {}),
                    **(annotations or {}),
                },
            },
            "topologyPolicies": [policy] if policy else [],
            "zones": listed,
        },
        NodeResourceTopology,
    )


def lsr(cpu: str, *, spec: Mapping[str, str] | None = None, numa: Mapping[str, str] | None = None, **more: Any) -> Pod:
    """An LSR pod. `spec`: its resource-spec; `numa`: its numa-topology-spec."""
    annotations = dict(more.pop("annotations", {}))
    if spec:
        annotations[names.ANNOTATION_RESOURCE_SPEC] = json.dumps(spec)
    if numa:
        annotations[names.ANNOTATION_NUMA_TOPOLOGY_SPEC] = json.dumps(numa)
    labels = {names.LABEL_QOS_CLASS: "LSR", **more.pop("labels", {})}
    return pod(cpu=cpu, labels=labels, annotations=annotations, priority=more.pop("priority", 9000), **more)


class NumaWorld:
    """Nodes with topologies, and the pods that the API server has."""

    def __init__(
        self, *nodes: tuple[Node, NodeResourceTopology | None], args: NodeNUMAResourceArgs | None = None
    ) -> None:
        self.nodes = nodes
        self.evicted: list[str] = []
        """Names of pods."""
        self.args = args
        self.pods: dict[str, Pod] = {}
        """By uid: bound pods."""
        self.start()

    def start(self) -> None:
        """A new process: all that it knows comes from the API server."""
        self.objects = HeldObjects()
        self.cluster = Cluster(*(member for member, _ in self.nodes))
        self.cluster.use(objects=self.objects, evictor=self)
        self.cycle: Cycle = cycle_of(self.cluster, POINTS, REGISTRY, args={"NodeNUMAResource": self.args})
        plugin = self.cycle.framework.plugins["NodeNUMAResource"]
        assert isinstance(plugin, NodeNUMAResource)
        self.plugin = plugin
        for stored in self.pods.values():
            self.cycle.cache.set_pod(stored)
        for _, reported in self.nodes:
            if reported is not None:
                self.report(reported)

    # VictimEvictor

    def evict(self, victims: Sequence[PodInfo], *, by: PodInfo, message: str) -> None:
        self.evicted += [victim.name for victim in victims]

    def clear_nominations(self, pods: Sequence[PodInfo]) -> None:
        assert not pods

    def evicting_for(self, uid: str) -> bool:
        return False

    def report(self, reported: NodeResourceTopology) -> None:
        self.objects.informer(NodeResourceTopology).put(reported)

    def place(self, pod: Pod) -> Placement:
        return self.cycle.place(self.cluster.info(pod))

    def prepared(self, placement: Placement) -> Pod:
        """The pod as PreBind leaves it, without a node."""
        copied: Pod = wire.convert(wire.to_builtins(placement.pod.pod), Pod)
        status = asyncio.run(self.plugin.pre_bind(placement.state, placement.pod, placement.row, copied))
        assert status.ok
        return copied

    def bind(self, placement: Placement) -> Pod:
        """PreBind and the binding succeed, and the API server's version comes back."""
        copied = self.prepared(placement)
        bound = msgspec.structs.replace(copied, spec=msgspec.structs.replace(copied.spec, node_name=placement.node))
        self.add(bound)
        return bound

    def add(self, bound: Pod) -> PodInfo | None:
        self.pods[bound.metadata.uid] = bound
        return self.cycle.cache.set_pod(bound)

    def remove(self, uid: str) -> None:
        del self.pods[uid]
        self.cycle.cache.remove_pod(uid)

    def run(self, pod: Pod) -> dict[str, Any]:
        """Schedule and bind a pod: its resource-status."""
        bound = self.bind(self.place(pod))
        return status_of(bound)

    def page(self, name: str) -> dict[str, Any]:
        return self.plugin.node_page(name)


def status_of(pod: Pod) -> dict[str, Any]:
    text = pod.metadata.annotations.get(names.ANNOTATION_RESOURCE_STATUS)
    return {} if text is None else json.loads(text)


def world(
    shape: tuple[int, int, int, int] = (2, 1, 4, 2),
    count: int = 1,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    cpu: str = "",
    args: NodeNUMAResourceArgs | None = None,
    **reported: Any,
) -> NumaWorld:
    """`count` equal nodes n0, n1 …"""
    cpus = shape[0] * shape[1] * shape[2] * shape[3]
    listed: Sequence[tuple[Node, NodeResourceTopology]] = [
        (
            node(f"n{at}", cpu=cpu or str(cpus), memory="64Gi", labels=labels, annotations=annotations),
            topology(f"n{at}", shape, **reported),
        )
        for at in range(count)
    ]
    return NumaWorld(*listed, args=args)
