"""A client's connection and the one to the runtime: what happens to one happens to the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from koordlet.app.http2 import frames as h2
from koordlet.app.tasks import end_tasks
from tests.runtimeproxy.http2.conftest import Spliced
from tests.waiting import until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def runtime(path: Path, serve: Serve) -> AsyncIterator[None]:
    """A server on a socket that is no gRPC server."""
    done: list[asyncio.Task[None]] = []

    async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        done.append(task)
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve_connection, str(path))
    try:
        yield
    finally:
        server.close()
        await end_tasks(*done)


async def closed(reader: asyncio.StreamReader) -> None:
    """Wait until the other side has closed, in any way."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            assert await reader.read() == b""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write(b"END")
    writer.write_eof()


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"P", b"\0\0\0\0", b"PRI * HTTP/1.1\r\n" + bytes(9)])
async def test_other_protocols_are_relayed(spliced: Spliced, first: bytes) -> None:
    """Also an end of stream, which keeps the other direction open."""
    async with runtime(spliced.backend, echo):
        reader, writer = await asyncio.open_unix_connection(str(spliced.path))
        writer.write(first)
        if first != b"P":
            assert await reader.readexactly(len(first)) == first
        writer.write(b"x" * 1_000_000)
        writer.write_eof()
        assert (await reader.read()).endswith(b"xEND")
        writer.close()
        await until(lambda: not spliced.links)
    assert spliced.broken == 0


async def test_a_preface_may_arrive_in_pieces(spliced: Spliced) -> None:
    async with runtime(spliced.backend, echo):
        reader, writer = await asyncio.open_unix_connection(str(spliced.path))
        await until(lambda: spliced.links)
        (link,) = spliced.links
        for at in range(len(h2.PREFACE)):
            writer.write(h2.PREFACE[at : at + 1])
            await asyncio.sleep(0)
        writer.write(h2.settings())
        writer.write_eof()
        await until(lambda: link._splice is not None)
        # the echo of a preface is no frame: it ends both connections
        await closed(reader)
        await until(lambda: not spliced.links)
        writer.close()
    assert spliced.broken == 1


async def test_no_runtime(spliced: Spliced) -> None:
    reader, writer = await asyncio.open_unix_connection(str(spliced.path))
    await closed(reader)
    await until(lambda: not spliced.links)
    writer.close()


async def test_the_runtime_closes(spliced: Spliced) -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(h2.PREFACE))

    async with runtime(spliced.backend, rude):
        reader, writer = await asyncio.open_unix_connection(str(spliced.path))
        writer.write(h2.PREFACE + h2.settings())
        await closed(reader)
        writer.close()
        await until(lambda: not spliced.links)


async def test_the_client_is_gone(spliced: Spliced) -> None:
    heard = asyncio.Event()

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == h2.PREFACE + h2.settings()
        heard.set()

    async with runtime(spliced.backend, quiet):
        _, writer = await asyncio.open_unix_connection(str(spliced.path))
        writer.write(h2.PREFACE + h2.settings())
        writer.close()
        async with asyncio.timeout(30):
            await heard.wait()
        await until(lambda: not spliced.links)


@pytest.mark.parametrize("first", [b"", b"PRI * HTT"])
async def test_the_client_is_gone_before_its_protocol_is_known(spliced: Spliced, first: bytes) -> None:
    async with runtime(spliced.backend, echo):
        reader, writer = await asyncio.open_unix_connection(str(spliced.path))
        await until(lambda: any(link.client.other for link in spliced.links))
        writer.write(first)
        writer.write_eof()
        assert await reader.read() == first + b"END"
        writer.close()
        await until(lambda: not spliced.links)


async def test_credit_after_the_clients_end(spliced: Spliced) -> None:
    """Waiting DATA is not sent any more; nothing breaks, and the runtime's last frames arrive."""

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(h2.window_update(0, 1000) + h2.window_update(1, 1000) + h2.rst_stream(1) + h2.settings())

    async with runtime(spliced.backend, late):
        reader, writer = await asyncio.open_unix_connection(str(spliced.path))
        writer.write(h2.PREFACE + h2.settings())
        await until(lambda: any(link._splice is not None for link in spliced.links))
        (link,) = spliced.links
        assert link._splice is not None
        link._splice._sender.connection.room = 0
        block = b"\x04\x02/x\x0f\x10\x10application/grpc"
        writer.write(h2.head(len(block), h2.HEADERS, h2.END_HEADERS, 1) + block + h2.head(3, h2.DATA, 0, 1) + b"abc")
        await until(lambda: link._splice is not None and link._splice._sender.blocked)
        writer.write_eof()
        assert (await reader.read()).endswith(h2.rst_stream(1) + h2.settings())
        writer.close()
        await until(lambda: not spliced.links)
    assert spliced.broken == 0


async def test_malformed_frames_cost_one_connection(spliced: Spliced) -> None:
    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass

    async with runtime(spliced.backend, quiet):
        good_reader, good = await asyncio.open_unix_connection(str(spliced.path))
        good.write(h2.PREFACE)
        for _ in range(3):
            reader, writer = await asyncio.open_unix_connection(str(spliced.path))
            writer.write(h2.PREFACE + h2.settings() + h2.head(1 << 20, h2.DATA, 0, 1))
            await closed(reader)
            writer.close()
        await until(lambda: len(spliced.links) == 1)
        assert spliced.broken == 3
        assert not good_reader.at_eof()
        good.close()


@pytest.mark.parametrize("towards", ["runtime", "client"])
async def test_back_pressure(spliced: Spliced, towards: str) -> None:
    """Writes to a side that does not read are bounded: its peer's writes wait."""
    go = asyncio.Event()
    sent = 0
    frame = h2.head(16384, 0xEE, 0, 0) + bytes(16384)
    count = 4000  # 64 MiB

    async def send(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        for _ in range(count):
            writer.write(frame)
            await writer.drain()
            sent += 1

    async def take(reader: asyncio.StreamReader) -> None:
        await go.wait()
        for _ in range(count):
            assert await reader.readexactly(len(frame)) == frame

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(h2.PREFACE))
        await (send(writer) if towards == "client" else take(reader))
        writer.write(h2.settings())
        await reader.read()

    async with runtime(spliced.backend, serve):
        reader, writer = await asyncio.open_unix_connection(str(spliced.path))
        writer.write(h2.PREFACE)
        work = asyncio.create_task(take(reader) if towards == "client" else send(writer))
        last = -1
        while sent != last or not sent:  # until no more is accepted
            last = sent
            await asyncio.sleep(0.3)
        (link,) = spliced.links
        buffered = sum(
            side.transport.get_write_buffer_size() for side in (link.client, link._runtime) if side.transport
        )
        assert buffered < 2 << 20
        assert sent < count / 2
        go.set()
        async with asyncio.timeout(60):
            await work
            assert await reader.readexactly(9) == h2.settings()
        writer.close()
        await until(lambda: not spliced.links)
