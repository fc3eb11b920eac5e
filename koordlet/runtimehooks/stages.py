"""Hooks at the life-cycle stages of pods and containers (spec 03 §4.1): the input, output and order of plugins.

A plugin is pure: it gets a context (the runtime's description of one pod or container) and the node view, and returns a
`HookAnswer`. Most plugins are strategies too and use the same function for both, so that a container starts with the
values that the reconciler would set. The protocols (`protocols`) turn an answer into a response to the runtime.
Settings that no response can carry are set by an immediate round of the pod-following strategies for the announced pod
(`calls`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from koordlet.api.encoding.wire import WireError
from koordlet.app.logging import get_logger
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.resourceexecutor import DesiredSetting
from koordlet.system.cgroup.naming import CgroupDriver, NamingError, container_name

log = get_logger(__name__)

DURATION_BUCKETS = tuple(0.01 * 4**power for power in range(8))
"""Milliseconds (spec 03 §6)."""
KATA = "kata"


class HookStage(StrEnum):
    """When a hook runs; the values appear in registration files and metrics."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"
    POST_STOP_CONTAINER = "PostStopContainer"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_REMOVE_RUN_POD_SANDBOX = "PreRemoveRunPodSandbox"


class FailurePolicy(StrEnum):
    """FAIL: the first failing hook ends the call with its error. IGNORE: it is left out."""

    FAIL = "Fail"
    IGNORE = "Ignore"


class HookError(Exception):
    """A hook could not answer; the message names the hook, the pod and the cause (an annotation and its field)."""


@dataclass(frozen=True, slots=True)
class HookContainer:
    """The container of the call; `id` is `<runtime>://<hash>`, empty before the runtime has assigned one. `cfs_quota`
    is that of the runtime's request, None without one."""

    name: str
    id: str = ""
    cfs_quota: int | None = None


@dataclass(frozen=True, slots=True)
class HookContext:
    """`pod` has the form of the node view and is made from the call: its `Pod` object has labels, annotations and, as
    requests and limits of containers, the extended resources. `container` is None at the stages of a pod."""

    pod: PodView
    container: HookContainer | None = None

    @property
    def annotations(self) -> Mapping[str, str]:
        return {} if self.pod.meta.pod is None else self.pod.meta.pod.metadata.annotations

    @property
    def labels(self) -> Mapping[str, str]:
        return {} if self.pod.meta.pod is None else self.pod.meta.pod.metadata.labels

    @property
    def key(self) -> str:
        """For messages: namespace/name, and the container."""
        pod = f"pod {self.pod.meta.namespace}/{self.pod.meta.name}"
        return pod if self.container is None else f"{pod}, container {self.container.name}"


class MountDirectory(StrEnum):
    """What is done with the source of a mount before: nothing, create the directory unless it exists, or create an
    empty directory that replaces an old one."""

    EXISTS = "exists"
    SHARED = "shared"
    FRESH = "fresh"


READ_ONLY = ("rbind", "ro", "nosuid", "nodev")
WRITABLE = ("rbind", "rw", "nosuid", "nodev", "noexec")


@dataclass(frozen=True, slots=True)
class ContainerMount:
    """A host path to mount in the container. The options keep the container from changing the host's file, and from
    using set-user-id programs and devices in it."""

    source: str
    destination: str
    type: str = "bind"
    options: tuple[str, ...] = READ_ONLY
    directory: MountDirectory = MountDirectory.EXISTS


