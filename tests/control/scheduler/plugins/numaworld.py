"""Nodes with NUMA zones, a cycle with NodeNUMAResource over them, and restarts of the scheduler."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from control.scheduler.config.args import NodeNUMAResourceArgs
from control.scheduler.plugins.defaultpreemption.plugin import DefaultPreemption
from control.scheduler.plugins.nodenumaresource import NodeNUMAResource
from control.scheduler.plugins.noderesourcesfit import NodeResourcesFit
from koordlet.api import names
from koordlet.api.core import Node, Pod
from koordlet.api.crs.topology import NodeResourceTopology
from koordlet.api.encoding import wire
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.plugins.pluginworld import PluginWorld

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


class NumaWorld(PluginWorld):
    """Nodes with topologies."""

    points, registry = POINTS, REGISTRY

    def __init__(
        self, *nodes: tuple[Node, NodeResourceTopology | None], args: NodeNUMAResourceArgs | None = None
    ) -> None:
        self.topologies = [reported for _, reported in nodes if reported is not None]
        super().__init__([member for member, _ in nodes], {"NodeNUMAResource": args})

    def start(self) -> None:
        super().start()
        plugin = self.cycle.framework.plugins["NodeNUMAResource"]
        assert isinstance(plugin, NodeNUMAResource)
        self.plugin = plugin
        for reported in self.topologies:
            self.report(reported)

    def report(self, reported: NodeResourceTopology) -> None:
        self.objects.informer(NodeResourceTopology).put(reported)

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
