"""Short ways to write nodes and pods, and a handle over a table of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from control.scheduler.framework.handle import Handle
from control.scheduler.state.pods import PodInfo, Shapes
from control.scheduler.state.selectors import PodCounters
from control.scheduler.state.table import NodeTable
from koordlet.api.core import Node, Pod
from koordlet.api.encoding import wire

_uids = itertools.count(1)


def node(
    name: str,
    cpu: str = "8",
    memory: str = "32Gi",
    pods: int = 110,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    unschedulable: bool = False,
    annotations: Mapping[str, str] | None = None,
    **more: str,
) -> Node:
    """A node; `more` names further resources with `__` for `/` and `_` for `-`, e.g. `kubernetes.io__batch_cpu="4"`."""
    extra = {key.replace("__", "/").replace("_", "-"): value for key, value in more.items()}
    return wire.convert(
        {
            "metadata": {
                "name": name,
                "uid": f"node-{name}",
                "labels": {"kubernetes.io/hostname": name, **(labels or {})},
                "annotations": dict(annotations or {}),
            },
            "spec": {"unschedulable": unschedulable, "taints": [dict(taint) for taint in taints]},
            "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": str(pods), **extra}},
        },
        Node,
    )


def pod(
    name: str = "",
    cpu: str | None = "1",
    memory: str | None = "1Gi",
    *,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    priority: int | None = None,
    on: str = "",
    limits: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **more: str,
) -> Pod:
    """A pod of one container; `spec`, `metadata` and `status` are merged over what the rest makes."""
    number = next(_uids)
    extra = {key.replace("__", "/").replace("_", "-"): value for key, value in more.items()}
    requests = {key: value for key, value in {"cpu": cpu, "memory": memory, **extra}.items() if value is not None}
    body: dict[str, Any] = {
        "metadata": {
            "name": name or f"pod-{number}",
            "namespace": namespace,
            "uid": f"uid-{number}",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "resourceVersion": str(number),
            **(metadata or {}),
        },
        "spec": {
            "schedulerName": "koord-scheduler",
            "nodeName": on,
            "containers": [
                {"name": "main", "image": "img", "resources": {"requests": requests, "limits": dict(limits or {})}}
            ],
            **({} if priority is None else {"priority": priority}),
            **(spec or {}),
        },
        "status": dict(status or {}),
    }
    return wire.convert(body, Pod)


class Cluster:
    """A table with nodes and pods on them, and the services that plugins and cycles over it use."""

    def __init__(self, *nodes: Node) -> None:
        self.table = NodeTable(4)
        self.shapes = Shapes()
        self.counters = PodCounters(self.table)
        self.handle = Handle(self.table, self.shapes, self.counters)
        self.cycle_services: dict[str, Any] = {}
        """Keyword arguments for `Cycle`: queue, evictor, auditor."""
        for node in nodes:
            self.table.set_node(node)

    def use(self, **services: Any) -> None:
        """Replace services: fields of `Handle`, or `queue`, `evictor`, `auditor`. Call it before plugins are
        created."""
        names = {field.name for field in fields(Handle)}
        self.handle = replace(self.handle, **{name: value for name, value in services.items() if name in names})
        self.cycle_services |= {name: value for name, value in services.items() if name not in names}

    def info(self, pod: Pod) -> PodInfo:
        return self.shapes.info(pod)

    def put(self, *pods: Pod) -> list[PodInfo]:
        """Count pods on the nodes that they name."""
        infos = [self.info(pod) for pod in pods]
        for info in infos:
            self.table.add_pod(info, info.pod.spec.node_name)
        return infos

    def rows(self, *names: str) -> list[int]:
        return [self.table.rows[name] for name in names]
