"""Prometheus views of the batch and mid resources of the node and of containers (spec 02 §10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from koordlet.api.core import Container
from koordlet.api.core.pod import ResourceRequirements
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.names import (
    RESOURCE_BATCH_CPU,
    RESOURCE_BATCH_MEMORY,
    RESOURCE_MID_CPU,
    RESOURCE_MID_MEMORY,
)
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta
from koordlet.statesinformer.states import KubeStates

RESOURCE_UNITS = {
    RESOURCE_BATCH_CPU: "integer",
    RESOURCE_BATCH_MEMORY: "byte",
    RESOURCE_MID_CPU: "integer",
    RESOURCE_MID_MEMORY: "byte",
}


def attach_resource_views(states: KubeStates, registries: Registries) -> None:
    """Add three families to the external registry."""
    registries.view("node_resource_allocatable", lambda: _allocatable(states))
    registries.view("container_resource_requests", lambda: _containers(states, lambda spec: spec.requests))
    registries.view("container_resource_limits", lambda: _containers(states, lambda spec: spec.limits))


def _allocatable(states: KubeStates) -> list[tuple[tuple[str, str], float]]:
    """Absent resources are 0; a node without any allocatable has no samples."""
    node = states.node.object
    if node is None or not node.status.allocatable:
        return []
    amounts = node.status.allocatable
    return [
        ((name, unit), float(amounts[name].value()) if name in amounts else 0.0)
        for name, unit in RESOURCE_UNITS.items()
    ]


def _containers(
    states: KubeStates, amounts_of: Callable[[ResourceRequirements], Mapping[str, Quantity]]
) -> Iterator[tuple[tuple[str, ...], float]]:
    for meta in states.workloads.pods.values():
        for status, container in _with_status(meta):
            amounts = amounts_of(container.resources)
            for name, unit in RESOURCE_UNITS.items():
                if name in amounts:
                    labels = (meta.uid, meta.name, meta.namespace, status.id, status.name)
                    yield (name, unit, *labels), float(amounts[name].value())


def _with_status(meta: PodMeta) -> Iterator[tuple[ContainerMeta, Container]]:
    if meta.pod is None:
        return
    declared = {c.name: c for c in [*meta.pod.spec.init_containers, *meta.pod.spec.containers]}
    for status in meta.containers:
        if status.name in declared:
            yield status, declared[status.name]
