"""Batch and mid resources of the node and of containers, for Prometheus (spec 02 §10). Views only."""

from __future__ import annotations

from collections.abc import Iterator

from koordlet.api.core import Container
from koordlet.api.names import (
    RESOURCE_BATCH_CPU,
    RESOURCE_BATCH_MEMORY,
    RESOURCE_MID_CPU,
    RESOURCE_MID_MEMORY,
)
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta
from koordlet.statesinformer.states import KubeStates

UNITS = {
    RESOURCE_BATCH_CPU: "integer",
    RESOURCE_BATCH_MEMORY: "byte",
    RESOURCE_MID_CPU: "integer",
    RESOURCE_MID_MEMORY: "byte",
}


class ResourceViews:
    """Attaches three families to the external registry."""

    def __init__(self, states: KubeStates, registries: Registries) -> None:
        self._states = states
        registries.view("node_resource_allocatable", self._allocatable)
        registries.view("container_resource_requests", lambda: self._containers("requests"))
        registries.view("container_resource_limits", lambda: self._containers("limits"))

    def _allocatable(self) -> list[tuple[tuple[str, str], float]]:
        """Absent resources are 0; a node without any allocatable is skipped."""
        node = self._states.node.object
        if node is None or not node.status.allocatable:
            return []
        given = node.status.allocatable
        return [((name, unit), float(given[name].value()) if name in given else 0.0) for name, unit in UNITS.items()]

    def _containers(self, member: str) -> Iterator[tuple[tuple[str, ...], float]]:
        for meta in self._states.workloads.pods.values():
            for status, container in _with_status(meta):
                amounts = getattr(container.resources, member)
                for name, unit in UNITS.items():
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
