"""The intercepted CRI calls: the hook requests, what responses change, what the store keeps (spec 08 §11).

A call has three steps: `before` with the request, `answered` with the runtime's response, `after`. Requests are parsed
with unknown fields kept, and serialised again only if something changed; otherwise the original bytes are forwarded. A
request that cannot be parsed, or names an unknown object, is forwarded unchanged: the runtime decides about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from google.protobuf.message import DecodeError

from koordlet.api.cri import SERVICES
from koordlet.api.cri.api_pb2 import (
    ContainerRequest,
    CreateContainerRequest,
    CreateContainerResponse,
    PodSandboxRequest,
    RunPodSandboxRequest,
    RunPodSandboxResponse,
    UpdateContainerResourcesRequest,
)
from koordlet.app.logging import get_logger
from runtimeproxy.cri import rewrite
from runtimeproxy.cri.recover import CriRecovery
from runtimeproxy.hooks.dispatch import HOOK_TIMEOUT_S, HookDispatcher
from runtimeproxy.hooks.merge import updated
from runtimeproxy.hooks.pods import PodHooks, SkipRule
from runtimeproxy.hooks.requests import container_request, pod_request
from runtimeproxy.hooks.stages import Hook, HookResponse
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ProxyStore, StoredContainer, StoredPod

log = get_logger(__name__)


class CriMethod(StrEnum):
    """The intercepted methods of CRI's RuntimeService; the value is the method's name."""

    RUN_POD_SANDBOX = "RunPodSandbox"
    STOP_POD_SANDBOX = "StopPodSandbox"
    REMOVE_POD_SANDBOX = "RemovePodSandbox"
    CREATE_CONTAINER = "CreateContainer"
    START_CONTAINER = "StartContainer"
    UPDATE_CONTAINER_RESOURCES = "UpdateContainerResources"
    STOP_CONTAINER = "StopContainer"
    REMOVE_CONTAINER = "RemoveContainer"


_PATHS = {f"/{service}/{call}": call for service in SERVICES for call in CriMethod}
_AFTER = {
    CriMethod.STOP_POD_SANDBOX: Hook.POST_STOP_POD_SANDBOX,
    CriMethod.START_CONTAINER: Hook.POST_START_CONTAINER,
    CriMethod.STOP_CONTAINER: Hook.POST_STOP_CONTAINER,
}


def intercepted(path: str) -> CriMethod | None:
    """The method of an HTTP/2 `:path`, in either version of the service; None: forward the call."""
    return _PATHS.get(path)


@dataclass(slots=True)
class PendingCall:
    """A call between its steps. `pod` or `container`: the entry that the store has or will have for its object; both
    None when the object is unknown."""

    call: CriMethod
    pod_id: str = ""
    container_id: str = ""
    pod: StoredPod | None = None
    container: StoredContainer | None = None
    succeeded: bool = False

    @property
    def owner(self) -> StoredPod | None:
        """The pod of the call."""
        return self.pod if self.container is None else self.container.pod


class CriInterceptor:
    """One per process, for all connections. `recovery` completes entries that the store lacks; without it such calls
    are forwarded without hooks."""

    def __init__(
        self,
        store: ProxyStore,
        dispatcher: HookDispatcher,
        skip: SkipRule,
        recovery: CriRecovery | None = None,
        metrics: ProxyMetrics | None = None,
        *,
        timeout: float = HOOK_TIMEOUT_S,
    ) -> None:
        """`timeout`: seconds that a call waits at most for anything but its own hook: an earlier call's hook, or
        details."""
        self._store = store
        self._recovery = recovery
        self._hooks = PodHooks(dispatcher, skip, metrics or ProxyMetrics.of(), timeout=timeout)

    async def before(self, call: CriMethod, body: bytes, deadline: float | None = None) -> tuple[bytes, PendingCall]:
        """Message to send instead of the request `body`: the same object when nothing changed. `deadline`: the
        caller's, in `time.monotonic()` seconds. Raises HookRefused, and nothing else whatever `body` is. Each call that
        returns is followed by exactly one `answered`."""
        try:
            match call:
                case CriMethod.RUN_POD_SANDBOX:
                    return await self._run_pod(body, deadline)
                case CriMethod.CREATE_CONTAINER:
                    return await self._create(body, deadline)
                case CriMethod.UPDATE_CONTAINER_RESOURCES:
                    return await self._update(body, deadline)
                case CriMethod.START_CONTAINER:
                    return await self._start(body, deadline)
                case CriMethod.STOP_POD_SANDBOX | CriMethod.REMOVE_POD_SANDBOX:
                    pod_id = PodSandboxRequest.FromString(body).pod_sandbox_id
                    pod = self._store.pods.get(pod_id) if call is CriMethod.STOP_POD_SANDBOX else None
                    if pod is not None and not pod.complete and self._hooks.handles(Hook.POST_STOP_POD_SANDBOX):
                        pod = await self._known_pod(pod_id, deadline)
                    return body, PendingCall(call, pod_id, pod=pod)
                case CriMethod.STOP_CONTAINER | CriMethod.REMOVE_CONTAINER:
                    container_id = ContainerRequest.FromString(body).container_id
                    known = None
                    if call is CriMethod.STOP_CONTAINER:
                        known = await self._known_container(Hook.POST_STOP_CONTAINER, container_id, deadline)
                    return body, PendingCall(call, known.pod_id if known else "", container_id, container=known)
        except DecodeError as error:
            log.warning("Forwarding an invalid request unchanged", call=call.value, bytes=len(body), err=error)
            self._hooks.unhooked("undecodable")
            return body, PendingCall(call)

    def answered(self, pending: PendingCall, body: bytes | None) -> None:
        """Update the store. `body`: the runtime's response message, None when the call failed or was cancelled."""
        pending.succeeded = body is not None
        match pending.call:
            case CriMethod.STOP_POD_SANDBOX:  # also after a failure: a repeated stop runs no hooks
                self._store.drop_pod(pending.pod_id)
            case CriMethod.STOP_CONTAINER:
                self._store.drop_container(pending.container_id)
        if body is None:
            return
        match pending.call:
            case CriMethod.RUN_POD_SANDBOX | CriMethod.CREATE_CONTAINER:
                self._store_created(pending, body)
            case CriMethod.UPDATE_CONTAINER_RESOURCES if pending.container is not None:
                self._store.change_container(pending.container_id, resources=pending.container.resources)
            case CriMethod.REMOVE_POD_SANDBOX:
                self._store.forget_pod(pending.pod_id)
            case CriMethod.REMOVE_CONTAINER:
                self._store.drop_container(pending.container_id)

    def after(self, pending: PendingCall) -> Coroutine[Any, Any, None] | None:
        """The post hook of a finished call, which the caller must run as a task immediately; None when there is none.
        The next hook of the same pod waits for it. It also runs after a failed stop, as the object is dropped from the
        store anyway."""
        hook, pod = _AFTER.get(pending.call), pending.owner
        if hook is None or pod is None or not (pending.succeeded or pending.call is not CriMethod.START_CONTAINER):
            return None
        request = pod_request(pod) if pending.container is None else container_request(pending.container)
        return self._hooks.run_post(pod, pending.pod_id, hook, request)

    async def _run_pod(self, body: bytes, deadline: float | None) -> tuple[bytes, PendingCall]:
        request = RunPodSandboxRequest.FromString(body)
        pending = PendingCall(CriMethod.RUN_POD_SANDBOX, pod=rewrite.pod_of(request))
        response = await self._run_hook(Hook.PRE_RUN_POD_SANDBOX, pending, deadline)
        if response is None:
            return body, pending
        changed = rewrite.run_pod(request, response)
        pending.pod = rewrite.pod_of(request, response)
        return (request.SerializeToString() if changed else body), pending

    async def _create(self, body: bytes, deadline: float | None) -> tuple[bytes, PendingCall]:
        request = CreateContainerRequest.FromString(body)
        pod = await self._known_pod(request.pod_sandbox_id, deadline)
        if pod is None:
            self._hooks.unhooked("unknown-sandbox", Hook.PRE_CREATE_CONTAINER)
            return body, PendingCall(CriMethod.CREATE_CONTAINER, request.pod_sandbox_id)
        container = rewrite.container_of(request, pod)
        pending = PendingCall(CriMethod.CREATE_CONTAINER, request.pod_sandbox_id, container=container)
        response = await self._run_hook(Hook.PRE_CREATE_CONTAINER, pending, deadline)
        if response is None:
            return body, pending
        changed, pending.container = rewrite.create_container(request, container, response)
        return (request.SerializeToString() if changed else body), pending

    async def _start(self, body: bytes, deadline: float | None) -> tuple[bytes, PendingCall]:
        container_id = ContainerRequest.FromString(body).container_id
        known = await self._known_container(Hook.PRE_START_CONTAINER, container_id, deadline)
        if known is None:
            return body, PendingCall(CriMethod.START_CONTAINER, container_id=container_id)
        pending = PendingCall(CriMethod.START_CONTAINER, known.pod_id, container_id, container=known)
        await self._run_hook(Hook.PRE_START_CONTAINER, pending, deadline)  # the response cannot change this request
        return body, pending

    async def _update(self, body: bytes, deadline: float | None) -> tuple[bytes, PendingCall]:
        request = UpdateContainerResourcesRequest.FromString(body)
        container_id = request.container_id
        known = await self._known_container(Hook.PRE_UPDATE_CONTAINER_RESOURCES, container_id, deadline)
        if known is None:
            return body, PendingCall(CriMethod.UPDATE_CONTAINER_RESOURCES, container_id=container_id)
        requested = request.linux if request.HasField("linux") else None
        container = replace(
            known,
            resources=updated(known.resources, requested),
            annotations={**known.annotations, **request.annotations},
        )
        pending = PendingCall(CriMethod.UPDATE_CONTAINER_RESOURCES, known.pod_id, container_id, container=container)
        response = await self._run_hook(Hook.PRE_UPDATE_CONTAINER_RESOURCES, pending, deadline)
        if response is None:
            return body, pending
        changed, resources = rewrite.update_container(request, container, response)
        pending.container = replace(container, resources=resources)
        return (request.SerializeToString() if changed else body), pending

    async def _run_hook(self, hook: Hook, pending: PendingCall, deadline: float | None) -> HookResponse | None:
        """The hook's response; None when the call continues unchanged. Raises HookRefused."""
        pod = pending.owner
        if pod is None:
            return None
        request = pod_request(pod) if pending.container is None else container_request(pending.container)
        return await self._hooks.run_pre(pod, pending.pod_id, hook, request, deadline)

    async def _known_pod(self, pod_id: str, deadline: float | None) -> StoredPod | None:
        """The pod from the store, else from the runtime, as complete as possible."""
        known = self._store.pods.get(pod_id)
        if self._recovery is None or (known is not None and known.complete):
            return known
        try:
            async with asyncio.timeout(self._hooks.max_wait(deadline)):
                return await self._recovery.pod(pod_id)
        except TimeoutError:
            log.warning("No sandbox status from the runtime in time", id=pod_id)
            return known

    async def _known_container(self, hook: Hook, container_id: str, deadline: float | None) -> StoredContainer | None:
        """The container from the store, as complete as possible if the hook will run or resources will be updated; None
        when the store does not know it."""
        known = self._store.containers.get(container_id)
        if known is None:
            self._hooks.unhooked("unknown-container", hook)
            return None
        if known.complete or self._recovery is None:
            return known
        if hook is not Hook.PRE_UPDATE_CONTAINER_RESOURCES and not self._hooks.handles(hook):
            return known
        try:
            async with asyncio.timeout(self._hooks.max_wait(deadline)):
                return await self._recovery.container(container_id)
        except TimeoutError:
            log.warning("No container status from the runtime in time", id=container_id)
            return known

    def _store_created(self, pending: PendingCall, body: bytes) -> None:
        """Store a new sandbox or container under the id that the runtime returned."""
        try:
            if pending.call is CriMethod.RUN_POD_SANDBOX:
                pending.pod_id = RunPodSandboxResponse.FromString(body).pod_sandbox_id
            else:
                pending.container_id = CreateContainerResponse.FromString(body).container_id
        except DecodeError as error:
            log.warning("Invalid response: the created object is not stored", call=pending.call.value, err=error)
            return
        if pending.pod is not None and pending.pod_id:
            self._store.put_pod(pending.pod_id, pending.pod)
        elif pending.container is not None and pending.container_id:
            self._store.put_container(replace(pending.container, id=pending.container_id))
        else:
            log.warning("Created object is not stored", call=pending.call.value, pod=pending.pod_id)
