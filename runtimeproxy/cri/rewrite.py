"""Converts CRI requests to store entries, and writes a hook's response into them (spec 08 §11.1). Pure, except that the
functions named after calls change the request they are given and return whether they did.

Only fields in which the response differs from the hook request are written, so that an echo changes nothing. Missing
sections of a request are created when needed, except in a request for Windows (a windows section, no linux one), whose
resources have no fields here.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from koordlet.api.cri.api_pb2 import CreateContainerRequest, RunPodSandboxRequest, UpdateContainerResourcesRequest
from koordlet.api.hooks.api_pb2 import ContainerResourceHookResponse, LinuxContainerResources, PodSandboxHookResponse
from runtimeproxy.hooks.merge import merged, merged_envs, variables
from runtimeproxy.hooks.stages import HookResponse
from runtimeproxy.store import StoredContainer, StoredPod


def pod_of(request: RunPodSandboxRequest, response: HookResponse | None = None) -> StoredPod | None:
    """The requested sandbox; None for a request without a config. It has resources only if the hook's response has
    some."""
    if not request.HasField("config"):
        return None
    config = request.config
    resources = None
    if isinstance(response, PodSandboxHookResponse) and response.HasField("resources"):
        resources = plain(response.resources)
    return StoredPod(
        name=config.metadata.name,
        namespace=config.metadata.namespace,
        uid=config.metadata.uid,
        attempt=config.metadata.attempt,
        runtime_handler=request.runtime_handler,
        labels=dict(config.labels),
        annotations=dict(config.annotations),
        cgroup_parent=config.linux.cgroup_parent,
        resources=resources,
    )


def container_of(
    request: CreateContainerRequest, pod: StoredPod, envs: Mapping[str, str] | None = None
) -> StoredContainer:
    """The requested container, without an id. `envs`: its variables, if they are known already."""
    config = request.config
    return StoredContainer(
        pod=pod,
        pod_id=request.pod_sandbox_id,
        name=config.metadata.name,
        attempt=config.metadata.attempt,
        annotations=dict(config.annotations),
        resources=plain(config.linux.resources) if config.linux.HasField("resources") else None,
        envs=variables(config.envs) if envs is None else envs,
        cgroup_parent=request.sandbox_config.linux.cgroup_parent,
    )


def run_pod(request: RunPodSandboxRequest, response: HookResponse) -> bool:
    """Write labels, annotations and cgroup parent."""
    assert isinstance(response, PodSandboxHookResponse)
    config = request.config
    changed = _take(config.labels, response.labels) | _take(config.annotations, response.annotations)
    windows = config.HasField("windows") and not config.HasField("linux")
    if response.cgroup_parent not in ("", config.linux.cgroup_parent) and not windows:
        config.linux.cgroup_parent = response.cgroup_parent
        changed = True
    return changed


def create_container(
    request: CreateContainerRequest, requested: StoredContainer, response: HookResponse
) -> tuple[bool, StoredContainer]:
    """Write annotations, variables, resources and cgroup parent. Also returns the container as then requested.
    `requested`: the container in the hook request, which equals the one in `request`."""
    changed, envs = _create_container(request, requested, response)
    return changed, container_of(request, requested.pod, envs) if changed else requested


def _create_container(
    request: CreateContainerRequest, requested: StoredContainer, response: HookResponse
) -> tuple[bool, Mapping[str, str]]:
    assert isinstance(response, ContainerResourceHookResponse)
    config = request.config
    changed = _take(config.annotations, response.container_annotations)
    envs_now, returned = requested.envs, dict(response.container_envs)
    envs = None if returned == envs_now else merged_envs(config.envs, returned)
    if envs is not None:
        del config.envs[:]
        config.envs.extend(envs)
        envs_now, changed = returned, True
    if config.HasField("windows") and not config.HasField("linux"):
        return changed, envs_now
    if response.HasField("container_resources"):
        before = config.linux.resources
        resources = merged(before, response.container_resources)
        if resources is not None and resources != before:
            config.linux.resources.CopyFrom(resources)
            changed = True
    if response.pod_cgroup_parent not in ("", requested.cgroup_parent or requested.pod.cgroup_parent):
        request.sandbox_config.linux.cgroup_parent = response.pod_cgroup_parent
        changed = True
    return changed, envs_now


def update_container(
    request: UpdateContainerResourcesRequest, requested: StoredContainer, response: HookResponse
) -> tuple[bool, LinuxContainerResources | None]:
    """Write annotations; the linux section becomes the container's complete state if the response has resources
    (§11.4). Also returns the container's resources after the update. `requested`: the container in the hook request."""
    assert isinstance(response, ContainerResourceHookResponse)
    changes = {
        key: value for key, value in response.container_annotations.items() if requested.annotations.get(key) != value
    }
    changed = _take(request.annotations, changes)
    windows = request.HasField("windows") and not request.HasField("linux")
    if windows or not response.HasField("container_resources"):
        return changed, requested.resources
    resources = merged(requested.resources or LinuxContainerResources(), response.container_resources)
    assert resources is not None
    merged_linux = LinuxContainerResources()
    merged_linux.CopyFrom(request.linux)  # with its unknown fields
    for field in LinuxContainerResources.DESCRIPTOR.fields:
        if field.name != "hugepage_limits" or not request.linux.hugepage_limits:
            merged_linux.ClearField(field.name)
    known_fields = plain(resources)
    if merged_linux.hugepage_limits:
        known_fields.ClearField("hugepage_limits")
    merged_linux.MergeFrom(known_fields)
    if merged_linux != request.linux:
        request.linux.CopyFrom(merged_linux)
        changed = True
    return changed, resources


def plain(resources: LinuxContainerResources) -> LinuxContainerResources:
    """A copy without unknown fields, which belong to one request only."""
    copy = LinuxContainerResources()
    copy.CopyFrom(resources)
    copy.DiscardUnknownFields()
    return copy


def _take(current: MutableMapping[str, str], returned: Mapping[str, str]) -> bool:
    changed = False
    for key, value in returned.items():
        if current.get(key) != value:
            current[key] = value
            changed = True
    return changed