@dataclass(frozen=True, slots=True)
class ContainerDevice:
    """A device node to create in the container; `mode` is the permissions of the file."""

    path: str
    type: str
    major: int
    minor: int
    mode: int


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """The changes of a hook; None (empty for collections) means no change. Values are in v1 units."""

    cpu_shares: int | None = None
    cfs_quota: int | None = None
    cpuset: str | None = None
    """CPU list; the empty string removes the CPU list of the request."""
    memory_limit: int | None = None
    net_cls_classid: int | None = None
    cpu_bvt: int | None = None
    cpu_idle: int | None = None
    closid: str | None = None
    """The resctrl group of the pod."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    mounts: tuple[ContainerMount, ...] = ()
    devices: tuple[ContainerDevice, ...] = ()

    def __or__(self, later: HookAnswer) -> HookAnswer:
        """Both answers: fields of the later one take precedence; variables, mounts and devices are combined."""
        merged: dict[str, Any] = {
            name: getattr(self, name) if getattr(later, name) is None else getattr(later, name) for name in _SINGLE
        }
        return HookAnswer(
            **merged,
            env={**self.env, **later.env},
            mounts=self.mounts + later.mounts,
            devices=self.devices + later.devices,
        )


_SINGLE = tuple(entry.name for entry in fields(HookAnswer) if entry.name not in ("env", "mounts", "devices"))
NO_CHANGE = HookAnswer()
_FIELD_OF = {
    "cpu.shares": "cpu_shares",
    "cpu.cfs_quota_us": "cfs_quota",
    "cpuset.cpus": "cpuset",
    "memory.limit_in_bytes": "memory_limit",
    "net_cls.classid": "net_cls_classid",
    "cpu.bvt_warp_ns": "cpu_bvt",
    "cpu.idle": "cpu_idle",
}


def answer_of(settings: Iterable[DesiredSetting]) -> HookAnswer:
    """The desired settings of one pod or container as an answer."""
    values: dict[str, Any] = {_FIELD_OF[desired.setting.resource]: desired.value for desired in settings}
    return HookAnswer(**values)


@runtime_checkable
class HookPlugin(Protocol):
    """`hook` is the name of the plugin (table of spec 03 §4.1). A class that is a `Strategy` too has its owner name in
    `name`."""

    @property
    def hook(self) -> str: ...
    @property
    def stages(self) -> Collection[HookStage]: ...

    def answer(self, stage: HookStage, context: HookContext, view: NodeView) -> HookAnswer:
        """The answer for this pod or container. Pure. Raises WireError for a malformed annotation, HookError for any
        other reason not to answer."""
        ...


class Hooks:
    """The plugins by stage, in lexical order of their names. Raises ValueError when a stage has a name twice."""

    def __init__(
        self,
        plugins: Iterable[HookPlugin],
        registries: Registries,
        *,
        policy: FailurePolicy = FailurePolicy.IGNORE,
    ) -> None:
        self._registries = registries
        self.policy = policy
        self._by_stage: dict[HookStage, list[HookPlugin]] = {stage: [] for stage in HookStage}
        for plugin in sorted(plugins, key=lambda plugin: plugin.hook):
            for stage in plugin.stages:
                others = self._by_stage[stage]
                if others and others[-1].hook == plugin.hook:
                    raise ValueError(f"two hooks of stage {stage} are named {plugin.hook!r}")
                others.append(plugin)
        self._durations = registries.histogram("runtime_hook_invoked_duration_milliseconds", DURATION_BUCKETS)

    @property
    def stages(self) -> tuple[HookStage, ...]:
        """The stages that have a hook."""
        return tuple(stage for stage, plugins in self._by_stage.items() if plugins)

    def names(self, stage: HookStage) -> tuple[str, ...]:
        """The hooks of a stage, in order."""
        return tuple(plugin.hook for plugin in self._by_stage[stage])

    def answer(self, stage: HookStage, context: HookContext, view: NodeView) -> HookAnswer:
        """The combined answer of all hooks of the stage; later ones take precedence. With policy Fail the first failing
        hook raises HookError; with Ignore it is left out."""
        combined = NO_CHANGE
        for plugin in self._by_stage[stage]:
            try:
                answer = self._call(plugin, stage, context, view)
            except HookError as error:
                log.once(f"{context.pod.meta.uid}:{error}", "Hook failed", stage=stage.value, error=str(error))
                if self.policy is FailurePolicy.FAIL:
                    raise
            else:
                if answer is not NO_CHANGE:
                    combined = answer if combined is NO_CHANGE else combined | answer
        return combined

    def _call(self, plugin: HookPlugin, stage: HookStage, context: HookContext, view: NodeView) -> HookAnswer:
        started = time.perf_counter()
        status = "failed"
        try:
            answer = plugin.answer(stage, context, view)
            status = "succeeded"
            return answer
        except (HookError, WireError) as error:
            raise HookError(f"hook {plugin.hook}, {context.key}: {error}") from error
        except Exception as error:  # a defect of the plugin: treated like any other failure
            log.exception("Hook raised", hook=plugin.hook, stage=stage.value, subject=context.key, error=repr(error))
            raise HookError(f"hook {plugin.hook}, {context.key}: {error!r}") from error
        finally:
            if self._registries.node:
                labels = (self._registries.node, plugin.hook, stage.value, status)
                self._durations.labels(*labels).observe((time.perf_counter() - started) * 1000)


def followed_pods(view: NodeView) -> Iterator[PodView]:
    """The pods that strategies set up: active and announced pods, without those in a kata VM."""
    for pod in view.announced if view.announced_only else (*view.pods, *view.announced):
        spec = None if pod.meta.pod is None else pod.meta.pod.spec
        if pod.active and (spec is None or spec.runtime_class_name != KATA):
            yield pod


def running_containers(pod: PodView) -> Iterator[tuple[str, str]]:
    """(name, directory) of the running containers of the pod, including init containers (spec 03 §4.4)."""
    for meta in pod.meta.containers:
        if meta.running:
            yield meta.name, meta.cgroup_dir
    if pod.meta.pod is None or not pod.meta.pod.status.init_container_statuses:
        return
    known = {meta.name for meta in pod.meta.containers}  # sidecars
    directory = pod.meta.cgroup_dir
    driver = CgroupDriver.SYSTEMD if directory.endswith(".slice") else CgroupDriver.CGROUPFS
    for status in pod.meta.pod.status.init_container_statuses:
        if status.name in known or not status.container_id or status.state.running is None:
            continue
        try:
            yield status.name, f"{directory}/{container_name(driver, status.container_id)}"
        except NamingError as error:
            log.once(f"{pod.meta.uid}:{error}", "Init container left out", pod=pod.meta.name, error=str(error))
