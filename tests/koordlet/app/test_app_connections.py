"""An HTTP server that is open to everybody keeps serving its own machine, whatever others do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from koordlet.app.connections import LOOPBACK, ConnectionGuard, ConnectionLimits, GuardedConnection, _address
from koordlet.app.http import PAGE_BURST, HttpServer, PageBudget

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PATIENCE_S = 30.0


@contextlib.asynccontextmanager
async def serving(limits: ConnectionLimits, **given: object) -> AsyncIterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", limits=limits, **given)  # type: ignore[arg-type]
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def connected(server: HttpServer, count: int) -> AsyncIterator[list[Streams]]:
    streams = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
    try:
        yield streams
    finally:
        for _, writer in streams:
            writer.close()


async def ended(streams: Streams) -> bytes:
    """What the server sent until it closed the connection."""
    received = b""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            while chunk := await streams[0].read(1 << 16):
                received += chunk
    return received


def guard_of(server: HttpServer) -> ConnectionGuard:
    assert server._guard is not None
    return server._guard


async def healthz(server: HttpServer) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/healthz") as response:
        return response.status


async def test_silent_and_slow_connections_are_closed() -> None:
    async with serving(ConnectionLimits(request_s=0.1)) as server, connected(server, 2) as streams:
        streams[1][1].write(b"GET /healthz HTTP/1.1\r\nX: ")  # never completed
        assert [await ended(each) for each in streams] == [b"", b""]
        assert len(guard_of(server)) == 0


async def test_an_idle_connection_is_closed_after_its_request() -> None:
    limits = ConnectionLimits(request_s=PATIENCE_S, idle_s=0.1, handling_s=0.1)
    async with serving(limits) as server, connected(server, 1) as (streams,):
        streams[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await ended(streams)).endswith(b"ok")


async def test_connections_beyond_the_limit_are_closed_and_the_others_work() -> None:
    async with serving(ConnectionLimits(loopback=3)) as server:
        async with connected(server, 3), connected(server, 2) as more:
            assert [await ended(each) for each in more] == [b"", b""]
            assert (len(guard_of(server)), guard_of(server).refused) == (3, 2)
        while len(guard_of(server)):  # noqa: ASYNC110 - there is no notification of it
            await asyncio.sleep(0)
        assert await healthz(server) == 200


async def test_long_heads_and_bodies_are_refused() -> None:
    async with serving(ConnectionLimits(head_bytes=1000)) as server, connected(server, 2) as streams:
        streams[0][1].write(b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n")
        streams[1][1].write(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 5000 + b"\r\n\r\n")
        for each in streams:
            assert b" 400 " in (await ended(each)).split(b"\r\n")[0]


class Transport(asyncio.Transport):
    """Of a connection from another machine."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 1)})
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


async def test_others_cannot_take_the_places_of_this_machine_or_of_each_other() -> None:
    guard = ConnectionGuard(ConnectionLimits(connections=5, per_address=3, loopback=1))

    def connect(host: str) -> tuple[GuardedConnection, bool]:
        made, transport = guard.protocol(asyncio.Protocol()), Transport(host)
        made.connection_made(transport)
        return made, not transport.aborted

    first = [connect("192.0.2.1") for _ in range(4)]
    assert [admitted for _, admitted in first] == [True, True, True, False]
    assert [connect("192.0.2.2")[1] for _ in range(3)] == [True, True, False]
    assert [connect("127.0.0.1")[1], connect("::1")[1]] == [True, False]
    for made, _ in first:
        made.connection_lost(None)
    assert connect("192.0.2.2")[1]
    assert len(guard) == 4


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", LOOPBACK), ("127.9.9.9", LOOPBACK), ("::1", LOOPBACK), ("::ffff:127.0.0.1", LOOPBACK),
        ("::ffff:192.0.2.7", "192.0.2.7"), ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"), ("2001:db8::2", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64"),
    ],
)  # fmt: skip
def test_who_counts_as_one_client(host: str, address: str) -> None:
    assert _address((host, 1, 0, 0)) == address


def test_pages_are_produced_at_a_limited_rate() -> None:
    now = [0.0]
    budget = PageBudget(lambda: now[0])
    assert sum(budget.take() for _ in range(200)) == PAGE_BURST
    now[0] = 0.5
    assert sum(budget.take() for _ in range(200)) == 5


async def test_many_scrapers_share_pages() -> None:
    produced = []

    class Source:
        def collect(self):
            produced.append(1)
            return []

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Source())  # type: ignore[arg-type]
    produced.clear()
    registries = {"/metrics": registry}
    async with serving(ConnectionLimits(), registries=registries) as server, aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(f"{server.url}/metrics") as response:
                assert response.status == 200
    assert PAGE_BURST <= len(produced) < 100
