"""The small gRPC server: with gRPC's own client, and with a client that says what a script tells it."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from koordlet.app.http2 import frames as h2
from koordlet.app.http2.frames import Frame, Splitter
from koordlet.app.http2.grpc import GrpcStatus, pack
from koordlet.app.http2.server import CallRefused, Connection, GrpcServer, ServerLimits, Stream
from koordlet.app.tasks import end_tasks
from tests.waiting import until

PATIENCE = 60.0
LARGE = [("grpc.max_send_message_length", 32 << 20), ("grpc.max_receive_message_length", 32 << 20)]
OWN = [("grpc.use_local_subchannel_pool", 1)]


async def echo(message: bytes, _: float | None) -> bytes:
    return message


@asynccontextmanager
async def serving(
    path: Path,
    method: Callable[[bytes, float | None], Awaitable[bytes]] | Stream = echo,
    limits: ServerLimits | None = None,
) -> AsyncIterator[GrpcServer]:
    server = GrpcServer({"/s/M": method}, limits)
    await server.start(path)
    try:
        yield server
    finally:
        await server.stop(PATIENCE)


@asynccontextmanager
async def channel(path: Path, *options: tuple[str, int]) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix:{path}", options=[*OWN, *LARGE, *options]) as connection:
        yield connection


async def refused(call: Awaitable[bytes]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


# gRPC's client


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_535, 65_536, 16 << 20])
async def test_any_size_goes_and_comes(tmp_path: Path, size: int) -> None:
    async with serving(tmp_path / "s") as server, channel(tmp_path / "s") as connection:
        for _ in range(2):
            assert await connection.unary_unary("/s/M")(b"x" * size, timeout=PATIENCE) == b"x" * size
        assert server.held == 0
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


async def test_many_at_once_and_one_after_another(tmp_path: Path) -> None:
    async with serving(tmp_path / "s"), channel(tmp_path / "s") as connection:
        call = connection.unary_unary("/s/M")
        words = [f"{number}".encode() * 1000 for number in range(200)]
        assert await asyncio.gather(*(call(word, timeout=PATIENCE) for word in words)) == words
        for word in words[:20]:
            assert await call(word, timeout=PATIENCE, metadata=(("x-some", "thing"),)) == word


async def test_a_client_with_small_windows(tmp_path: Path) -> None:
    options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    async with serving(tmp_path / "s"), channel(tmp_path / "s", *options) as connection:
        words = [bytes((65 + number,)) * 300_000 for number in range(8)]
        calls = [connection.unary_unary("/s/M")(word, timeout=PATIENCE) for word in words]
        assert await asyncio.gather(*calls) == words


async def test_compressed_requests(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", limits=ServerLimits(message=1 << 20)), channel(tmp_path / "s") as connection:
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            call = connection.unary_unary("/s/M")(b"x" * 100_000, timeout=PATIENCE, compression=compression)
            if compression is grpc.Compression.Gzip:
                assert await call == b"x" * 100_000
            else:
                assert (await refused(call))[0] is grpc.StatusCode.UNIMPLEMENTED
        bomb = connection.unary_unary("/s/M")(b"x" * (2 << 20), timeout=PATIENCE, compression=grpc.Compression.Gzip)
        assert (await refused(bomb))[0] is grpc.StatusCode.INTERNAL


async def test_refusals(tmp_path: Path) -> None:
    async def method(message: bytes, _: float | None) -> bytes:
        if message == b"known":
            raise CallRefused("é% no\n", GrpcStatus.INTERNAL)
        raise ValueError("bug")

    async with serving(tmp_path / "s", method, ServerLimits(message=100_000)), channel(tmp_path / "s") as connection:
        call = connection.unary_unary("/s/M")
        assert await refused(call(b"known", timeout=PATIENCE)) == (grpc.StatusCode.INTERNAL, "é% no\n")
        assert await refused(call(b"", timeout=PATIENCE)) == (grpc.StatusCode.UNKNOWN, "ValueError('bug')")
        code, text = await refused(call(b"x" * 3_000_000, timeout=PATIENCE))
        assert (code, text) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED, "a message of 3000000 bytes exceeds the limit of 100000",
        )  # fmt: skip
        absent = connection.unary_unary("/s/Absent")(b"", timeout=PATIENCE)
        assert await refused(absent) == (grpc.StatusCode.UNIMPLEMENTED, "no such method")


async def test_more_calls_than_allowed(tmp_path: Path) -> None:
    go = asyncio.Event()
    running: list[bytes] = []

    async def method(message: bytes, _: float | None) -> bytes:
        running.append(message)
        await go.wait()
        return message

    async with serving(tmp_path / "s", method, ServerLimits(calls=2)), channel(tmp_path / "s") as connection:
        first = [asyncio.ensure_future(connection.unary_unary("/s/M")(word, timeout=PATIENCE)) for word in (b"a", b"b")]
        await until(lambda: len(running) == 2)
        async with channel(tmp_path / "s") as two:  # of another connection, which does not know
            code, text = await refused(two.unary_unary("/s/M")(b"c", timeout=PATIENCE))
            assert (code, text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many concurrent calls")
        go.set()
        assert await asyncio.gather(*first) == [b"a", b"b"]


async def test_deadline_and_cancellation_reach_the_method(tmp_path: Path) -> None:
    ended: list[bytes] = []
    left: list[tuple[bytes, float | None]] = []

    async def method(message: bytes, seconds: float | None) -> bytes:
        left.append((message, seconds))
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(message)
        return b""

    async with serving(tmp_path / "s", method), channel(tmp_path / "s") as connection:
        call = connection.unary_unary("/s/M")
        for deadline in (0.1, 3.0, 30.0):
            assert (await refused(call(b"late", timeout=deadline)))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
            if left:
                break  # else the machine stood still, and the time was over before the server had heard
        await until(lambda: b"late" in ended)
        assert left[0][1] is not None
        assert left[0][1] <= deadline * 1.1  # clients round what they say of it up
        given_up = call(b"gone")
        await until(lambda: (b"gone", None) in left)
        given_up.cancel()
        await until(lambda: b"gone" in ended)


async def test_a_closed_connection_cancels_its_calls(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def method(message: bytes, _: float | None) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    async with serving(tmp_path / "s", method), raw(tmp_path / "s") as peer:
        peer.say(h2.PREFACE + h2.settings() + ask(1, data=b"x"))
        await peer.hears(lambda frames: any(frame.kind == h2.SETTINGS for frame, _ in frames))
        peer.writer.close()
        async with asyncio.timeout(PATIENCE):
            await ended.wait()


async def test_calls_under_way_end_and_no_new_ones_begin_at_a_stop(tmp_path: Path) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def method(message: bytes, _: float | None) -> bytes:
        begun.set()
        await go.wait()
        return message

    server = GrpcServer({"/s/M": method})
    await server.start(tmp_path / "s")
    async with channel(tmp_path / "s") as connection:
        call = asyncio.ensure_future(connection.unary_unary("/s/M")(b"last", timeout=PATIENCE))
        await begun.wait()
        stop = asyncio.ensure_future(server.stop(PATIENCE))
        await until(lambda: server.stopping)
        assert (await refused(connection.unary_unary("/s/M")(b"new", timeout=PATIENCE)))[
            0
        ] is grpc.StatusCode.UNAVAILABLE
        go.set()
        assert await call == b"last"
        await stop


async def test_a_call_that_outlasts_the_stop_is_given_up(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def method(message: bytes, _: float | None) -> bytes:
        begun.set()
        await asyncio.Event().wait()
        return message

    server = GrpcServer({"/s/M": method})
    await server.start(tmp_path / "s")
    async with channel(tmp_path / "s") as connection:
        call = asyncio.ensure_future(refused(connection.unary_unary("/s/M")(b"", timeout=PATIENCE)))
        await begun.wait()
        await server.stop(0.0)
        assert (await call)[0] is grpc.StatusCode.UNAVAILABLE
    assert not server.connections


# A client that says anything


class Peer:
    """A connection whose answers are frames with their bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.splitter = Splitter()
        self.frames: list[tuple[Frame, bytes]] = []
        self.over = False

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def hears(self, enough: Callable[[list[tuple[Frame, bytes]]], bool]) -> None:
        """Until `enough`, or the end of the connection."""
        async with asyncio.timeout(PATIENCE):
            while not enough(self.frames) and not self.over:
                read = await self.reader.read(1 << 16)
                self.over = not read
                data, units = self.splitter.feed(read)
                self.frames += [(frame, data[frame.start + h2.HEAD_BYTES : frame.end]) for frame in units]


