"""An HTTP server that every client can reach keeps serving its own machine, whatever other clients do."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from koordlet.app.connections import LOOPBACK, ConnectionGuard, ConnectionLimits, GuardedConnection, client_address
from koordlet.app.http import PAGE_BURST, HttpServer, PageBudget
from koordlet.app.servertls import server_context

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PATIENCE_S = 30.0


@contextlib.asynccontextmanager
async def serving(limits: ConnectionLimits, **options: object) -> AsyncIterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", limits=limits, **options)  # type: ignore[arg-type]
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


async def test_probes_succeed_while_another_process_of_the_machine_holds_all_places() -> None:
    async with serving(ConnectionLimits(loopback=3)) as server, connected(server, 3) as held:
        for _ in range(2):
            assert await healthz(server) == 200
            assert len(guard_of(server)) <= 3
        assert await ended(held[0]) == b""


async def test_a_connection_beyond_the_limit_is_closed_while_all_others_have_requests() -> None:
    handling = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await handling.wait()
        return web.Response()

    routes = [web.get("/wait", wait)]
    async with serving(ConnectionLimits(loopback=1), routes=routes) as server, connected(server, 1) as (busy,):
        busy[1].write(b"GET /wait HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        while not any(each.busy for each in guard_of(server)._guarded.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with connected(server, 1) as (more,):
            assert await ended(more) == b""
        handling.set()
        assert b" 200 " in await ended(busy)


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

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.aborted = True


async def test_others_cannot_take_the_places_of_this_machine_or_of_each_other() -> None:
    guard = ConnectionGuard(ConnectionLimits(connections=5, per_address=3, loopback=1))

    def connect(host: str) -> tuple[GuardedConnection, bool]:
        protocol, transport = guard.protocol(asyncio.Protocol()), Transport(host)
        protocol.connection_made(transport)
        return protocol, not transport.aborted

    first = [connect("192.0.2.1") for _ in range(4)]
    assert [admitted for _, admitted in first] == [True] * 4 and len(guard) == 3  # its first one made room
    assert [connect("192.0.2.2")[1] for _ in range(3)] == [True, True, False]
    assert [connect("127.0.0.1")[1], connect("::1")[1]] == [True, True]  # the idle one makes room
    for connection, _ in first:
        connection.connection_lost(None)
    assert connect("192.0.2.2")[1]
    assert len(guard) == 4


async def test_a_client_with_most_places_makes_room_for_one_with_fewer() -> None:
    """Four neighbours hold all places for other machines; Prometheus still connects, and they stay equal."""
    guard = ConnectionGuard(ConnectionLimits(connections=8, per_address=2))

    def connect(host: str) -> bool:
        protocol, transport = guard.protocol(asyncio.Protocol()), Transport(host)
        protocol.connection_made(transport)
        return not transport.aborted

    assert all(connect(f"192.0.2.{neighbour}") for neighbour in range(4) for _ in range(2))
    assert connect("198.51.100.1")
    assert not connect("198.51.100.1"), "a second place would leave it with the most"
    assert len(guard) == 8


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", LOOPBACK), ("127.9.9.9", LOOPBACK), ("::1", LOOPBACK), ("::ffff:127.0.0.1", LOOPBACK),
        ("::ffff:192.0.2.7", "192.0.2.7"), ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"), ("2001:db8::2", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64"),
    ],
)  # fmt: skip
def test_who_counts_as_one_client(host: str, address: str) -> None:
    assert client_address((host, 1, 0, 0)) == address


def test_pages_are_produced_at_a_limited_rate() -> None:
    now = [0.0]
    budget = PageBudget(lambda: now[0])
    assert sum(budget.take() for _ in range(200)) == PAGE_BURST
    now[0] = 0.5
    assert sum(budget.take() for _ in range(200)) == 5


async def test_many_scrapers_share_pages() -> None:
    produced = []

    class Source:
        def collect(self) -> list[Any]:
            produced.append(1)
            return []

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Source())
    produced.clear()
    registries = {"/metrics": registry}
    async with serving(ConnectionLimits(), registries=registries) as server, aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(f"{server.url}/metrics") as response:
                assert response.status == 200
    assert PAGE_BURST <= len(produced) < 100


def insecure() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def secure_status(server: HttpServer) -> int:
    connector = aiohttp.TCPConnector(ssl=insecure())
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"{server.url}/healthz") as response:
        return response.status


async def test_a_connection_that_begins_no_handshake_is_counted_and_makes_room() -> None:
    tls = server_context()
    async with serving(ConnectionLimits(loopback=3), tls=tls) as server, connected(server, 3) as silent:
        await until_counted(server, 3)
        assert await secure_status(server) == 200
        assert await ended(silent[0]) == b"", "the one that was silent longest made room"


async def test_a_handshake_that_takes_too_long_is_ended() -> None:
    async with serving(ConnectionLimits(request_s=0.2), tls=server_context()) as server, connected(server, 2) as silent:
        silent[1][1].write(b"\x16\x03\x01")
        for streams in silent:
            await ended(streams)
        assert len(guard_of(server)) == 0


async def test_what_is_no_handshake_is_ended_and_released() -> None:
    async with serving(ConnectionLimits(), tls=server_context()) as server, connected(server, 1) as (stranger,):
        stranger[1].write(b"GET /healthz HTTP/1.1\r\n\r\n")
        await ended(stranger)
        await until_counted(server, 0)


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered() -> None:
    """The client's last message of the handshake and its request are one segment."""
    async with serving(ConnectionLimits(), tls=server_context()) as server, connected(server, 1) as ((reader, writer),):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = insecure().wrap_bio(incoming, outgoing)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(1 << 16))
            client.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            writer.write(outgoing.read())
            received = b""
            while b"200 OK" not in received:
                incoming.write(await reader.read(1 << 16))
                with contextlib.suppress(ssl.SSLWantReadError):
                    received += client.read()


async def until_counted(server: HttpServer, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(guard_of(server)) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
