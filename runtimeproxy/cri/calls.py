"""CRI's intercepted calls: what a hook is told of each, what its answer changes, what the store keeps (spec 08 §11).

A call goes through three steps: `before` with the request, `answered` with the runtime's answer, `after`. Requests
are parsed with unknown fields kept, and serialised again only if something changed: else the very bytes go on. A
request that can't be parsed, or is about something nobody knows, is the runtime's to judge and passes untouched.
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
from runtimeproxy.cri.recover import Recovery
from runtimeproxy.hooks.dispatch import LIMIT_SECONDS, Dispatcher
from runtimeproxy.hooks.dispatch import HookRefused as HookRefused
from runtimeproxy.hooks.merge import updated
from runtimeproxy.hooks.pods import PodHooks, SkipRule
from runtimeproxy.hooks.requests import container_request, pod_request
from runtimeproxy.hooks.stages import Hook, HookResponse
from runtimeproxy.metrics import ProxyMetrics
from runtimeproxy.store import ContainerInfo, PodInfo, Store

log = get_logger(__name__)


class Call(StrEnum):
    """The intercepted methods of CRI's RuntimeService; the value is the method's name."""

    RUN_POD_SANDBOX = "RunPodSandbox"
    STOP_POD_SANDBOX = "StopPodSandbox"
    REMOVE_POD_SANDBOX = "RemovePodSandbox"
    CREATE_CONTAINER = "CreateContainer"
    START_CONTAINER = "StartContainer"
    UPDATE_CONTAINER_RESOURCES = "UpdateContainerResources"
    STOP_CONTAINER = "StopContainer"
    REMOVE_CONTAINER = "RemoveContainer"


_PATHS = {f"/{service}/{call}": call for service in SERVICES for call in Call}
_AFTER = {
    Call.STOP_POD_SANDBOX: Hook.POST_STOP_POD_SANDBOX,
    Call.START_CONTAINER: Hook.POST_START_CONTAINER,
    Call.STOP_CONTAINER: Hook.POST_STOP_CONTAINER,
}


def intercepted(path: str) -> Call | None:
    """The call of an HTTP/2 `:path`, of either version of the service; None: pass it through."""
    return _PATHS.get(path)


@dataclass(slots=True)
class Pending:
    """A call between its steps. `pod` or `container` are what the store is to hold, or held, of its object; both None:
    a call about which nothing is known."""

    call: Call
    pod_id: str = ""
    container_id: str = ""
    pod: PodInfo | None = None
    container: ContainerInfo | None = None
    succeeded: bool = False

    @property
    def owner(self) -> PodInfo | None:
        """The pod that it is about."""
        return self.pod if self.container is None else self.container.pod


class Interceptor:
    """One a process, for all connections. `recovery` completes what the store does not know; without it such calls
    pass without hooks."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        skip: SkipRule,
        recovery: Recovery | None = None,
        metrics: ProxyMetrics | None = None,
        *,
        limit: float = LIMIT_SECONDS,
    ) -> None:
        """`limit`: seconds that a call waits at most for what is not its own hook: an earlier call's, or details."""
        self._store, self._recovery = store, recovery
        self._hooks = PodHooks(dispatcher, skip, metrics or ProxyMetrics.of(), limit=limit)

    async def before(self, call: Call, body: bytes, deadline: float | None = None) -> tuple[bytes, Pending]:
        """What to send instead of the request message `body`: this very object when nothing changed. `deadline`: the
        caller's, in `time.monotonic()` seconds. Raises HookRefused, and nothing for whatever the body is; each call
        that returns is followed by one `answered`."""
        try:
            match call:
                case Call.RUN_POD_SANDBOX:
                    return await self._run_pod(body, deadline)
                case Call.CREATE_CONTAINER:
                    return await self._create(body, deadline)
                case Call.UPDATE_CONTAINER_RESOURCES:
                    return await self._update(body, deadline)
                case Call.START_CONTAINER:
                    return await self._start(body, deadline)
                case Call.STOP_POD_SANDBOX | Call.REMOVE_POD_SANDBOX:
                    pod_id = PodSandboxRequest.FromString(body).pod_sandbox_id
                    pod = self._store.pods.get(pod_id) if call is Call.STOP_POD_SANDBOX else None
                    if pod is not None and not pod.complete and self._hooks.handles(Hook.POST_STOP_POD_SANDBOX):
                        pod = await self._known_pod(pod_id, deadline)
                    return body, Pending(call, pod_id, pod=pod)
                case Call.STOP_CONTAINER | Call.REMOVE_CONTAINER:
                    container_id = ContainerRequest.FromString(body).container_id
                    known = None
                    if call is Call.STOP_CONTAINER:
                        known = await self._known_container(Hook.POST_STOP_CONTAINER, container_id, deadline)
                    return body, Pending(call, known.pod_id if known else "", container_id, container=known)
        except DecodeError as error:
            log.warning("Request cannot be parsed and passes untouched", call=call.value, bytes=len(body), err=error)
            self._hooks.unhooked("undecodable")
            return body, Pending(call)

    def answered(self, pending: Pending, body: bytes | None) -> None:
        """Keep the store: `body` is the runtime's answer message, None when the call failed or was given up."""
        pending.succeeded = body is not None
        match pending.call:
            case Call.STOP_POD_SANDBOX:  # whatever came of it: one that is tried again goes without hooks
                self._store.drop_pod(pending.pod_id)
            case Call.STOP_CONTAINER:
                self._store.drop_container(pending.container_id)
        if body is None:
            return
        match pending.call:
            case Call.RUN_POD_SANDBOX | Call.CREATE_CONTAINER:
                self._made(pending, body)
            case Call.UPDATE_CONTAINER_RESOURCES if pending.container is not None:
                self._store.change_container(pending.container_id, resources=pending.container.resources)
            case Call.REMOVE_POD_SANDBOX:
                self._store.forget_pod(pending.pod_id)
            case Call.REMOVE_CONTAINER:
                self._store.drop_container(pending.container_id)

    def after(self, pending: Pending) -> Coroutine[Any, Any, None] | None:
        """The after-stage hook of an answered call, to be run as a task at once; None when there is none. The next
        hook of the same pod waits for it. That a stop failed does not matter: the object is forgotten anyway."""
        hook, pod = _AFTER.get(pending.call), pending.owner
        if hook is None or pod is None or not (pending.succeeded or pending.call is not Call.START_CONTAINER):
            return None
        request = pod_request(pod) if pending.container is None else container_request(pending.container)
        return self._hooks.tell(pod, pending.pod_id, hook, request)

    async def _run_pod(self, body: bytes, deadline: float | None) -> tuple[bytes, Pending]:
        request = RunPodSandboxRequest.FromString(body)
        pending = Pending(Call.RUN_POD_SANDBOX, pod=rewrite.pod_of(request))
        response = await self._ask(Hook.PRE_RUN_POD_SANDBOX, pending, deadline)
        if response is None:
            return body, pending
        changed = rewrite.run_pod(request, response)
        pending.pod = rewrite.pod_of(request, response)
        return (request.SerializeToString() if changed else body), pending

    async def _create(self, body: bytes, deadline: float | None) -> tuple[bytes, Pending]:
        request = CreateContainerRequest.FromString(body)
        pod = await self._known_pod(request.pod_sandbox_id, deadline)
        if pod is None:
            self._hooks.unhooked("unknown-sandbox", Hook.PRE_CREATE_CONTAINER)
            return body, Pending(Call.CREATE_CONTAINER, request.pod_sandbox_id)
        container = rewrite.container_of(request, pod)
        pending = Pending(Call.CREATE_CONTAINER, request.pod_sandbox_id, container=container)
        response = await self._ask(Hook.PRE_CREATE_CONTAINER, pending, deadline)
        if response is None:
            return body, pending
        changed, pending.container = rewrite.create_container(request, container, response)
        return (request.SerializeToString() if changed else body), pending

    async def _start(self, body: bytes, deadline: float | None) -> tuple[bytes, Pending]:
        container_id = ContainerRequest.FromString(body).container_id
        known = await self._known_container(Hook.PRE_START_CONTAINER, container_id, deadline)
        if known is None:
            return body, Pending(Call.START_CONTAINER, container_id=container_id)
        pending = Pending(Call.START_CONTAINER, known.pod_id, container_id, container=known)
        await self._ask(Hook.PRE_START_CONTAINER, pending, deadline)  # nothing of the request can be changed
        return body, pending

    async def _update(self, body: bytes, deadline: float | None) -> tuple[bytes, Pending]:
        request = UpdateContainerResourcesRequest.FromString(body)
        container_id = request.container_id
        known = await self._known_container(Hook.PRE_UPDATE_CONTAINER_RESOURCES, container_id, deadline)
        if known is None:
            return body, Pending(Call.UPDATE_CONTAINER_RESOURCES, container_id=container_id)
        asked = request.linux if request.HasField("linux") else None
        container = replace(
            known,
            resources=updated(known.resources, asked),
            annotations={**known.annotations, **request.annotations},
        )
        pending = Pending(Call.UPDATE_CONTAINER_RESOURCES, known.pod_id, container_id, container=container)
        response = await self._ask(Hook.PRE_UPDATE_CONTAINER_RESOURCES, pending, deadline)
        if response is None:
            return body, pending
        changed, resources = rewrite.update_container(request, container, response)
        pending.container = replace(container, resources=resources)
        return (request.SerializeToString() if changed else body), pending

    async def _ask(self, hook: Hook, pending: Pending, deadline: float | None) -> HookResponse | None:
        """The answer; None when the call goes on unchanged. Raises HookRefused."""
        pod = pending.owner
        if pod is None:
            return None
        request = pod_request(pod) if pending.container is None else container_request(pending.container)
        return await self._hooks.ask(pod, pending.pod_id, hook, request, deadline)

    async def _known_pod(self, pod_id: str, deadline: float | None) -> PodInfo | None:
        """From the store, else from the runtime, as complete as it gets."""
        known = self._store.pods.get(pod_id)
        if self._recovery is None or (known is not None and known.complete):
            return known
        try:
            async with asyncio.timeout(self._hooks.patience(deadline)):
                return await self._recovery.pod(pod_id)
        except TimeoutError:
            log.warning("Runtime does not tell about a sandbox in time", id=pod_id)
            return known

    async def _known_container(self, hook: Hook, container_id: str, deadline: float | None) -> ContainerInfo | None:
        """From the store, as complete as it gets if the hook will be asked or resources are to be updated; one that
        the store does not know stays unknown."""
        known = self._store.containers.get(container_id)
        if known is None:
            self._hooks.unhooked("unknown-container", hook)
            return None
        if known.complete or self._recovery is None:
            return known
        if hook is not Hook.PRE_UPDATE_CONTAINER_RESOURCES and not self._hooks.handles(hook):
            return known
        try:
            async with asyncio.timeout(self._hooks.patience(deadline)):
                return await self._recovery.container(container_id)
        except TimeoutError:
            log.warning("Runtime does not tell about a container in time", id=container_id)
            return known

    def _made(self, pending: Pending, body: bytes) -> None:
        """Remember a sandbox or container under the id that the runtime gave it."""
        try:
            if pending.call is Call.RUN_POD_SANDBOX:
                pending.pod_id = RunPodSandboxResponse.FromString(body).pod_sandbox_id
            else:
                pending.container_id = CreateContainerResponse.FromString(body).container_id
        except DecodeError as error:
            log.warning("Answer cannot be parsed: what it made is unknown", call=pending.call.value, err=error)
            return
        if pending.pod is not None and pending.pod_id:
            self._store.put_pod(pending.pod_id, pending.pod)
        elif pending.container is not None and pending.container_id:
            self._store.put_container(replace(pending.container, id=pending.container_id))
        else:
            log.warning("What the runtime made is not kept", call=pending.call.value, pod=pending.pod_id)
