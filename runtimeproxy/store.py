"""Sandboxes and containers known to the proxy (spec 08 §11.5): in memory only, rebuilt from the runtime at start.

Entries are immutable and replaced as a whole, so that a call never sees a half-changed one. Used by one event loop
only; no method waits or locks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from koordlet.api.hooks.api_pb2 import LinuxContainerResources


def _empty() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StoredPod:
    """A sandbox as in hook requests; `resources` None: unknown."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    attempt: int = 0
    runtime_handler: str = ""
    labels: Mapping[str, str] = field(default_factory=_empty)
    annotations: Mapping[str, str] = field(default_factory=_empty)
    cgroup_parent: str = ""
    resources: LinuxContainerResources | None = None
    complete: bool = True
    """False for an entry from the runtime's list, which lacks the cgroup parent (spec 08 §11.5)."""

    @property
    def key(self) -> str:
        """For messages."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class StoredContainer:
    """A container as in hook requests, with its pod at the time of creation; `resources`: those last sent to the
    runtime, None: unknown."""

    pod: StoredPod
    pod_id: str
    name: str = ""
    attempt: int = 0
    id: str = ""
    """Empty until the runtime has created it."""
    annotations: Mapping[str, str] = field(default_factory=_empty)
    resources: LinuxContainerResources | None = None
    envs: Mapping[str, str] = field(default_factory=_empty)
    cgroup_parent: str = ""
    """The pod's cgroup parent according to the container's request; empty: that of `pod`."""
    complete: bool = True
    """False for an entry from the runtime's list, which lacks resources and variables."""

    @property
    def key(self) -> str:
        return f"{self.pod.key}/{self.name}"


@dataclass(slots=True)
class ProxyStore:
    """Sandboxes and containers by the runtime's ids. The dicts may be read directly; changes go through the methods."""

    pods: dict[str, StoredPod] = field(default_factory=dict)
    containers: dict[str, StoredContainer] = field(default_factory=dict)

    def put_pod(self, pod_id: str, pod: StoredPod) -> None:
        """Add or replace."""
        self.pods[pod_id] = pod

    def put_container(self, container: StoredContainer) -> None:
        """Add or replace, under its id. Raises ValueError when it has none."""
        if not container.id:
            raise ValueError(f"container {container.key} has no id to be stored under")
        self.containers[container.id] = container

    def change_container(self, container_id: str, **changes: Any) -> None:
        """Replace fields of a container, if it is stored."""
        container = self.containers.get(container_id)
        if container is not None:
            self.containers[container_id] = replace(container, **changes)

    def drop_pod(self, pod_id: str) -> None:
        """The sandbox stopped: drop its entry; its containers stay until they are stopped or removed."""
        self.pods.pop(pod_id, None)

    def drop_container(self, container_id: str) -> None:
        self.containers.pop(container_id, None)

    def forget_pod(self, pod_id: str) -> None:
        """The sandbox is removed, which also removes its containers."""
        self.pods.pop(pod_id, None)
        for container_id in [held_id for held_id, container in self.containers.items() if container.pod_id == pod_id]:
            del self.containers[container_id]
