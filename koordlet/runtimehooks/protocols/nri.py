"""koordlet as a plugin of the container runtime (Node Resource Interface, spec 03 §4.3, 08 §14).

koordlet connects and registers. The runtime then calls it when a pod starts, a container is created or updated, or a
pod is removed. Hook answers become an adjustment of the container; pod settings are in the kernel when the call returns
(`calls`). After a lost connection koordlet connects again with increasing pauses; a missing socket is checked for every
minute. With policy Ignore no failure here stops the runtime.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from koordlet.api.nri import PLUGIN, RUNTIME
from koordlet.api.nri import api_pb2 as pb
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from koordlet.runtimehooks.calls import HookCalls
from koordlet.runtimehooks.contexts import container_id, pod_of
from koordlet.runtimehooks.protocols.mountsources import prepare_sources
from koordlet.runtimehooks.protocols.nriwire import adjustment, updated
from koordlet.runtimehooks.protocols.ttrpc import UNIMPLEMENTED, Trunk, TtrpcCallError, TTRPCError
from koordlet.runtimehooks.stages import (
    FailurePolicy,
    HookAnswer,
    HookContainer,
    HookContext,
    HookError,
    HookStage,
)

log = get_logger(__name__)

PROTOCOL = "nri"
EVENTS = ("RunPodSandbox", "RemovePodSandbox", "CreateContainer", "UpdateContainer")
"""Subscribed to, unless the runtime's configuration for the plugin has another list."""
NO_ACTION = frozenset({
    "Shutdown", "UpdatePodSandbox", "PostUpdatePodSandbox", "StopPodSandbox", "PostCreateContainer", "StartContainer",
    "PostStartContainer", "PostUpdateContainer", "StopContainer", "RemoveContainer", "ValidateContainerAdjustment",
})  # fmt: skip
"""Calls that are accepted; the empty answer means no change."""
SOCKET_CHECK_S = 60.0
INVALID_ARGUMENT = 3
_NUMBERS = {name.replace("_", "").lower(): number for name, number in pb.Event.items() if number}


@dataclass(frozen=True, slots=True)
class NRISettings:
    """Times are seconds. After a connection that lasted `connect`, the pauses start from the first again."""

    socket: Path
    name: str = "koordlet_nri"
    index: str = "00"
    connect: float = 6.0
    pause: float = 1.0
    factor: float = 2.0
    steps: int = 2**31 - 1
    longest: float = 60.0
    jitter: float = 0.1

    def pause_after(self, failures: int) -> float:
        """The pause before the next attempt, without jitter."""
        growth: float = self.factor ** min(failures, self.steps, 64)
        return min(self.pause * growth, self.longest)


