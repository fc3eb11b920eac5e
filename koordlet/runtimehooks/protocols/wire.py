"""Messages of the hook service: requests to contexts, answers to responses (spec 03 §4.2). Pure.

A response starts as a copy of the request; the value of a hook replaces its field. In resources a zero or empty field
means "not set".
"""

from __future__ import annotations

from collections.abc import Mapping

from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    PodSandboxMetadata,
)
from koordlet.qosmanager.engine.view import PodView
from koordlet.runtimehooks.contexts import container_id, pod_of
from koordlet.runtimehooks.stages import HookAnswer, HookContainer, HookContext
from koordlet.system.cgroup.codecs import CFS_PERIOD_US


def sandbox_context(request: PodSandboxHookRequest, directory: str = "") -> HookContext:
    """`directory`: that of the pod, if the request has none. Raises HookError for an invalid one."""
    parent = request.cgroup_parent or directory
    return HookContext(
        _pod(request.pod_meta, request.labels, request.annotations, parent, handler=request.runtime_handler)
    )


def container_context(request: ContainerResourceHookRequest, runtime: str, directory: str) -> HookContext:
    """As `sandbox_context`; `runtime` is that of the node."""
    container, parent = request.container_meta, request.pod_cgroup_parent or directory
    pod = _pod(request.pod_meta, request.pod_labels, request.pod_annotations, parent)
    digest = container_id(runtime, container.id, request.pod_annotations)
    return HookContext(pod, HookContainer(container.name, digest, request.container_resources.cpu_quota or None))


def _pod(
    meta: PodSandboxMetadata, labels: Mapping[str, str], annotations: Mapping[str, str], parent: str, handler: str = ""
) -> PodView:
    return pod_of(meta.name, meta.namespace, meta.uid, labels, annotations, parent, handler=handler)


def sandbox_response(request: PodSandboxHookRequest, answer: HookAnswer) -> PodSandboxHookResponse:
    """The fields of the request with those of the answer."""
    response = PodSandboxHookResponse(
        labels=request.labels, annotations=request.annotations, cgroup_parent=request.cgroup_parent
    )
    if request.HasField("resources"):
        response.resources.CopyFrom(request.resources)
    if _has_resources(answer):
        _fill(response.resources, answer)
    return response


def container_response(request: ContainerResourceHookRequest, answer: HookAnswer) -> ContainerResourceHookResponse:
    """As `sandbox_response`, with variables; the protocol has no mounts and devices. A response has all variables if
    the answer adds some, else none, which leaves those of the container unchanged: a hundred variables take both sides
    as long as all other fields together."""
    response = ContainerResourceHookResponse(
        container_annotations=request.container_annotations, pod_cgroup_parent=request.pod_cgroup_parent
    )
    if answer.env:
        response.container_envs.update({**request.container_envs, **answer.env})
    if request.HasField("container_resources"):
        response.container_resources.CopyFrom(request.container_resources)
    if _has_resources(answer):
        _fill(response.container_resources, answer)
    return response


def _has_resources(answer: HookAnswer) -> bool:
    values = (answer.cpu_shares, answer.cfs_quota, answer.cpuset, answer.memory_limit)
    return any(value is not None for value in values)


def _fill(resources: LinuxContainerResources, answer: HookAnswer) -> None:
    if answer.cpu_shares is not None:
        resources.cpu_shares = answer.cpu_shares
    if answer.cfs_quota is not None:
        resources.cpu_quota = answer.cfs_quota
        if answer.cfs_quota > 0 and resources.cpu_period:  # the quota is for this period
            resources.cpu_period = CFS_PERIOD_US
    if answer.memory_limit is not None:
        resources.memory_limit_in_bytes = answer.memory_limit
    if answer.cpuset is not None:
        resources.cpuset_cpus = answer.cpuset