@asynccontextmanager
async def raw(path: Path) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


HEADERS = {":method": "POST", ":scheme": "http", ":path": "/s/M", "content-type": "application/grpc", "te": "trailers"}


def ask(stream: int, *, data: bytes | None = None, headers: Mapping[str, str | None] | None = None) -> bytes:
    """A call's frames; of `headers` None leaves one out."""
    sent_headers = {name: value for name, value in {**HEADERS, **(headers or {})}.items() if value is not None}
    block = Encoder().encode(list(sent_headers.items()), huffman=False)
    out = h2.head(len(block), h2.HEADERS, h2.END_HEADERS | (h2.END_STREAM if data is None else 0), stream) + block
    return out if data is None else out + sent(stream, pack(data, compressed=False))


def opened(stream: int) -> bytes:
    """A call whose request follows."""
    return ask(stream, data=b"").removesuffix(sent(stream, pack(b"", compressed=False)))


def sent(stream: int, body: bytes, flags: int = h2.END_STREAM) -> bytes:
    return h2.head(len(body), h2.DATA, flags, stream) + body


def statuses(frames: list[tuple[Frame, bytes]]) -> dict[int, str]:
    """gRPC's status by stream, of calls that ended."""
    statuses = {}
    for frame, body in frames:
        if frame.kind == h2.HEADERS and frame.flags & h2.END_STREAM:
            fields: dict[Any, Any] = dict(Decoder().decode(body))
            statuses[frame.stream] = str(fields["grpc-status"])
    return statuses