class NRIPlugin:
    """A service for `Runner`; `problem` is why the runtime does not call koordlet, empty while it does."""

    name = "nri"

    def __init__(self, settings: NRISettings, calls: HookCalls, runtime: str) -> None:
        """`runtime`: the container runtime of the node, as in container ids."""
        self._settings = settings
        self._calls = calls
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self.problem = "not started"

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="nri")

    async def stop(self) -> None:
        task = self._task
        self._task = None
        await end_tasks(task)
        self.problem = "stopped"

    async def _run(self) -> None:
        failures = 0
        while True:
            if not self._settings.socket.exists():
                self.problem = f"no socket {self._settings.socket}"
                log.once("nri:absent", "The runtime has no NRI socket", socket=str(self._settings.socket))
                await asyncio.sleep(SOCKET_CHECK_S)
                continue
            began = time.monotonic()
            try:
                await self._session()
                self.problem = "the runtime closed the connection"
            except TimeoutError:
                self.problem = "no answer in time"
            except (TTRPCError, TtrpcCallError, OSError) as error:
                self.problem = str(error)
            failures = 0 if time.monotonic() - began >= self._settings.connect else failures + 1
            log.info("NRI connection lost", cause=self.problem, failures=failures)
            await asyncio.sleep(self._settings.pause_after(failures) * (1 + self._settings.jitter * random.random()))

    async def _session(self) -> None:
        """One connection, from its start to its end."""
        settings = self._settings
        async with asyncio.timeout(settings.connect):
            reader, writer = await asyncio.open_unix_connection(settings.socket)
        trunk = Trunk(reader, writer, self.handle)
        serving = asyncio.create_task(trunk.run(), name="nri trunk")
        try:
            request = pb.RegisterPluginRequest(plugin_name=settings.name, plugin_idx=settings.index)
            await trunk.call(RUNTIME, "RegisterPlugin", request.SerializeToString(), settings.connect)
            await asyncio.shield(serving)
        finally:
            await end_tasks(serving)
            await trunk.close()

    async def handle(self, service: str, method: str, payload: bytes, seconds: float | None) -> bytes:
        """HookAnswer one call. Raises TtrpcCallError."""
        answer = self._methods().get(method)
        if service != PLUGIN or (answer is None and method not in NO_ACTION):
            raise TtrpcCallError(f"no method {service}/{method}", UNIMPLEMENTED)
        if answer is None:
            return b""
        request, reply = answer
        try:
            return await reply(request.FromString(payload), seconds)
        except DecodeError as error:
            raise TtrpcCallError(f"{method}: {error}", INVALID_ARGUMENT) from error
        except TtrpcCallError:
            raise
        except HookError as error:
            return self._failed(method, str(error))
        except Exception as error:  # a defect of koordlet must not keep a container from starting
            log.exception("NRI call failed", method=method, error=repr(error))
            return self._failed(method, repr(error))

    def _failed(self, method: str, cause: str) -> bytes:
        """With policy Ignore the empty answer."""
        if self._calls.hooks.policy is FailurePolicy.FAIL:
            raise TtrpcCallError(cause)
        log.once(f"nri:{cause}", "NRI call answered without changes", method=method, cause=cause)
        return b""

    def _methods(self) -> dict[str, tuple[Any, Callable[[Any, float | None], Awaitable[bytes]]]]:
        return {
            "Configure": (pb.ConfigureRequest, self._configure),
            "Synchronize": (pb.SynchronizeRequest, self._synchronize),
            "StateChange": (pb.StateChangeEvent, self._state_change),
            "RunPodSandbox": (pb.PodRequest, self._run_pod),
            "RemovePodSandbox": (pb.PodRequest, self._remove_pod),
            "CreateContainer": (pb.CreateContainerRequest, self._create),
            "UpdateContainer": (pb.UpdateContainerRequest, self._update),
        }

    async def _configure(self, request: pb.ConfigureRequest, _: float | None) -> bytes:
        mask = event_mask(configured(request.config))
        self.problem = ""
        log.info("NRI plugin configured", runtime=f"{request.runtime_name} {request.runtime_version}", events=hex(mask))
        return pb.ConfigureResponse(events=mask).SerializeToString()

    async def _synchronize(self, request: pb.SynchronizeRequest, _: float | None) -> bytes:
        """No updates: the strategies set up running containers."""
        return pb.SynchronizeResponse(more=request.more).SerializeToString()

    async def _state_change(self, event: pb.StateChangeEvent, seconds: float | None) -> bytes:
        if event.event == pb.RUN_POD_SANDBOX:
            return await self._run_pod(event, seconds)
        return await self._remove_pod(event, seconds) if event.event == pb.REMOVE_POD_SANDBOX else b""

    async def _run_pod(self, request: Any, seconds: float | None) -> bytes:
        await self._answer(HookStage.PRE_RUN_POD_SANDBOX, self._context(request.pod), seconds)
        return b""

    async def _remove_pod(self, request: Any, seconds: float | None) -> bytes:
        await self._answer(HookStage.PRE_REMOVE_RUN_POD_SANDBOX, self._context(request.pod), seconds)
        return b""

    async def _create(self, request: pb.CreateContainerRequest, seconds: float | None) -> bytes:
        resources = request.container.linux.resources
        context = self._context(request.pod, request.container, resources)
        answer = await self._answer(HookStage.PRE_CREATE_CONTAINER, context, seconds)
        prepare_sources(answer.mounts)
        return pb.CreateContainerResponse(adjust=adjustment(answer, resources)).SerializeToString()

    async def _update(self, request: pb.UpdateContainerRequest, seconds: float | None) -> bytes:
        resources = request.linux_resources
        context = self._context(request.pod, request.container, resources)
        answer = await self._answer(HookStage.PRE_UPDATE_CONTAINER_RESOURCES, context, seconds)
        update = updated(request.container.id, answer, resources)
        return pb.UpdateContainerResponse(update=[] if update is None else [update]).SerializeToString()

    async def _answer(self, stage: HookStage, context: HookContext, seconds: float | None) -> HookAnswer:
        return await self._calls.answer(stage, context, protocol=PROTOCOL, seconds=seconds)

    def _context(
        self, pod: pb.PodSandbox, container: pb.Container | None = None, resources: pb.LinuxResources | None = None
    ) -> HookContext:
        parent = pod.linux.cgroup_parent or self._calls.announced.directory(pod.uid)
        view = pod_of(
            pod.name, pod.namespace, pod.uid, pod.labels, pod.annotations, parent, handler=pod.runtime_handler
        )
        if container is None:
            return HookContext(view)
        digest = container_id(self._runtime, container.id, pod.annotations)
        quota = None if resources is None else resources.cpu.quota.value or None
        return HookContext(view, HookContainer(container.name, digest, quota))


def configured(text: str) -> list[str]:
    """Event names of the runtime's configuration, by default `EVENTS`. Raises TtrpcCallError."""
    import yaml  # imported here: 1 MB for a configuration that is rarely used

    try:
        configuration = yaml.safe_load(text) if text.strip() else {}
    except yaml.YAMLError as error:
        raise TtrpcCallError(f"configuration: {error}", INVALID_ARGUMENT) from error
    events = configuration.get("events", EVENTS) if isinstance(configuration, dict) else None
    if not isinstance(events, list | tuple) or not all(isinstance(name, str) for name in events):
        raise TtrpcCallError("configuration: events must be a list of names", INVALID_ARGUMENT)
    return list(events) or list(EVENTS)


def event_mask(names: Iterable[str]) -> int:
    """Bit n-1 for event n. Raises TtrpcCallError for an unknown name."""
    mask = 0
    for name in names:
        number = _NUMBERS.get(name.strip().lower())
        if number is None:
            raise TtrpcCallError(f"configuration: unknown event {name!r}", INVALID_ARGUMENT)
        mask |= 1 << (number - 1)
    return mask
