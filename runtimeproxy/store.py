"""What the proxy knows of sandboxes and containers (spec 08 §11.5): in memory only, rebuilt from the runtime at start.

Entries are immutable and replaced whole, so that a call that holds one sees no half change. One event loop uses it;
nothing here waits or locks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from koordlet.api.hooks.api_pb2 import LinuxContainerResources


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A sandbox as hooks hear of it; `resources` None = not known."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    attempt: int = 0
    runtime_handler: str = ""
    labels: Mapping[str, str] = field(default_factory=_nothing)
    annotations: Mapping[str, str] = field(default_factory=_nothing)
    cgroup_parent: str = ""
    resources: LinuxContainerResources | None = None
    complete: bool = True
    """False for an entry from a list of the runtime's, which lacks the cgroup parent (spec 08 §11.5)."""

    @property
    def key(self) -> str:
        """For people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A container as hooks hear of it, with its pod as it was when it was made; `resources` are those that the runtime
    was last told, None = not known."""

    pod: PodInfo
    pod_id: str
    name: str = ""
    attempt: int = 0
    id: str = ""
    """Empty until the runtime has made it."""
    annotations: Mapping[str, str] = field(default_factory=_nothing)
    resources: LinuxContainerResources | None = None
    envs: Mapping[str, str] = field(default_factory=_nothing)
    cgroup_parent: str = ""
    """The pod's, as the container's request named it; empty: the pod's own."""
    complete: bool = True
    """False for an entry from a list of the runtime's, which lacks resources and variables."""

    @property
    def key(self) -> str:
        return f"{self.pod.key}/{self.name}"


@dataclass(slots=True)
class Store:
    """Sandboxes and containers by the runtime's ids. Read the dicts as you like; change them by the methods."""

    pods: dict[str, PodInfo] = field(default_factory=dict)
    containers: dict[str, ContainerInfo] = field(default_factory=dict)

    def put_pod(self, pod_id: str, pod: PodInfo) -> None:
        """Add or replace."""
        self.pods[pod_id] = pod

    def put_container(self, container: ContainerInfo) -> None:
        """Add or replace, under its id. Raises ValueError for one that has none."""
        if not container.id:
            raise ValueError(f"container {container.key} has no id to be stored under")
        self.containers[container.id] = container

    def change_container(self, container_id: str, **changes: Any) -> None:
        """Replace fields of a container that is still there."""
        found = self.containers.get(container_id)
        if found is not None:
            self.containers[container_id] = replace(found, **changes)

    def drop_pod(self, pod_id: str) -> None:
        """The sandbox stopped: its own entry goes, those of its containers stay until they are stopped or removed."""
        self.pods.pop(pod_id, None)

    def drop_container(self, container_id: str) -> None:
        self.containers.pop(container_id, None)

    def forget_pod(self, pod_id: str) -> None:
        """The sandbox is removed, which removes its containers too."""
        self.pods.pop(pod_id, None)
        for container_id in [one for one, container in self.containers.items() if container.pod_id == pod_id]:
            del self.containers[container_id]
