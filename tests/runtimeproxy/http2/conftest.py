"""A gRPC server for any method, a client for any method, and the splice between them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from runtimeproxy.http2.interception import HoldBudget
from runtimeproxy.http2.link import Http2Link
from tests.waiting import until

LIMITS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


class Rewriter:
    """A call handler for tests: `change` rewrites a body; it records all calls."""

    def __init__(self, change: Callable[[bytes], Awaitable[bytes]], log: list[tuple[str, Any]]) -> None:
        self._change, self.log = change, log

    async def request(self, body: bytes) -> bytes:
        self.log.append(("request", body))
        try:
            return await self._change(body)
        except asyncio.CancelledError:
            self.log.append(("cancelled", None))
            raise

    def answered(self, body: bytes | None) -> None:
        self.log.append(("answered", body))

    def passed(self, reason: str) -> None:
        self.log.append(("passed", reason))


class Spliced:
    """The splice with its own socket: calls of `/x.Hooked/…` are intercepted."""

    def __init__(self, folder: Path, backend: Path) -> None:
        self.path, self.backend = folder / "proxy.sock", backend
        self.log: list[tuple[str, Any]] = []
        self.links: set[Http2Link] = set()
        self.broken = 0
        self.holding = HoldBudget()
        self.change: Callable[[bytes], Awaitable[bytes]] = self.untouched
        self._server: asyncio.AbstractServer | None = None

    @staticmethod
    async def untouched(body: bytes) -> bytes:
        return body

    def select(self, path: bytes, timeout: float | None) -> Rewriter | None:
        if not path.startswith(b"/x.Hooked/"):
            return None
        return Rewriter(self.change, self.log)

    def _link(self) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()

        def broken() -> None:
            self.broken += 1

        def connect(factory: Callable[[], asyncio.Protocol]) -> Awaitable[object]:
            return loop.create_unix_connection(factory, str(self.backend))

        return Http2Link(connect, self.select, self.holding, self.links.add, self.links.discard, broken).client

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(self._link, str(self.path))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in list(self.links):
            link.close()
        await until(lambda: not self.links)

    def said(self, kind: str) -> list[Any]:
        return [value for word, value in self.log if word == kind]


class Anything(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves every method as a stream of raw messages both ways; the end of the name selects the behaviour."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[tuple[str, Any], ...]]] = []
        self.requests: list[bytes] = []
        self.cancelled = 0
        self.remaining: list[float | None] = []

    def service(self, details: Any) -> Any:
        self.calls.append(
            (details.method, tuple((metadata.key, metadata.value) for metadata in details.invocation_metadata))
        )
        return grpc.stream_stream_rpc_method_handler(getattr(self, details.method.rpartition("/")[2].lower()))

    async def echo(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.remaining.append(context.time_remaining())
        await context.send_initial_metadata((("first", "metadata"), ("first-bin", b"\x00\xff")))
        context.set_trailing_metadata((("last", "metadata"), ("last-bin", b"\x01\xfe")))
        async for request in requests:
            self.requests.append(request)
            yield request

    async def fail(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            self.requests.append(request)
        context.set_trailing_metadata((("grpc-status-details-bin", b"\x08\x05\x12\x03why"),))
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such pod: ünter 100%")
        yield b""

    async def hang(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        try:
            async for request in requests:
                self.requests.append(request)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        yield b""


@contextlib.asynccontextmanager
async def server(path: Path, options: Any = LIMITS, **more: Any) -> AsyncIterator[Anything]:
    """A real gRPC server on a unix socket."""
    handler = Anything()
    server = grpc.aio.server(options=options, **more)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield handler
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def client(path: Path, options: Any = LIMITS, **more: Any) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options, **more) as channel:
        yield channel


@pytest.fixture(scope="package", autouse=True)
def small_heap() -> Iterator[None]:
    """Collections after each test look only at objects of these tests: those of a long run would take seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
async def spliced(tmp_path: Path) -> AsyncIterator[Spliced]:
    """Running, with its runtime expected at `tmp_path/backend.sock`."""
    spliced = Spliced(tmp_path, tmp_path / "backend.sock")
    await spliced.start()
    yield spliced
    await spliced.stop()
    gc.collect()


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Anything]:
    async with server(tmp_path / "backend.sock") as handler:
        yield handler


@pytest.fixture
async def channel(spliced: Spliced, backend: Anything) -> AsyncIterator[grpc.aio.Channel]:
    async with client(spliced.path) as connected:
        yield connected
