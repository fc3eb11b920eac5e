"""The runtime hook service over gRPC, for a runtime proxy (spec 03 §4.2, 01 §8).

What CRI can't express reaches the kernel before the response leaves (`calls`). The address is a unix socket that only
its owner may open; one left by an earlier process is removed, anything else in its place is not touched. Reflection
tells of the service. The server is our own (`koordlet.app.http2.server` says why).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from google.protobuf.message import DecodeError

from koordlet.api.hooks import SERVICE
from koordlet.api.hooks.api_pb2 import (
    DESCRIPTOR,
    ContainerResourceHookRequest,
    PodSandboxHookRequest,
)
from koordlet.app.http2.reflection import Reflection
from koordlet.app.http2.server import CallRefused, GrpcServer, Method, ServerLimits, remove_socket
from koordlet.app.logging import get_logger
from koordlet.runtimehooks.calls import HookCalls
from koordlet.runtimehooks.protocols.wire import (
    container_context,
    container_response,
    sandbox_context,
    sandbox_response,
)
from koordlet.runtimehooks.stages import Answer, HookContext, HookError, Stage

log = get_logger(__name__)

GRACE_SECONDS = 2.0
"""Calls that run when koordlet stops get this long; new ones are refused at once."""
CALLS_AT_ONCE = 1024
"""More are refused: a runtime that asks so much does not wait for answers."""
MAX_MESSAGE = 16 << 20
"""Bytes of a request, as kubelet and runtimes allow each other; a hook's request is never larger than their call."""
PROTOCOL = "grpc"
SANDBOX = (Stage.PRE_RUN_POD_SANDBOX, Stage.POST_STOP_POD_SANDBOX)
CONTAINER = (
    Stage.PRE_CREATE_CONTAINER,
    Stage.PRE_START_CONTAINER,
    Stage.POST_START_CONTAINER,
    Stage.POST_STOP_CONTAINER,
    Stage.PRE_UPDATE_CONTAINER_RESOURCES,
)
"""Stages with a call, which is named `<stage>Hook`."""


class HookServer:
    """A service for `Runner`. Where its socket can't be, `problem` says why, and pods start without hooks."""

    name = "runtime-hooks"
    stages = (*SANDBOX, *CONTAINER)

    def __init__(self, path: Path, calls: HookCalls, runtime: str, *, grace: float = GRACE_SECONDS) -> None:
        """`runtime`: the node's, as container ids name it."""
        self.path, self._calls, self._runtime, self._grace = path, calls, runtime, grace
        self._server: GrpcServer | None = None
        self.problem = "not started"
        """Empty while it serves."""

    async def start(self) -> None:
        described = Reflection([DESCRIPTOR]).streams()
        server = GrpcServer({**self._methods(), **described}, ServerLimits(message=MAX_MESSAGE, calls=CALLS_AT_ONCE))
        try:
            _make_room(self.path)
            await server.start(self.path)
        except OSError as error:
            self.problem = f"{self.path}: {error}"
            log.warning("runtime hooks are not served", address=str(self.path), error=str(error))
            return
        self._server, self.problem = server, ""

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self.problem = "stopped"
            await server.stop(self._grace)
            self.path.unlink(missing_ok=True)

    def _methods(self) -> dict[str, Method]:
        calls = {stage: partial(self._sandbox, stage) for stage in SANDBOX}
        calls |= {stage: partial(self._container, stage) for stage in CONTAINER}
        return {f"/{SERVICE}/{stage}Hook": call for stage, call in calls.items()}

    async def _sandbox(self, stage: Stage, body: bytes, seconds: float | None) -> bytes:
        try:
            request = PodSandboxHookRequest.FromString(body)
            known = self._calls.newborns.directory(request.pod_meta.uid)
            answer = await self._answer(stage, sandbox_context(request, known), seconds)
        except (DecodeError, HookError) as error:
            raise CallRefused(str(error)) from error
        return sandbox_response(request, answer).SerializeToString()

    async def _container(self, stage: Stage, body: bytes, seconds: float | None) -> bytes:
        try:
            request = ContainerResourceHookRequest.FromString(body)
            known = self._calls.newborns.directory(request.pod_meta.uid)
            answer = await self._answer(stage, container_context(request, self._runtime, known), seconds)
        except (DecodeError, HookError) as error:
            raise CallRefused(str(error)) from error
        return container_response(request, answer).SerializeToString()

    async def _answer(self, stage: Stage, context: HookContext, seconds: float | None) -> Answer:
        return await self._calls.answer(stage, context, protocol=PROTOCOL, seconds=seconds)


def _make_room(path: Path) -> None:
    """Make the directory, remove an old socket. Raises OSError when there can be no new one."""
    path.parent.mkdir(mode=0o755, exist_ok=True)
    remove_socket(path)
