"""Hooks at a pod's or container's life-cycle stages (spec 03 §4.1): what a plugin gets, answers, and in which order.

A plugin is pure: a context (what the runtime told about one pod or container) and the node's picture in, an `Answer`
out. Most plugins are strategies too and decide both from the same function, so that a container starts with what the
reconciler would give it. What an answer means for the kernel is the protocol's business (`server`, `nri`): a reply to
the runtime, and an immediate round of the pod-following strategies for the pod, which is a newborn (`newborns`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

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


class Stage(StrEnum):
    """When a hook runs; the values are what registration files and metrics say."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"
    POST_STOP_CONTAINER = "PostStopContainer"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_REMOVE_RUN_POD_SANDBOX = "PreRemoveRunPodSandbox"


class FailurePolicy(StrEnum):
    """What a failing hook means: the rest are skipped and the caller gets the error, or neither."""

    FAIL = "Fail"
    IGNORE = "Ignore"


class HookError(Exception):
    """A hook could not answer; the message names the hook, the pod and what was wrong (an annotation and its field)."""


@dataclass(frozen=True, slots=True)
class Native:
    """What the runtime was asked to give a container, in v1 terms; None = not said, UNLIMITED as everywhere."""

    cpu_shares: int | None = None
    cfs_quota: int | None = None
    cpuset: str | None = None
    memory_limit: int | None = None


@dataclass(frozen=True, slots=True)
class HookContainer:
    """The container of the call; `id` is `<runtime>://<hash>`, empty before the runtime made one."""

    name: str
    id: str = ""
    native: Native = field(default_factory=Native)
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class HookContext:
    """`pod` as the views know pods, made from what the call says: its `Pod` object has labels, annotations and, as
    container requests and limits, the extended resources. `container` is None in a pod's stages."""

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
        """For people: namespace/name, and the container."""
        pod = f"pod {self.pod.meta.namespace}/{self.pod.meta.name}"
        return pod if self.container is None else f"{pod}, container {self.container.name}"


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path to show in the container; a `fresh` one is a directory to be made anew, empty, before that."""

    source: str
    destination: str
    type: str = "bind"
    options: tuple[str, ...] = ("rbind",)
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """A device node to make in the container; `mode` is the file's permissions."""

    path: str
    type: str
    major: int
    minor: int
    mode: int = 0o666


@dataclass(frozen=True, slots=True)
class ResctrlAnswer:
    """The pod's resctrl group: what its schemata say, its name, tasks to move into it."""

    closid: str
    schemata: str = ""
    new_task_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a hook wants changed; None (empty for collections) leaves a thing as it is. Values are in v1 terms."""

    cpu_shares: int | None = None
    cfs_quota: int | None = None
    cpuset: str | None = None
    """CPU list; the empty string clears what was asked for."""
    memory_limit: int | None = None
    net_cls_classid: int | None = None
    cpu_bvt: int | None = None
    cpu_idle: int | None = None
    resctrl: ResctrlAnswer | None = None
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device, ...] = ()

    def __or__(self, later: Answer) -> Answer:
        """Both; a field that the later one sets is its. Variables, mounts and devices add up."""
        merged: dict[str, Any] = {
            name: getattr(self, name) if getattr(later, name) is None else getattr(later, name) for name in _SINGLE
        }
        return Answer(
            **merged,
            env={**self.env, **later.env},
            mounts=self.mounts + later.mounts,
            devices=self.devices + later.devices,
        )


_SINGLE = tuple(one.name for one in fields(Answer) if one.name not in ("env", "mounts", "devices"))
NOTHING = Answer()
_FIELD_OF = {
    "cpu.shares": "cpu_shares",
    "cpu.cfs_quota_us": "cfs_quota",
    "cpuset.cpus": "cpuset",
    "memory.limit_in_bytes": "memory_limit",
    "net_cls.classid": "net_cls_classid",
    "cpu.bvt_warp_ns": "cpu_bvt",
    "cpu.idle": "cpu_idle",
}


def answer_of(updates: Iterable[DesiredSetting]) -> Answer:
    """What a strategy wants set for one pod or container, as an answer."""
    given: dict[str, Any] = {_FIELD_OF[update.setting.resource]: update.value for update in updates}
    return Answer(**given)


class HookPlugin(Protocol):
    """`hook` is the plugin's name (spec 03 §4.1's table), `gate` its feature gate. A class that is a `Strategy` as well
    keeps its owner's name in `name`."""

    @property
    def hook(self) -> str: ...
    @property
    def gate(self) -> str: ...
    @property
    def stages(self) -> Collection[Stage]: ...

    def answer(self, stage: Stage, context: HookContext, view: NodeView) -> Answer:
        """The answer for this pod or container. Pure. Raises WireError for a malformed annotation, HookError for
        anything else that keeps it from answering."""
        ...