START = h2.PREFACE + h2.settings()
GOOD = ask(1, data=b"x")


@pytest.mark.parametrize(
    ("call", "status"),
    [
        pytest.param(ask(1, data=b"x", headers={"grpc-timeout": "60S"}), "0", id="fine"),
        pytest.param(ask(1, data=b"x", headers={"grpc-timeout": "soon"}), "13", id="a deadline that is none"),
        pytest.param(ask(1, data=b"x", headers={":path": None}), "12", id="no path"),
        pytest.param(ask(1, data=b"x", headers={":method": "GET"}), "2", id="no POST"),
        pytest.param(ask(1, data=b"x", headers={"content-type": "text/html"}), "2", id="no gRPC"),
        pytest.param(ask(1), "13", id="no message"),
        pytest.param(opened(1) + sent(1, b"\0\0\0"), "13", id="half a prefix"),
        pytest.param(opened(1) + sent(1, b"\0\0\0\0\x09abc"), "13", id="half a message"),
        pytest.param(opened(1) + sent(1, b"\0\0\0\0\x01abc", 0) + sent(1, b"d"), "13", id="more than a message"),
        pytest.param(opened(1) + sent(1, b"\x01\0\0\0\x03abc"), "13", id="compressed without grpc-encoding"),
    ],
)
async def test_calls_that_are_none_get_a_status_and_cost_no_other(tmp_path: Path, call: bytes, status: str) -> None:
    async with serving(tmp_path / "s") as server, raw(tmp_path / "s") as peer:
        peer.say(START + call + ask(3, data=b"good"))
        await peer.hears(lambda frames: statuses(frames).keys() >= {1, 3})
        assert statuses(peer.frames) == {1: status, 3: "0"}
        assert server.held == 0


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP/1"),
        pytest.param(h2.PREFACE + GOOD, id="no settings"),
        pytest.param(START + h2.head(20_000, h2.DATA, 0, 1), id="a frame too long"),
        pytest.param(START + h2.head(1, h2.DATA, 0, 1) + b"x", id="data of no call"),
        pytest.param(START + h2.rst_stream(0), id="a reset of the connection"),
        pytest.param(START + ask(2, data=b"x"), id="a server's stream"),
        pytest.param(START + h2.head(3, h2.HEADERS, h2.END_HEADERS, 1) + b"\xff\xff\xff", id="a broken header block"),
        pytest.param(START + h2.head(4, h2.PING, 0, 0) + b"1234", id="half a ping"),
        pytest.param(START + h2.window_update(0, 0), id="no credit"),
        pytest.param(START + h2.window_update(0, (1 << 31) - 1), id="too much credit"),
        pytest.param(START + h2.settings((h2.INITIAL_WINDOW_SIZE, 1 << 31)), id="too large a window"),
        pytest.param(START + h2.head(0, h2.CONTINUATION, 0, 1), id="a block's middle"),
        pytest.param(START + h2.head(0, h2.PUSH_PROMISE, h2.END_HEADERS, 1), id="a push"),
        pytest.param(START + opened(1) + opened(1), id="a call in a call"),
    ],
)
async def test_what_is_no_http2_ends_its_connection_alone(tmp_path: Path, data: bytes) -> None:
    async with serving(tmp_path / "s") as server, raw(tmp_path / "s") as other, raw(tmp_path / "s") as peer:
        peer.say(data)
        await peer.hears(lambda _: False)
        assert peer.over
        await until(lambda: len(server.connections) == 1)
        other.say(START + GOOD)
        await other.hears(lambda frames: bool(statuses(frames)))
        assert statuses(other.frames) == {1: "0"}
        assert server.held == 0


