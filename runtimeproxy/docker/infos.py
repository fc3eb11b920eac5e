"""Docker containers as the store keeps them. Pure.

The same functions read a create request and dockerd's description of what exists, so that a restarted proxy tells
hooks what the one before it told.
"""

from __future__ import annotations

from collections.abc import Mapping

from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from runtimeproxy.docker import bodies, names
from runtimeproxy.docker.bodies import Members
from runtimeproxy.docker.names import KubernetesName
from runtimeproxy.store import ContainerInfo, PodInfo

HANDLER = "docker"
"""What hooks are told as the runtime handler."""


def pod_info(name: KubernetesName, labels: Mapping[str, str], host: Members | None, driver: str) -> PodInfo:
    """A sandbox from its Docker container's labels and HostConfig; without that (a list lacks it) not a complete one.
    Raises Undecodable."""
    plain, annotations = names.split_labels(labels)
    return PodInfo(
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
    host: Members | None,
    driver: str,
    pod_id: str,
    pod: PodInfo,
    container_id: str = "",
) -> ContainerInfo:
    """A container of the sandbox `pod`; `envs` as `bodies.env_map` has them, `host` as of `pod_info`. Raises
    Undecodable."""
    return ContainerInfo(
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


def _resources(host: Members | None) -> LinuxContainerResources | None:
    return None if host is None else bodies.read_resources(host)


def _parent(host: Members | None, driver: str) -> str:
    return "" if host is None else names.expand_parent(host.get("CgroupParent", str) or "", driver)
