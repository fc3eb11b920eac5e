"""Builds the requests to hook servers from the store's entries (spec 08 §10). Pure."""

from __future__ import annotations

from koordlet.api.hooks.api_pb2 import (
    ContainerMetadata,
    ContainerResourceHookRequest,
    PodSandboxHookRequest,
    PodSandboxMetadata,
)
from runtimeproxy.store import StoredContainer, StoredPod


def pod_request(pod: StoredPod) -> PodSandboxHookRequest:
    """Request of a sandbox hook."""
    return PodSandboxHookRequest(
        pod_meta=_pod_meta(pod),
        runtime_handler=pod.runtime_handler,
        labels=pod.labels,
        annotations=pod.annotations,
        cgroup_parent=pod.cgroup_parent,
        resources=pod.resources,
    )


def container_request(container: StoredContainer) -> ContainerResourceHookRequest:
    """Request of a container hook."""
    pod = container.pod
    return ContainerResourceHookRequest(
        pod_meta=_pod_meta(pod),
        container_meta=ContainerMetadata(name=container.name, attempt=container.attempt, id=container.id),
        container_annotations=container.annotations,
        container_resources=container.resources,
        pod_resources=pod.resources,
        pod_annotations=pod.annotations,
        pod_labels=pod.labels,
        pod_cgroup_parent=container.cgroup_parent or pod.cgroup_parent,
        container_envs=container.envs,
    )


def _pod_meta(pod: StoredPod) -> PodSandboxMetadata:
    return PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=pod.attempt)
