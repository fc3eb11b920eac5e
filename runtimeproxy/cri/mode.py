"""CRI mode: connects the splice's intercepted streams with the interceptor (spec 08 §11)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from koordlet.api.cri import SERVICES
from koordlet.app.http2.client import GrpcCallError, UnaryClient
from koordlet.app.http2.grpc import GrpcStatus
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from runtimeproxy import USER_AGENT
from runtimeproxy.cri.calls import CriInterceptor, CriMethod, PendingCall, intercepted
from runtimeproxy.cri.recover import RuntimeCallError
from runtimeproxy.hooks.dispatch import HookRefused
from runtimeproxy.http2.interception import HoldBudget, InterceptionRefused
from runtimeproxy.http2.link import Http2Link
from runtimeproxy.metrics import ProxyMetrics

log = get_logger(__name__)

BACKLOG = 1024
RUNTIME_TIMEOUT_S = 5.0
_POLL_S = 0.02


class RuntimeClient:
    """The proxy's own calls to the runtime (a `recover.RuntimeService`), in CRI v1 if the runtime has it, else
    v1alpha2."""

    def __init__(self, socket: Path) -> None:
        self._socket = str(socket)
        self._service: str | None = None

    async def call(self, method: str, request: bytes) -> bytes:
        """See `recover.RuntimeService`. Raises RuntimeCallError within `timeout` seconds for each version tried."""
        for service in SERVICES if self._service is None else (self._service,):
            try:
                response = await self._call(f"/{service}/{method}", request)
            except GrpcCallError as error:
                if error.status is GrpcStatus.UNIMPLEMENTED and self._service is None and service != SERVICES[-1]:
                    continue
                raise RuntimeCallError(f"{method}: {error}") from error
            self._service = service
            return response
        raise AssertionError("the last version returns or raises")

    async def _call(self, method: str, request: bytes) -> bytes:
        """On a new connection: a local runtime accepts thousands a second."""
        try:
            async with asyncio.timeout(RUNTIME_TIMEOUT_S):
                client = await UnaryClient.connect(self._socket, USER_AGENT)
        except (OSError, TimeoutError) as error:
            raise GrpcCallError(f"cannot connect: {error or 'no response'}") from error
        try:
            return await client.call(method, request, RUNTIME_TIMEOUT_S)
        finally:
            await client.close(0.0)

    async def version(self) -> None:
        """Check that a runtime responds. Raises RuntimeCallError. All versions are tried, as the runtime may have
        changed."""
        self._service = None
        await self.call("Version", b"")


class CriCallHandler:
    """One intercepted call; an `interception.GrpcCallHandler`."""

    def __init__(self, server: CriServer, method: CriMethod, timeout: float | None) -> None:
        self._server = server
        self._method = method
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._pending: PendingCall | None = None
        self._result = "passed"
        self._ended = False

    async def request(self, body: bytes) -> bytes:
        try:
            replacement, pending = await self._server.interceptor.before(self._method, body, self._deadline)
        except HookRefused as refused:
            self._result = "refused"
            raise InterceptionRefused(str(refused)) from refused
        if replacement is not body:
            self._result = "rewritten"
        self._pending = pending
        if self._ended:  # the call ended while the hook ran
            self._finish(None)
        return replacement

    def answered(self, body: bytes | None) -> None:
        self._ended = True
        result = "failed" if body is None and self._result != "refused" else self._result
        self._server.metrics.calls.labels(self._method.value, result).inc()
        self._finish(body)

    def passed(self, reason: str) -> None:
        log.once(f"passed:{reason}", "A request is forwarded without hooks", call=self._method.value, reason=reason)
        self._server.metrics.unhooked.labels(reason.replace(" ", "-")).inc()

    def _finish(self, body: bytes | None) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            self._server.interceptor.answered(pending, body)
            after = self._server.interceptor.after(pending)
        except Exception as error:  # a bug in the store must not close the connection
            log.exception("Cannot store the result of a call", call=self._method.value, err=error)
            return
        if after is not None:
            self._server.spawn(after)


class CriServer:
    """The links of all clients, and the post hooks that are running."""

    def __init__(self, backend: Path, interceptor: CriInterceptor, metrics: ProxyMetrics) -> None:
        self.interceptor = interceptor
        self.metrics = metrics
        self._path = str(backend)
        self._budget = HoldBudget()
        self._links: set[Http2Link] = set()
        self._post_hooks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.AbstractServer | None = None
        self._calls = {
            f"/{service}/{call}".encode(): call
            for service in SERVICES
            for call in CriMethod
            if intercepted(f"/{service}/{call}")
        }

    async def start(self, socket: Path) -> None:
        """Listen at a path where no file exists. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, str(socket), backlog=BACKLOG)

    async def stop(self, grace: float) -> None:
        """Stop accepting, let clients finish their calls, and close what is left after `grace` seconds."""
        if self._server is not None:
            self._server.close()
        for link in self._links:
            link.send_goaway()
        for _ in range(int(grace / _POLL_S)):
            if not self._links and not self._post_hooks:
                break
            await asyncio.sleep(_POLL_S)
        else:
            log.warning("Stopping while calls are running", connections=len(self._links), hooks=len(self._post_hooks))
        for link in list(self._links):
            link.close()
        await end_tasks(*self._post_hooks)

    def spawn(self, hook: Coroutine[Any, Any, None]) -> None:
        """Run a post hook in the background."""
        task = asyncio.get_running_loop().create_task(hook)
        self._post_hooks.add(task)
        task.add_done_callback(self._post_hook_ended)

    def _post_hook_ended(self, task: asyncio.Task[Any]) -> None:
        self._post_hooks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Post hook failed", err=error)

    def select(self, path: bytes, timeout: float | None) -> CriCallHandler | None:
        """See `interception.GrpcHandlerSelector`."""
        call = self._calls.get(path)
        return None if call is None else CriCallHandler(self, call, timeout)

    def _accept(self) -> asyncio.Protocol:
        return Http2Link(self._connect, self.select, self._budget, self._opened, self._closed, self._malformed).client

    async def _connect(self, protocol: Any) -> object:
        return await asyncio.get_running_loop().create_unix_connection(protocol, self._path)

    def _opened(self, link: Http2Link) -> None:
        self._links.add(link)
        self.metrics.connections.inc()

    def _closed(self, link: Http2Link) -> None:
        self._links.discard(link)
        self.metrics.connections.dec()

    def _malformed(self) -> None:
        self.metrics.malformed.inc()
