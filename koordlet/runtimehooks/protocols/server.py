"""The runtime hook service over gRPC, for a runtime proxy (spec 03 §4.2, 01 §8).

Settings that CRI cannot express are in the kernel before the response is sent (`calls`). The address is a unix socket
that only its owner may open. A socket that an earlier process left is removed; a socket at which a process listens, and
any other file in its place, is not touched. If the socket is removed or replaced, `watch` notices it and serves again.
Reflection describes the service. `koordlet.app.http2.server` explains why the gRPC server is not a library's.
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
from koordlet.app.http2.server import CallRefused, GrpcServer, Method, ServerLimits, inode, remove_socket
from koordlet.app.logging import get_logger
from koordlet.runtimehooks.calls import HookCalls
from koordlet.runtimehooks.protocols.wire import (
    container_context,
    container_response,
    sandbox_context,
    sandbox_response,
)
from koordlet.runtimehooks.stages import HookAnswer, HookContext, HookError, HookStage

log = get_logger(__name__)

GRACE_SECONDS = 2.0
"""Time for running calls when koordlet stops; new calls are refused at once."""
CALLS_AT_ONCE = 1024
"""Further calls are refused: a runtime with this many open calls does not wait for answers."""
MAX_MESSAGE_BYTES = 16 << 20
"""The limit between kubelet and runtimes; the request of a hook is not larger than the call that it belongs to."""
PROTOCOL = "grpc"
SANDBOX = (HookStage.PRE_RUN_POD_SANDBOX, HookStage.POST_STOP_POD_SANDBOX)
CONTAINER = (
    HookStage.PRE_CREATE_CONTAINER,
    HookStage.PRE_START_CONTAINER,
    HookStage.POST_START_CONTAINER,
    HookStage.POST_STOP_CONTAINER,
    HookStage.PRE_UPDATE_CONTAINER_RESOURCES,
)
"""Stages with a call, which is named `<stage>Hook`."""


class RuntimeHookServer:
    """A service for `Runner`. If it cannot open its socket, `problem` is the reason, and pods start without hooks."""

    name = "runtime-hooks"
    stages = (*SANDBOX, *CONTAINER)

    def __init__(self, path: Path, calls: HookCalls, runtime: str, *, grace: float = GRACE_SECONDS) -> None:
        """`runtime`: the container runtime of the node, as in container ids."""
        self.path = path
        self._calls = calls
        self._runtime = runtime
        self._grace = grace
        self._server: GrpcServer | None = None
        self._inode: tuple[int, int] | None = None
        self._started = False
        self.problem = "not started"
        """Empty while it serves at its path."""

    async def start(self) -> None:
        """Serve; `problem` is the reason if that is impossible."""
        self._started = True
        await self._serve()

    async def watch(self) -> None:
        """Serve again if the socket is not at its path any more, or could not be created before. Call periodically."""
        if not self._started or (self._server is not None and inode(self.path) == self._inode):
            return
        if self._server is not None:
            self.problem = f"{self.path}: another process removed the socket"
            log.warning("The socket of the runtime hooks is gone; serving again", address=str(self.path))
            server, self._server = self._server, None
            await server.stop(self._grace)
        await self._serve()

    async def _serve(self) -> None:
        described = Reflection([DESCRIPTOR]).streams()
        server = GrpcServer(
            {**self._methods(), **described}, ServerLimits(message=MAX_MESSAGE_BYTES, calls=CALLS_AT_ONCE)
        )
        try:
            _prepare_socket_path(self.path)
            await server.start(self.path)
        except OSError as error:
            self.problem = f"{self.path}: {error}"
            log.once(f"hooks:{error}", "Runtime hooks are not served", address=str(self.path), error=str(error))
            return
        self._server = server
        self._inode = inode(self.path)
        self.problem = ""

    async def stop(self) -> None:
        server = self._server
        self._server, self._started = None, False
        if server is not None:
            self.problem = "stopped"
            await server.stop(self._grace)
            if inode(self.path) == self._inode:
                self.path.unlink(missing_ok=True)

    def _methods(self) -> dict[str, Method]:
        calls = {stage: partial(self._sandbox, stage) for stage in SANDBOX}
        calls |= {stage: partial(self._container, stage) for stage in CONTAINER}
        return {f"/{SERVICE}/{stage}Hook": call for stage, call in calls.items()}

    async def _sandbox(self, stage: HookStage, body: bytes, seconds: float | None) -> bytes:
        try:
            request = PodSandboxHookRequest.FromString(body)
            directory = self._calls.announced.directory(request.pod_meta.uid)
            answer = await self._answer(stage, sandbox_context(request, directory), seconds)
        except (DecodeError, HookError) as error:
            raise CallRefused(str(error)) from error
        return sandbox_response(request, answer).SerializeToString()

    async def _container(self, stage: HookStage, body: bytes, seconds: float | None) -> bytes:
        try:
            request = ContainerResourceHookRequest.FromString(body)
            directory = self._calls.announced.directory(request.pod_meta.uid)
            answer = await self._answer(stage, container_context(request, self._runtime, directory), seconds)
        except (DecodeError, HookError) as error:
            raise CallRefused(str(error)) from error
        return container_response(request, answer).SerializeToString()

    async def _answer(self, stage: HookStage, context: HookContext, seconds: float | None) -> HookAnswer:
        return await self._calls.answer(stage, context, protocol=PROTOCOL, seconds=seconds)


def _prepare_socket_path(path: Path) -> None:
    """Create the directory, remove the socket of a process that has ended. Raises OSError if no socket is possible."""
    path.parent.mkdir(mode=0o755, exist_ok=True)
    remove_socket(path)
