"""The small gRPC client: against gRPC's own server, and against a server that says what a script tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from hpack import Encoder

from koordlet.app.http2 import client as module
from koordlet.app.http2 import frames as h2
from koordlet.app.http2.client import ConnectionLost, GrpcCallError, UnaryClient
from koordlet.app.http2.grpc import GrpcStatus, pack

PATIENCE = 60.0


@asynccontextmanager
async def grpc_server(path: Path, answer: Callable[[bytes, Any], Any], **options: int) -> AsyncIterator[UnaryClient]:
    server = grpc.aio.server(options=[(f"grpc.{name}", value) for name, value in options.items()])
    handlers = {"M": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    client = await UnaryClient.connect(str(path), "test")
    try:
        yield client
    finally:
        await client.close(PATIENCE)
        await server.stop(None)


async def echo(request: bytes, _: Any) -> bytes:
    return request


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 3 << 20])
async def test_any_size_goes_and_comes(tmp_path: Path, size: int) -> None:
    async with grpc_server(tmp_path / "s", echo) as client:
        assert await client.call("/s/M", b"x" * size, PATIENCE) == b"x" * size


async def test_many_at_once_and_one_after_another(tmp_path: Path) -> None:
    async with grpc_server(tmp_path / "s", echo) as client:
        words = [f"{number}".encode() * 1000 for number in range(200)]
        assert await asyncio.gather(*(client.call("/s/M", word, PATIENCE) for word in words)) == words
        for word in words[:20]:
            assert await client.call("/s/M", word, PATIENCE) == word


async def test_flow_control_credit_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_31_BITS", 300_000)  # windows that small
    monkeypatch.setattr(module, "_CREDIT_BYTES", 100_000)
    async with grpc_server(tmp_path / "s", echo) as client:
        for _ in range(5):
            assert len(await client.call("/s/M", b"x" * 250_000, PATIENCE)) == 250_000


async def test_errors_carry_status_and_text(tmp_path: Path) -> None:
    async def refuse(_: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "é% no\n")
        return b""

    async with grpc_server(tmp_path / "s", refuse) as client:
        with pytest.raises(GrpcCallError, match=r"^FAILED_PRECONDITION: é% no\n$") as error:
            await client.call("/s/M", b"", PATIENCE)
        assert (error.value.status, error.value.detail) == (GrpcStatus.FAILED_PRECONDITION, "é% no\n")
        with pytest.raises(GrpcCallError, match=r"^UNIMPLEMENTED: "):
            await client.call("/s/Absent", b"", PATIENCE)


async def test_a_request_that_the_server_will_not_read(tmp_path: Path) -> None:
    async with grpc_server(tmp_path / "s", echo, max_receive_message_length=1000) as client:
        for _ in range(3):
            with pytest.raises(GrpcCallError, match=r"^RESOURCE_EXHAUSTED: "):
                await client.call("/s/M", b"x" * (1 << 20), PATIENCE)
        assert await client.call("/s/M", b"x", PATIENCE) == b"x"


async def test_the_server_gets_the_deadline(tmp_path: Path) -> None:
    async def remaining(_: bytes, context: Any) -> bytes:
        return str(context.time_remaining()).encode()

    async with grpc_server(tmp_path / "s", remaining) as client:
        assert 0 < float(await client.call("/s/M", b"", 100.0)) <= 100.0


async def test_an_answer_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 1000)
    async with grpc_server(tmp_path / "s", echo) as client:
        with pytest.raises(GrpcCallError, match=r"^RESOURCE_EXHAUSTED: "):
            await client.call("/s/M", b"x" * 100_000, PATIENCE)
        assert await client.call("/s/M", b"x" * 1000, PATIENCE) == b"x" * 1000


class Scripted:
    """A server that sends `said` as soon as the first request's headers came."""

    def __init__(self, path: Path, frames: bytes, *, close: bool = False) -> None:
        self.path, self.said, self.close = path, frames, close
        self.heard = bytearray()
        self.reset = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> UnaryClient:
        self._server = await asyncio.start_unix_server(self._talk, self.path)
        self.client = await UnaryClient.connect(str(self.path), "test")
        return self.client

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await self.client.close(PATIENCE)
        self._server.close()
        for writer in self._writers:
            writer.close()
            await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        answered = False
        while piece := await reader.read(1000):
            self.heard += piece
            if not answered and b"/s/M" in self.heard:
                answered = True
                writer.write(self.said)
                if self.close:
                    writer.close()
                    return
            if h2.rst_stream(1) in self.heard:
                self.reset.set()