class Hooks:
    """The plugins by stage, in lexical order of their names; ValueError when a stage would have a name twice."""

    def __init__(
        self,
        plugins: Iterable[HookPlugin],
        registries: Registries,
        *,
        policy: FailurePolicy = FailurePolicy.IGNORE,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._registries, self.policy, self._clock = registries, policy, clock
        self._by_stage: dict[Stage, list[HookPlugin]] = {stage: [] for stage in Stage}
        for plugin in sorted(plugins, key=lambda plugin: plugin.hook):
            for stage in plugin.stages:
                found = self._by_stage[stage]
                if found and found[-1].hook == plugin.hook:
                    raise ValueError(f"two hooks of stage {stage} are named {plugin.hook!r}")
                found.append(plugin)
        self._durations = registries.histogram("runtime_hook_invoked_duration_milliseconds", DURATION_BUCKETS)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those that have a hook."""
        return tuple(stage for stage, plugins in self._by_stage.items() if plugins)

    def names(self, stage: Stage) -> tuple[str, ...]:
        """The hooks of a stage, in order."""
        return tuple(plugin.hook for plugin in self._by_stage[stage])

    def answer(self, stage: Stage, context: HookContext, view: NodeView) -> Answer:
        """What all hooks of the stage answer together, later ones over earlier ones. Raises HookError with policy Fail
        at the first that fails; with Ignore that one is left out."""
        found = NOTHING
        for plugin in self._by_stage[stage]:
            try:
                answer = self._ask(plugin, stage, context, view)
            except HookError as error:
                log.once(f"{context.pod.meta.uid}:{error}", "hook failed", stage=stage.value, error=str(error))
                if self.policy is FailurePolicy.FAIL:
                    raise
            else:
                if answer is not NOTHING:
                    found = answer if found is NOTHING else found | answer
        return found

    def _ask(self, plugin: HookPlugin, stage: Stage, context: HookContext, view: NodeView) -> Answer:
        started, status = self._clock(), "failed"
        try:
            answer = plugin.answer(stage, context, view)
            status = "succeeded"
            return answer
        except (HookError, WireError) as error:
            raise HookError(f"hook {plugin.hook}, {context.key}: {error}") from error
        except Exception as error:  # a plugin's own fault: as failed as any other, and told as one
            log.exception("hook raised", hook=plugin.hook, stage=stage.value, subject=context.key, error=repr(error))
            raise HookError(f"hook {plugin.hook}, {context.key}: {error!r}") from error
        finally:
            if self._registries.node:
                labels = (self._registries.node, plugin.hook, stage.value, status)
                self._durations.labels(*labels).observe((self._clock() - started) * 1000)


def followed(view: NodeView) -> Iterator[PodView]:
    """The pods that reconcilers set up: active ones of the kubelet and newborns, without those in a kata VM."""
    for pod in view.announced if view.announced_only else (*view.pods, *view.announced):
        spec = None if pod.meta.pod is None else pod.meta.pod.spec
        if pod.active and (spec is None or spec.runtime_class_name != KATA):
            yield pod


def running(pod: PodView) -> Iterator[tuple[str, str]]:
    """(name, directory) of the pod's running containers, init containers among them (spec 03 §4.4)."""
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
            log.once(f"{pod.meta.uid}:{error}", "init container left out", pod=pod.meta.name, error=str(error))
