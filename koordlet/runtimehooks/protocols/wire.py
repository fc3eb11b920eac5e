"""The hook service's messages to contexts, and answers into its responses (spec 03 §4.2). Pure.

A response starts as a copy of what the request said; a hook's value replaces the one field it is about. In resources a
zero or empty field means "not said".
"""

from __future__ import annotations

from koordlet.api.hooks.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from koordlet.runtimehooks.contexts import container_id, pod_of
from koordlet.runtimehooks.stages import Answer, HookContainer, HookContext, Native
from koordlet.system.cgroup.codecs import CFS_PERIOD_US, UNLIMITED


def sandbox_context(request: PodSandboxHookRequest, directory: str = "") -> HookContext:
    """`directory`: the pod's, where the request names none. Raises HookError for one that can't be."""
    meta = request.pod_meta
    pod = pod_of(
        meta.name,
        meta.namespace,
        meta.uid,
        request.labels,
        request.annotations,
        request.cgroup_parent or directory,
        handler=request.runtime_handler,
    )
    return HookContext(pod)


def container_context(request: ContainerResourceHookRequest, runtime: str, directory: str = "") -> HookContext:
    """As `sandbox_context`; `runtime` is the node's."""
    meta, own = request.pod_meta, request.container_meta
    pod = pod_of(
        meta.name,
        meta.namespace,
        meta.uid,
        request.pod_labels,
        request.pod_annotations,
        request.pod_cgroup_parent or directory,
    )
    digest = container_id(runtime, own.id, request.pod_annotations)
    native = native_of(request.container_resources)
    return HookContext(pod, HookContainer(own.name, digest, native, request.container_envs))


def native_of(resources: LinuxContainerResources) -> Native:
    """What the request says; a negative memory limit is none."""
    memory = resources.memory_limit_in_bytes
    return Native(
        cpu_shares=resources.cpu_shares or None,
        cfs_quota=resources.cpu_quota or None,
        cpuset=resources.cpuset_cpus or None,
        memory_limit=(UNLIMITED if memory < 0 else memory) or None,
    )


def sandbox_response(request: PodSandboxHookRequest, answer: Answer) -> PodSandboxHookResponse:
    """The request's fields with the answer's."""
    response = PodSandboxHookResponse(
        labels=request.labels, annotations=request.annotations, cgroup_parent=request.cgroup_parent
    )
    if request.HasField("resources"):
        response.resources.CopyFrom(request.resources)
    if _says(answer):
        _fill(response.resources, answer)
    return response


def container_response(request: ContainerResourceHookRequest, answer: Answer) -> ContainerResourceHookResponse:
    """As `sandbox_response`, with variables; mounts and devices can't be said here. Variables are said where there are
    new ones, all of them then: none leave the container's as they are, and a hundred of them take both ends as long as
    all the rest."""
    response = ContainerResourceHookResponse(
        container_annotations=request.container_annotations, pod_cgroup_parent=request.pod_cgroup_parent
    )
    if answer.env:
        response.container_envs.update({**request.container_envs, **answer.env})
    if request.HasField("container_resources"):
        response.container_resources.CopyFrom(request.container_resources)
    if _says(answer):
        _fill(response.container_resources, answer)
    return response


def _says(answer: Answer) -> bool:
    values = (answer.cpu_shares, answer.cfs_quota, answer.cpuset, answer.memory_limit)
    return any(value is not None for value in values)


def _fill(resources: LinuxContainerResources, answer: Answer) -> None:
    if answer.cpu_shares is not None:
        resources.cpu_shares = answer.cpu_shares
    if answer.cfs_quota is not None:
        resources.cpu_quota = answer.cfs_quota
        if answer.cfs_quota > 0 and resources.cpu_period:  # a quota is a share of this period
            resources.cpu_period = CFS_PERIOD_US
    if answer.memory_limit is not None:
        resources.memory_limit_in_bytes = answer.memory_limit
    if answer.cpuset is not None:
        resources.cpuset_cpus = answer.cpuset
