"""CRI requests as the store keeps them, and with a hook's answer written into them (spec 08 §11.1). Pure but for the
request given: the functions named after calls change it and say whether they did.

Only what an answer has different from what was asked is written, so that an echo changes nothing. Sections that a
request lacks are made when something belongs there, except in one for Windows (a windows section, no linux one): of
its resources nothing here speaks.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from koordlet.api.cri.api_pb2 import CreateContainerRequest, RunPodSandboxRequest, UpdateContainerResourcesRequest
from koordlet.api.hooks.api_pb2 import ContainerResourceHookResponse, LinuxContainerResources, PodSandboxHookResponse
from runtimeproxy.hooks.merge import merged, merged_envs, variables
from runtimeproxy.hooks.stages import HookResponse
from runtimeproxy.store import ContainerInfo, PodInfo


def pod_of(request: RunPodSandboxRequest, response: HookResponse | None = None) -> PodInfo | None:
    """The sandbox that is asked for; None for a request without a config. Resources only if a hook says some."""
    if not request.HasField("config"):
        return None
    config = request.config
    resources = None
    if isinstance(response, PodSandboxHookResponse) and response.HasField("resources"):
        resources = plain(response.resources)
    return PodInfo(
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


def container_of(request: CreateContainerRequest, pod: PodInfo, envs: Mapping[str, str] | None = None) -> ContainerInfo:
    """The container that is asked for, without an id. `envs`: its variables, where they are known."""
    config = request.config
    return ContainerInfo(
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
    """Labels, annotations, cgroup parent."""
    assert isinstance(response, PodSandboxHookResponse)
    config = request.config
    changed = _take(config.labels, response.labels) | _take(config.annotations, response.annotations)
    windows = config.HasField("windows") and not config.HasField("linux")
    if response.cgroup_parent not in ("", config.linux.cgroup_parent) and not windows:
        config.linux.cgroup_parent = response.cgroup_parent
        changed = True
    return changed


def create_container(
    request: CreateContainerRequest, asked: ContainerInfo, response: HookResponse
) -> tuple[bool, ContainerInfo]:
    """Annotations, variables, resources, cgroup parent. Also the container as it is then asked for. `asked`: what the
    hook was told, which is what the request says."""
    changed, envs = _create_container(request, asked, response)
    return changed, container_of(request, asked.pod, envs) if changed else asked


def _create_container(
    request: CreateContainerRequest, asked: ContainerInfo, response: HookResponse
) -> tuple[bool, Mapping[str, str]]:
    assert isinstance(response, ContainerResourceHookResponse)
    config = request.config
    changed = _take(config.annotations, response.container_annotations)
    now, answered = asked.envs, dict(response.container_envs)
    envs = None if answered == now else merged_envs(config.envs, answered)
    if envs is not None:
        del config.envs[:]
        config.envs.extend(envs)
        now, changed = answered, True
    if config.HasField("windows") and not config.HasField("linux"):
        return changed, now
    if response.HasField("container_resources"):
        before = config.linux.resources
        resources = merged(before, response.container_resources)
        if resources is not None and resources != before:
            config.linux.resources.CopyFrom(resources)
            changed = True
    if response.pod_cgroup_parent not in ("", asked.cgroup_parent or asked.pod.cgroup_parent):
        request.sandbox_config.linux.cgroup_parent = response.pod_cgroup_parent
        changed = True
    return changed, now


def update_container(
    request: UpdateContainerResourcesRequest, asked: ContainerInfo, response: HookResponse
) -> tuple[bool, LinuxContainerResources | None]:
    """Annotations; the linux section becomes the container's whole state if the answer has resources (§11.4). Also the
    resources that the container has afterwards. `asked`: what the hook was told."""
    assert isinstance(response, ContainerResourceHookResponse)
    changes = {
        key: value for key, value in response.container_annotations.items() if asked.annotations.get(key) != value
    }
    changed = _take(request.annotations, changes)
    windows = request.HasField("windows") and not request.HasField("linux")
    if windows or not response.HasField("container_resources"):
        return changed, asked.resources
    resources = merged(asked.resources or LinuxContainerResources(), response.container_resources)
    assert resources is not None
    wanted = LinuxContainerResources()
    wanted.CopyFrom(request.linux)  # with its unknown fields
    for field in LinuxContainerResources.DESCRIPTOR.fields:
        if field.name != "hugepage_limits" or not request.linux.hugepage_limits:
            wanted.ClearField(field.name)
    rest = plain(resources)
    if wanted.hugepage_limits:
        rest.ClearField("hugepage_limits")
    wanted.MergeFrom(rest)
    if wanted != request.linux:
        request.linux.CopyFrom(wanted)
        changed = True
    return changed, resources


def plain(resources: LinuxContainerResources) -> LinuxContainerResources:
    """A copy that holds nothing we don't know: such fields belong to one request."""
    copy = LinuxContainerResources()
    copy.CopyFrom(resources)
    copy.DiscardUnknownFields()
    return copy


def _take(held: MutableMapping[str, str], answered: Mapping[str, str]) -> bool:
    changed = False
    for key, value in answered.items():
        if held.get(key) != value:
            held[key] = value
            changed = True
    return changed
