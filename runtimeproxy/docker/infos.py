"""Converts Docker containers to store entries. Pure.

The same functions read a create request and dockerd's description of an existing container, so that hook requests are
the same after a restart of the proxy.
"""

from __future__ import annotations

from collections.abc import Mapping

from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from runtimeproxy.docker import bodies, names
from runtimeproxy.docker.bodies import JsonObject
from runtimeproxy.docker.names import KubernetesName
from runtimeproxy.store import StoredContainer, StoredPod

HANDLER = "docker"
"""Runtime handler in hook requests."""


def pod_info(name: KubernetesName, labels: Mapping[str, str], host: JsonObject | None, driver: str) -> StoredPod:
    """A sandbox from its Docker container's labels and HostConfig; incomplete without a HostConfig (a list lacks it).
    Raises InvalidBody."""
    plain, annotations = names.split_labels(labels)
    return StoredPod(
        name=name.pod,
        namespace=name.namespace,
        uid=name.uid,
        attempt=name.attempt,
        runtime_handler=HANDLER,
        labels=plain,
        annotations=annotations,
        cgroup_parent=_parent(host, driver),
        resources=_resources(host),
        complete=host is not None,
    )


def container_info(
    name: KubernetesName,
    labels: Mapping[str, str],
    envs: Mapping[str, str],
    host: JsonObject | None,
    driver: str,
    pod_id: str,
    pod: StoredPod,
    container_id: str = "",
) -> StoredContainer:
    """A container of the sandbox `pod`; `envs` as from `bodies.env_map`, `host` as in `pod_info`. Raises
    InvalidBody."""
    return StoredContainer(
        pod=pod,
        pod_id=pod_id,
        name=name.container,
        attempt=name.attempt,
        id=container_id,
        annotations=names.split_labels(labels)[1],
        resources=_resources(host),
        envs=envs,
        cgroup_parent=_parent(host, driver),
        complete=host is not None,
    )


def _resources(host: JsonObject | None) -> LinuxContainerResources | None:
    return None if host is None else bodies.read_resources(host)


def _parent(host: JsonObject | None, driver: str) -> str:
    return "" if host is None else names.expand_parent(host.get("CgroupParent", str) or "", driver)
