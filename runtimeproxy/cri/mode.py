"""CRI mode: the splice's intercepted streams are the interceptor's calls (spec 08 §11)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from koordlet.api.cri import SERVICES
from koordlet.app.http2.client import CallError, Client
from koordlet.app.http2.grpc import Status
from koordlet.app.logging import get_logger
from runtimeproxy import AGENT
from runtimeproxy.cri.calls import Call, HookRefused, Interceptor, Pending, intercepted
from runtimeproxy.cri.recover import BackendError
from runtimeproxy.http2.exchange import Holding, Refused
from runtimeproxy.http2.link import Link
from runtimeproxy.metrics import ProxyMetrics

log = get_logger(__name__)

BACKLOG = 1024
BACKEND_SECONDS = 5.0
_LOOK_SECONDS = 0.02


class Backend:
    """Calls of the proxy's own (a `recover.Backend`), in the version of CRI that answers: v1, else v1alpha2."""

    def __init__(self, socket: Path, *, seconds: float = BACKEND_SECONDS) -> None:
        self._socket, self._seconds = str(socket), seconds
        self._service: str | None = None

    async def call(self, method: str, request: bytes) -> bytes:
        """See `recover.Backend`. Raises BackendError within `seconds` for each version tried."""
        for service in SERVICES if self._service is None else (self._service,):
            try:
                answer = await self._ask(f"/{service}/{method}", request)
            except CallError as error:
                if error.status is Status.UNIMPLEMENTED and self._service is None and service != SERVICES[-1]:
                    continue
                raise BackendError(f"{method}: {error}") from error
            self._service = service
            return answer
        raise AssertionError("the last version returns or raises")

    async def _ask(self, method: str, request: bytes) -> bytes:
        """On a connection of its own, of which a runtime on the same machine makes thousands a second."""
        try:
            async with asyncio.timeout(self._seconds):
                client = await Client.connect(self._socket, AGENT)
        except (OSError, TimeoutError) as error:
            raise CallError(f"cannot connect: {error or 'no answer'}") from error
        try:
            return await client.call(method, request, self._seconds)
        finally:
            await client.close(0.0)

    async def version(self) -> None:
        """Whether a runtime answers. Raises BackendError. A runtime may have changed since: all versions are tried."""
        self._service = None
        await self.call("Version", b"")


class CriCall:
    """One intercepted call; an `exchange.Exchange`."""

    def __init__(self, side: CriSide, call: Call, timeout: float | None) -> None:
        self._side, self._call = side, call
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._pending: Pending | None = None
        self._result = "passed"
        self._over = False

    async def request(self, body: bytes) -> bytes:
        try:
            instead, pending = await self._side.interceptor.before(self._call, body, self._deadline)
        except HookRefused as refused:
            self._result = "refused"
            raise Refused(str(refused)) from refused
        if instead is not body:
            self._result = "rewritten"
        self._pending = pending
        if self._over:  # the call ended while the hook did
            self._tell(None)
        return instead

    def answered(self, body: bytes | None) -> None:
        self._over = True
        result = "failed" if body is None and self._result != "refused" else self._result
        self._side.metrics.calls.labels(self._call.value, result).inc()
        self._tell(body)

    def passed(self, reason: str) -> None:
        log.once(f"passed:{reason}", "A request passes without hooks", call=self._call.value, reason=reason)
        self._side.metrics.unhooked.labels(reason.replace(" ", "-")).inc()

    def _tell(self, body: bytes | None) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            self._side.interceptor.answered(pending, body)
            after = self._side.interceptor.after(pending)
        except Exception as error:  # what is known of pods must not cost the connection
            log.exception("Cannot keep what a call did", call=self._call.value, err=error)
            return
        if after is not None:
            self._side.spawn(after)


class CriSide:
    """Links of all clients, and the hooks that run after answers."""

    def __init__(self, backend: Path, interceptor: Interceptor, metrics: ProxyMetrics) -> None:
        self.interceptor, self.metrics = interceptor, metrics
        self._path = str(backend)
        self._holding = Holding()
        self._links: set[Link] = set()
        self._after: set[asyncio.Task[Any]] = set()
        self._server: asyncio.AbstractServer | None = None
        self._calls = {
            f"/{service}/{call}".encode(): call
            for service in SERVICES
            for call in Call
            if intercepted(f"/{service}/{call}")
        }

    async def start(self, socket: Path) -> None:
        """Listen where nothing is. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, str(socket), backlog=BACKLOG)

    async def stop(self, grace: float) -> None:
        """Accept no more, ask clients to go once their calls are answered; cut what is left after `grace` seconds."""
        if self._server is not None:
            self._server.close()
        for link in self._links:
            link.last_word()
        for _ in range(int(grace / _LOOK_SECONDS)):
            if not self._links and not self._after:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            log.warning("Stopping with calls under way", connections=len(self._links), hooks=len(self._after))
        for link in list(self._links):
            link.close()
        for task in self._after:
            task.cancel()
        await asyncio.gather(*self._after, return_exceptions=True)

    def spawn(self, after: Coroutine[Any, Any, None]) -> None:
        """Run a hook that nobody waits for."""
        task = asyncio.get_running_loop().create_task(after)
        self._after.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._after.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Hook after a call failed", err=error)

    def interest(self, path: bytes, timeout: float | None) -> CriCall | None:
        """See `exchange.Interest`."""
        call = self._calls.get(path)
        return None if call is None else CriCall(self, call, timeout)

    def _accept(self) -> asyncio.Protocol:
        return Link(self._connect, self.interest, self._holding, self._opened, self._closed, self._broken).client

    async def _connect(self, protocol: Any) -> object:
        return await asyncio.get_running_loop().create_unix_connection(protocol, self._path)

    def _opened(self, link: Link) -> None:
        self._links.add(link)
        self.metrics.connections.inc()

    def _closed(self, link: Link) -> None:
        self._links.discard(link)
        self.metrics.connections.dec()

    def _broken(self) -> None:
        self.metrics.malformed.inc()