async def test_flow_control_windows_are_respected(tmp_path: Path) -> None:
    """An answer goes as the client gives credit, and ends behind its last byte."""
    answer = pack(bytes(range(200)), compressed=False)

    async def method(_: bytes, __: float | None) -> bytes:
        return bytes(range(200))

    async with serving(tmp_path / "s", method), raw(tmp_path / "s") as peer:
        peer.say(h2.PREFACE + h2.settings((h2.INITIAL_WINDOW_SIZE, 50)) + ask(1, data=b""))
        room = 50
        for credit in (50, 10, 95):
            allowed = room
            await peer.hears(lambda frames: len(data_of(frames)) >= allowed)  # noqa: B023 - awaited here
            assert (data_of(peer.frames), statuses(peer.frames)) == (answer[:room], {})
            peer.say(h2.window_update(1, credit))
            room += credit
        await peer.hears(lambda frames: bool(statuses(frames)))
        assert data_of(peer.frames) == answer
        assert peer.frames[-1][0].kind == h2.HEADERS


ECHOED = pack(b"x", compressed=False)


@pytest.mark.parametrize(
    ("bodies", "answers", "status"),
    [
        pytest.param(sent(1, ECHOED + ECHOED + ECHOED), ECHOED * 3, "0", id="three at once"),
        pytest.param(sent(1, ECHOED + ECHOED[:3], 0) + sent(1, ECHOED[3:]), ECHOED * 2, "0", id="in two parts"),
        pytest.param(sent(1, ECHOED + ECHOED[:3]), ECHOED, "13", id="the last is cut off"),
        pytest.param(sent(1, pack(bytes(100), compressed=False), 0), b"", "8", id="too large"),
        pytest.param(sent(1, pack(bytes(90), compressed=False) + ECHOED), b"\0\0\0\0\x5a", "8", id="not taken"),
    ],
)
async def test_a_stream_is_answered_message_by_message(
    tmp_path: Path, bodies: bytes, answers: bytes, status: str
) -> None:
    limits, window = ServerLimits(message=90), (h2.INITIAL_WINDOW_SIZE, 50)
    async with serving(tmp_path / "s", Stream(bytes), limits) as server, raw(tmp_path / "s") as peer:
        peer.say(h2.PREFACE + h2.settings(window) + opened(1) + bodies + ask(3, data=b"y"))
        await peer.hears(lambda frames: statuses(frames).keys() == {1, 3})
        assert statuses(peer.frames) == {1: status, 3: "0"}
        payload = b"".join(body for frame, body in peer.frames if frame.kind == h2.DATA and frame.stream == 1)
        assert payload == answers or (len(payload) == 50 and payload.startswith(answers))
        assert server.held == 0


def data_of(frames: list[tuple[Frame, bytes]]) -> bytes:
    return b"".join(body for frame, body in frames if frame.kind == h2.DATA)


async def test_a_client_that_does_not_read_answers_is_not_read(tmp_path: Path) -> None:
    """Pings are answered into a full socket until nothing more is read; other clients are served."""
    pings = (h2.head(8, h2.PING, 0, 0) + b"01234567") * 4096

    async def flood(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(pings)
            await writer.drain()

    def read() -> list[bool]:
        return [
            connection._transport.is_reading() for connection in server.connections if connection._transport is not None
        ]

    async with serving(tmp_path / "s") as server, raw(tmp_path / "s") as peer:
        peer.say(START)
        flooding = asyncio.ensure_future(flood(peer.writer))
        await until(lambda: read() == [False])
        async with channel(tmp_path / "s") as client:
            assert await client.unary_unary("/s/M")(b"x", timeout=PATIENCE) == b"x"
        await end_tasks(flooding)
        heard = asyncio.ensure_future(peer.hears(lambda _: False))
        await until(lambda: read() == [True])
        await end_tasks(heard)


class Deaf(asyncio.Transport):
    """Takes everything."""

    closed = False

    def writelines(self, pieces: object) -> None: ...
    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


TALK = ask(5, data=b"z", headers={":path": "/s/S"})


@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([GOOD, TALK, ask(3, data=b"y"), START])), max_size=8))
def test_nothing_that_comes_raises(pieces: list[bytes]) -> None:
    async def feed() -> None:
        server = GrpcServer({"/s/M": echo, "/s/S": Stream(bytes)})
        for begin in (b"", START, START + GOOD[:40]):
            connection, transport = Connection(server), Deaf()
            connection.connection_made(transport)
            for piece in (begin, *pieces):
                if not transport.closed:
                    connection.data_received(piece)
                    await asyncio.sleep(0)
            connection.connection_lost(None)
            await asyncio.sleep(0)
            assert server.held == 0
            assert server.begin()
            server.end()

    asyncio.run(feed())