def headers(*pairs: tuple[str, str], end: bool = False, stream: int = 1) -> bytes:
    block = Encoder().encode(pairs)
    return h2.head(len(block), h2.HEADERS, h2.END_HEADERS | (h2.END_STREAM if end else 0), stream) + block


def data(body: bytes, flags: int = 0, stream: int = 1) -> bytes:
    return h2.head(len(body), h2.DATA, flags, stream) + body


HI = pack(b"hi", compressed=False)
BEGIN = h2.settings() + headers((":status", "200"), ("content-type", "application/grpc"))
END = headers(("grpc-status", "0"), end=True)
GOAWAY = h2.head(8, h2.GOAWAY, 0, 0)


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(BEGIN + data(HI) + END, id="plain"),
        pytest.param(BEGIN + data(b"\x03" + HI + b"\0" * 3, h2.PADDED) + END, id="padded"),
        pytest.param(BEGIN + b"".join(data(bytes((byte,))) for byte in HI) + END, id="bytes"),
        pytest.param(BEGIN + h2.head(8, h2.PING, 0, 0) + b"12345678" + data(HI) + END, id="ping"),
        pytest.param(BEGIN + data(HI, stream=9) + data(HI) + END, id="a-strangers-stream"),
        pytest.param(BEGIN + GOAWAY + b"\0\0\0\1" + b"\0" * 4 + data(HI) + END, id="goes-away-after-this"),
    ],
)
async def test_answers(tmp_path: Path, frames: bytes) -> None:
    async with Scripted(tmp_path / "s", frames) as client:
        assert await client.call("/s/M", b"", PATIENCE) == b"hi"


ABSENT = headers((":status", "200"), ("grpc-status", "5"), ("grpc-message", "a%20b"), end=True)
NO_BLOCK = h2.head(5, h2.HEADERS, h2.END_HEADERS, 1) + b"\xff" * 5


@pytest.mark.parametrize(
    ("frames", "kind", "words"),
    [
        pytest.param(ABSENT, GrpcCallError, "NOT_FOUND: a b", id="trailers-only"),
        pytest.param(headers((":status", "415"), end=True), GrpcCallError, "HTTP status 415", id="http-status"),
        pytest.param(
            headers((":status", "200"), ("grpc-status", "99"), end=True), GrpcCallError, "'99'", id="odd-status"
        ),
        pytest.param(BEGIN + END, GrpcCallError, "not one message", id="no-message"),
        pytest.param(
            BEGIN + data(pack(b"hi", compressed=True)) + END, GrpcCallError, "not one message", id="compressed"
        ),
        pytest.param(BEGIN + data(HI * 2) + END, GrpcCallError, "not one message", id="two"),
        pytest.param(h2.rst_stream(1, 2), GrpcCallError, "reset with code 2", id="reset"),
        pytest.param(h2.rst_stream(1, 7), ConnectionLost, "reset with code 7", id="refused"),
        pytest.param(GOAWAY + b"\0" * 8, ConnectionLost, "shutting down", id="goes-away"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", ConnectionLost, "invalid answer", id="http-1"),
        pytest.param(NO_BLOCK, ConnectionLost, "invalid answer", id="hpack"),
    ],
)
async def test_failures(tmp_path: Path, frames: bytes, kind: type[GrpcCallError], words: str) -> None:
    async with Scripted(tmp_path / "s", frames) as client:
        with pytest.raises(GrpcCallError, match=words) as failed:
            await client.call("/s/M", b"", PATIENCE)
        assert type(failed.value) is kind


async def test_the_server_closes(tmp_path: Path) -> None:
    async with Scripted(tmp_path / "s", BEGIN, close=True) as client:
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="UNAVAILABLE: "):
                await client.call("/s/M", b"", PATIENCE)


async def test_a_cancelled_call_is_reset(tmp_path: Path) -> None:
    server = Scripted(tmp_path / "s", BEGIN)
    async with server as client:
        with pytest.raises(ConnectionLost, match="DEADLINE_EXCEEDED"):
            await client.call("/s/M", b"", 0.05)
        await asyncio.wait_for(server.reset.wait(), PATIENCE)


async def test_closing_lets_calls_end(tmp_path: Path) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def answer(request: bytes, _: Any) -> bytes:
        entered.set()
        await go_on.wait()
        return request

    async with grpc_server(tmp_path / "s", answer) as client:
        call = asyncio.create_task(client.call("/s/M", b"x", PATIENCE))
        await entered.wait()
        closing = asyncio.create_task(client.close(PATIENCE))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionLost, match="being closed"):
            await client.call("/s/M", b"", PATIENCE)
        go_on.set()
        assert await call == b"x"
        await closing


async def test_connecting_without_a_listener(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await UnaryClient.connect(str(tmp_path / "absent"), "test")
