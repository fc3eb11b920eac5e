"""The splice frame by frame, with peers that behave as gRPC's never would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.app.http2 import frames as h2
from koordlet.app.http2.frames import FrameError, Splitter
from koordlet.app.http2.grpc import pack
from runtimeproxy.http2.interception import HoldBudget, InterceptionRefused
from runtimeproxy.http2.splice import Splice
from tests.runtimeproxy.http2.conftest import Rewriter
from tests.waiting import until


class Wire:
    """A splice whose peers are this test: `backend` and `client` are the frames they received, as (kind, flags, stream,
    body)."""

    def __init__(self, change: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.log: list[tuple[str, Any]] = []
        self.backend, self.client = bytearray(), bytearray()
        self.holding = HoldBudget()
        self.stalled: list[bool] = []
        self.splice = Splice(
            lambda pieces: self.backend.extend(b"".join(pieces)), lambda pieces: self.client.extend(b"".join(pieces)),
            lambda path, timeout: Rewriter(change, self.log) if path == b"/hooked" else None,
            self.holding, self.stalled.append,
        )  # fmt: skip
        self._encoder, self._answers = Encoder(), Encoder()

    def call(self, stream: int, path: str = "/hooked", flags: int = h2.END_HEADERS) -> bytes:
        headers = [(":path", path), ("content-type", "application/grpc"), (f"x{stream}", "indexed")]
        block = self._encoder.encode(headers)
        return h2.head(len(block), h2.HEADERS, flags, stream) + block

    def answer(self, stream: int, *, end: bool = False) -> bytes:
        block = self._answers.encode([(":status", "200"), (f"x{stream}", "indexed")])
        return h2.head(len(block), h2.HEADERS, h2.END_HEADERS | (h2.END_STREAM if end else 0), stream) + block

    @staticmethod
    def data(stream: int, body: bytes, *, end: bool = False) -> bytes:
        return h2.head(len(body), h2.DATA, h2.END_STREAM if end else 0, stream) + body

    def to_backend(self) -> list[tuple[int, int, int, bytes]]:
        return _taken(self.backend)

    def to_client(self) -> list[tuple[int, int, int, bytes]]:
        return _taken(self.client)


def _headers(block: bytes, decoder: Decoder) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in decoder.decode(block, raw=True)}


def _taken(data: bytearray) -> list[tuple[int, int, int, bytes]]:
    splitter = Splitter()
    splitter.limit = 1 << 24
    buffer, frames = splitter.feed(bytes(data))
    assert sum(frame.end - frame.start for frame in frames) == len(data)
    data.clear()
    return [
        (taken_frame.kind, taken_frame.flags, taken_frame.stream, buffer[taken_frame.start + 9 : taken_frame.end])
        for taken_frame in frames
    ]


def _credit(frames: list[tuple[int, int, int, bytes]], stream: int) -> int:
    return sum(
        int.from_bytes(body, "big") for kind, _, own, body in frames if (kind, own) == (h2.WINDOW_UPDATE, stream)
    )


def _data(frames: list[tuple[int, int, int, bytes]], stream: int) -> bytes:
    return b"".join(body for kind, _, own, body in frames if kind == h2.DATA and own == stream)


async def same(body: bytes) -> bytes:
    return body


async def settle() -> None:
    """Let the splice's tasks run as far as they can; none waits for a clock or a socket."""
    for _ in range(20):
        await asyncio.sleep(0)


async def refuse(body: bytes) -> bytes:
    raise InterceptionRefused("no")


async def never(body: bytes) -> bytes:
    await asyncio.Event().wait()
    return body


MESSAGE = pack(b"hello", compressed=False)
ACK = (h2.SETTINGS, h2.ACK, 0, b"")


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 10, 1000])
async def test_one_call_in_pieces(cut: int) -> None:
    """However DATA and reads are cut: the same request."""
    wire = Wire(same)
    sent = wire.call(1) + b"".join(wire.data(1, MESSAGE[at : at + 3]) for at in range(0, len(MESSAGE), 3))
    sent += wire.data(1, b"", end=True)
    for at in range(0, len(sent), cut):
        wire.splice.from_client(sent[at : at + cut])
    await until(lambda: wire.log)
    await until(lambda: bytes(wire.backend) == sent)
    assert not wire.client  # no peer needs the splice's credit
    assert wire.holding.held == 0


@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=400), st.integers(1, 90)), min_size=1, max_size=6),
    st.lists(st.integers(1, 200), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40)
def test_interleaved_streams_with_any_splitting(
    calls: list[tuple[bool, bytes, int]], cuts: list[int], random: Any
) -> None:
    """Each stream's request arrives complete, changed if it is intercepted; all HEADERS in the client's order."""

    async def reverse(body: bytes) -> bytes:
        await asyncio.sleep(0)
        return body[::-1] + b"!"

    async def play() -> None:
        wire = Wire(reverse)
        queues = []
        expected: dict[int, bytes] = {}
        sent = b""
        for number, (hooked, body, size) in enumerate(calls):
            stream, message = 2 * number + 1, pack(body, compressed=False)
            expected[stream] = pack(body[::-1] + b"!", compressed=False) if hooked else message
            sent += wire.call(stream, "/hooked" if hooked else "/other")
            starts = range(0, len(message), size)
            queues.append([wire.data(stream, message[at : at + size], end=at + size >= len(message)) for at in starts])
        while queues := [queue for queue in queues if queue]:
            sent += random.choice(queues).pop(0)
        at = 0
        while at < len(sent):
            size = random.choice(cuts)
            wire.splice.from_client(sent[at : at + size])
            at += size
            if random.random() < 0.3:
                await asyncio.sleep(0)
        await until(lambda: _ended(wire.backend) == set(expected))
        frames = wire.to_backend()
        assert {stream: _data(frames, stream) for stream in expected} == expected
        assert [stream for kind, _, stream, _ in frames if kind == h2.HEADERS] == list(expected)
        room = 65535 - sum(map(len, expected.values()))  # the client's final window is the runtime's
        counted = 65535 - sum(5 + len(body) for _, body, _ in calls) + _credit(wire.to_client(), 0)
        assert counted == room + wire.splice._sender.connection.debt
        assert wire.holding.held == wire.splice._sender.connection.pending == 0

    asyncio.run(play())


def _ended(data: bytearray) -> set[int]:
    _, frames = Splitter().feed(bytes(data))
    return {frame.stream for frame in frames if frame.kind == h2.DATA and frame.flags & h2.END_STREAM}


async def test_everything_else_is_forwarded_byte_for_byte() -> None:
    wire = Wire(same)
    client = (
        h2.settings((h2.INITIAL_WINDOW_SIZE, 1), (0x99, 7))
        + wire.call(1, "/other") + wire.data(1, b"not gRPC at all")
        + h2.head(5, h2.PRIORITY, 0, 1) + bytes(5)
        + h2.head(8, h2.PING, 0, 0) + b"12345678"
        + h2.head(3, 0xEE, 0xFF, 77) + b"new"
        + wire.data(1, b"", end=True)
        + h2.window_update(0, 9) + h2.window_update(1, 9) + h2.rst_stream(1, 5) + h2.goaway(3, 2)
    )  # fmt: skip
    wire.splice.from_client(client)
    assert bytes(wire.backend) == client
    backend = (
        h2.settings((h2.MAX_FRAME_SIZE, 20000)) + h2.settings(ack=True)
        + wire.answer(1) + wire.data(1, b"answer") + h2.window_update(0, 9) + h2.window_update(1, 9)
        + h2.head(3, 0xEE, 0xFF, 77) + b"new" + h2.goaway(1) + wire.answer(1, end=True) + h2.rst_stream(1)
    )  # fmt: skip
    wire.splice.from_runtime(backend)
    assert bytes(wire.client) == backend


async def test_padding_priority_and_blocks_in_pieces() -> None:
    wire = Wire(same)
    block = wire.call(1)[9:]
    headers = h2.head(10, h2.HEADERS, h2.PADDED | h2.PRIORITISED, 1) + b"\x02" + bytes(5) + block[:2] + bytes(2)
    headers += h2.head(len(block) - 2, h2.CONTINUATION, h2.END_HEADERS, 1) + block[2:]
    body = h2.head(len(MESSAGE) + 4, h2.DATA, h2.PADDED | h2.END_STREAM, 1) + b"\x03" + MESSAGE + bytes(3)
    wire.splice.from_client(headers + body)
    await until(lambda: bytes(wire.backend) == headers + body)
    assert wire.log == [("request", b"hello")]
    assert not wire.client


async def test_credit_where_it_is_needed() -> None:
    """Credit for the rest of a long message, for other streams while much is held, and for shortened messages."""

    async def shorter(body: bytes) -> bytes:
        return b"short"

    wire = Wire(shorter)
    body = pack(bytes(300_000), compressed=False)
    pieces = [body[at : at + 16000] for at in range(0, len(body), 16000)]
    wire.splice.from_client(wire.call(1))
    room = {0: 65535, 1: 65535}
    for piece in pieces:
        for stream in room:
            room[stream] -= len(piece)
            assert room[stream] >= 0
        wire.splice.from_client(wire.data(1, piece, end=piece is pieces[-1]))
        frames = wire.to_client()
        for stream in room:
            room[stream] += _credit(frames, stream)
    await until(lambda: len(wire.backend) > 0 and b"short" in wire.backend)
    assert room[0] + _credit(wire.to_client(), 0) == 65535 - 10  # as the runtime's own
    wire.splice.from_runtime(h2.window_update(0, 10))
    assert _credit(wire.to_client(), 0) == 10


async def test_data_behind_the_message_stays_behind_it() -> None:
    async def change(body: bytes) -> bytes:
        await asyncio.sleep(0)
        return b"HELLO, WORLD"

    wire = Wire(change)
    wire.splice.from_client(wire.call(1) + wire.data(1, MESSAGE + MESSAGE))
    wire.splice.from_client(wire.data(1, b"tail") + wire.data(1, b"", end=True))
    await until(lambda: _ended(wire.backend) == {1})
    frames = wire.to_backend()
    assert _data(frames, 1) == pack(b"HELLO, WORLD", compressed=False) + MESSAGE + b"tail"
    assert frames[-1][1] == h2.END_STREAM


@pytest.mark.parametrize(
    ("sent", "reason"),
    [(b"", "incomplete"), (b"\0\0", "incomplete"), (MESSAGE[:-1], "incomplete"), (b"\1\0\0\0\1x", "encoding")],
)
async def test_invalid_messages_are_forwarded(sent: bytes, reason: str) -> None:
    wire = Wire(same)
    data = wire.call(1) + wire.data(1, sent, end=True)
    wire.splice.from_client(data)
    assert bytes(wire.backend) == data
    assert wire.log == [("passed", reason)]


async def test_no_window_at_all() -> None:
    """HEADERS and empty DATA need no credit; the rest is sent as credit arrives, split to fit."""
    wire = Wire(same)
    wire.splice.from_runtime(h2.settings((h2.INITIAL_WINDOW_SIZE, 0)))
    wire.splice.from_client(
        h2.settings(ack=True) + wire.call(1) + wire.data(1, MESSAGE, end=True) + wire.call(3, "/other")
    )
    await until(lambda: wire.log)
    await settle()
    assert [kind for kind, *_ in wire.to_backend()] == [h2.SETTINGS, h2.HEADERS, h2.HEADERS]
    wire.to_client()
    wire.splice.from_runtime(h2.window_update(1, 4))
    wire.splice.from_runtime(h2.settings((h2.INITIAL_WINDOW_SIZE, 2)))
    assert wire.to_backend() == [(h2.DATA, 0, 1, MESSAGE[:4])]
    wire.splice.from_client(h2.settings(ack=True))  # only acknowledged settings count
    wire.splice.from_runtime(h2.window_update(1, 100))
    assert wire.to_backend() == [ACK, (h2.DATA, 0, 1, MESSAGE[4:6]), (h2.DATA, h2.END_STREAM, 1, MESSAGE[6:])]
    assert _credit(wire.to_client(), 1) == 104  # all of the runtime's credit: the splice's own is zero


async def test_the_connections_window() -> None:
    """Forwarded DATA waits when held DATA has used room of which the client does not know; it is not reordered."""
    wire = Wire(same)
    wire.splice.from_client(wire.call(1) + wire.call(3, "/other"))
    big = pack(bytes(65535 - 5 - 3), compressed=False)
    for at in range(0, len(big), 16384):
        wire.splice.from_client(wire.data(1, big[at : at + 16384]))
    await until(lambda: _seen(wire.backend) == len(big))
    wire.backend.clear()
    wire.splice.from_client(wire.data(3, b"abcdef") + wire.data(3, b"g", end=True))
    assert _data(wire.to_backend(), 3) == b"abc"
    wire.splice.from_runtime(h2.window_update(0, 1))
    assert _data(wire.to_backend(), 3) == b"d"
    wire.splice.from_runtime(h2.window_update(0, len(big)))
    frames = wire.to_backend()
    assert _data(frames, 3) == b"efg"
    assert frames[-1][1] == h2.END_STREAM
    assert _credit(wire.to_client(), 0) == 1 + len(big)  # the splice's and the runtime's


def _seen(data: bytearray) -> int:
    _, frames = Splitter().feed(bytes(data))
    return sum(frame.length for frame in frames if frame.kind == h2.DATA)


async def test_refused() -> None:
    wire = Wire(refuse)
    wire.splice.from_client(h2.settings() + wire.call(1) + wire.data(1, MESSAGE, end=True))
    await until(lambda: h2.rst_stream(1) + h2.settings() in wire.backend)
    wire.client.clear()
    wire.splice.from_runtime(h2.settings(ack=True))
    assert wire.to_client() == [ACK]  # the client's own
    assert wire.log[1:] == []
    wire.splice.from_runtime(h2.settings(ack=True))
    ((kind, flags, stream, block),) = wire.to_client()
    assert (kind, flags, stream) == (h2.HEADERS, h2.END_STREAM | h2.END_HEADERS, 1)
    decoder = Decoder()
    assert _headers(block, decoder) == {
        ":status": "200", "content-type": "application/grpc", "grpc-status": "2", "grpc-message": "no",
    }  # fmt: skip
    assert not decoder.header_table.dynamic_entries
    assert wire.log[1:] == [("answered", None)]


async def test_refused_when_the_runtime_has_answered() -> None:
    """Its headers reach the client's table; the call ends with the runtime's status."""
    wire = Wire(refuse)
    wire.splice.from_client(wire.call(1) + wire.data(1, MESSAGE, end=True))
    await until(lambda: h2.rst_stream(1) + h2.settings() in wire.backend)
    wire.client.clear()
    answer = wire.answer(1, end=True)
    wire.splice.from_runtime(answer + h2.settings(ack=True))
    assert bytes(wire.client) == answer
    assert wire.log[1:] == [("answered", None)]


async def test_refused_when_the_runtime_has_begun_to_answer() -> None:
    wire = Wire(refuse)
    wire.splice.from_client(wire.call(1) + wire.data(1, MESSAGE, end=True))
    await until(lambda: h2.rst_stream(1) + h2.settings() in wire.backend)
    wire.client.clear()
    wire.splice.from_runtime(wire.answer(1) + h2.settings(ack=True))
    *_, (kind, flags, stream, block) = wire.to_client()
    assert (kind, flags & h2.END_STREAM, stream) == (h2.HEADERS, h2.END_STREAM, 1)
    assert _headers(block, Decoder()) == {"grpc-status": "2", "grpc-message": "no"}


async def test_refused_and_given_up() -> None:
    wire = Wire(refuse)
    wire.splice.from_client(wire.call(1) + wire.data(1, MESSAGE, end=True))
    await until(lambda: h2.rst_stream(1) + h2.settings() in wire.backend)
    wire.backend.clear()
    wire.client.clear()
    wire.splice.from_client(h2.rst_stream(1))
    wire.splice.from_runtime(h2.settings(ack=True))
    assert not wire.backend
    assert not wire.client
    assert wire.log[1:] == [("answered", None)]


async def test_a_reduced_header_table_is_announced() -> None:
    """The first block after that must announce it, also the splice's own; the runtime's blocks announce it
    themselves."""
    wire = Wire(refuse)
    wire.splice.from_client(h2.settings((h2.HEADER_TABLE_SIZE, 50)) + wire.call(1) + wire.data(1, MESSAGE, end=True))
    await until(lambda: h2.rst_stream(1) + h2.settings() in wire.backend)
    wire.splice.from_runtime(h2.settings(ack=True) * 2)
    *_, (_, _, _, block) = wire.to_client()
    assert block.startswith(b"\x3f\x13\x88")  # table size 50, then :status 200


@pytest.mark.parametrize("end", ["client", "runtime", "runtime-answers", "connection"])
async def test_calls_end_while_their_hook_runs(end: str) -> None:
    wire = Wire(never)
    headers = wire.call(1)
    wire.splice.from_client(headers + wire.data(1, MESSAGE, end=True))
    await until(lambda: wire.log)
    wire.client.clear()
    match end:
        case "client":
            wire.splice.from_client(h2.rst_stream(1))
            assert bytes(wire.backend) == headers + h2.rst_stream(1)
        case "runtime":
            wire.splice.from_runtime(h2.rst_stream(1, 7))
            assert h2.rst_stream(1, 7) in wire.client
        case "runtime-answers":
            answer = wire.answer(1, end=True)
            wire.splice.from_runtime(answer)
            assert answer in wire.client
            assert bytes(wire.backend) == headers + h2.rst_stream(1)  # it would wait for the rest of the request
        case "connection":
            wire.splice.close()
    await until(lambda: ("cancelled", None) in wire.log)
    assert wire.log == [("request", b"hello"), ("answered", None), ("cancelled", None)]
    assert wire.holding.held == 0


async def test_headers_of_an_intercepted_call_delay_no_other_frames() -> None:
    wire = Wire(never)
    first, second, other = wire.call(1), wire.call(3), wire.call(5, "/other")
    wire.splice.from_client(first + wire.data(1, MESSAGE, end=True))
    await until(lambda: wire.log)
    assert not wire.backend, "the runtime is not woken for headers alone"
    ping = h2.head(8, h2.PING, 0, 0) + b"12345678"
    wire.splice.from_client(second + wire.data(3, MESSAGE, end=True) + ping)
    assert bytes(wire.backend) == first + second + ping
    wire.backend.clear()
    wire.splice.from_client(other)
    assert bytes(wire.backend) == other
    wire.splice.close()


@pytest.mark.parametrize("stage", ["before", "half", "waiting"])
async def test_reset_at_other_times(stage: str) -> None:
    wire = Wire(same)
    wire.splice.from_client(wire.call(1))
    if stage == "half":
        wire.splice.from_client(wire.data(1, MESSAGE[:7]))
    if stage == "waiting":
        wire.splice.from_runtime(h2.settings((h2.INITIAL_WINDOW_SIZE, 0)))
        wire.splice.from_client(h2.settings(ack=True) + wire.data(1, MESSAGE))
        await until(lambda: wire.log)
        await settle()
        wire.splice.from_client(wire.data(1, b"more"))
    wire.client.clear()
    wire.splice.from_client(h2.rst_stream(1) + h2.rst_stream(1))
    assert bytes(wire.backend).endswith(h2.rst_stream(1) * 2)
    assert wire.log[-1] == ("answered", None)
    assert wire.holding.held == 0
    # bytes that the client had counted and the runtime never got are credited, and no debt remains
    lost = {"before": 0, "half": 7, "waiting": len(MESSAGE + b"more")}
    assert _credit(wire.to_client(), 0) == lost[stage]
    wire.splice.from_runtime(h2.window_update(0, 5))
    assert bytes(wire.client) == h2.window_update(0, 5)


async def test_trailers_wait_for_their_data() -> None:
    """No gRPC client sends any, but HTTP/2 allows them. Later frames wait with them, in order."""
    wire = Wire(same)
    wire.splice.from_runtime(h2.settings((h2.INITIAL_WINDOW_SIZE, 3)))
    wire.splice.from_client(h2.settings(ack=True) + wire.call(1) + wire.data(1, MESSAGE))
    await until(lambda: wire.log)
    await settle()
    later = wire.call(1, flags=h2.END_HEADERS | h2.END_STREAM) + wire.call(3, "/other")
    wire.splice.from_client(later[:30])
    wire.splice.from_client(later[30:] + wire.data(3, b"x"))
    assert wire.stalled == [True]
    wire.backend.clear()
    wire.splice.from_runtime(h2.window_update(1, 100))
    frames = wire.to_backend()
    assert [(kind, stream) for kind, _, stream, _ in frames] == [
        (h2.DATA, 1), (h2.HEADERS, 1), (h2.HEADERS, 3), (h2.DATA, 3),
    ]  # fmt: skip
    assert wire.stalled == [True, False]


async def test_trailers_while_a_hook_runs() -> None:
    gate = asyncio.Event()

    async def wait(body: bytes) -> bytes:
        await gate.wait()
        return body

    wire = Wire(wait)
    wire.splice.from_client(wire.call(1) + wire.data(1, MESSAGE))
    trailers = wire.call(1, flags=h2.END_HEADERS | h2.END_STREAM)
    wire.splice.from_client(trailers)
    wire.backend.clear()
    gate.set()
    await until(lambda: bytes(wire.backend) == wire.data(1, MESSAGE) + trailers)


async def test_trailers_instead_of_a_message() -> None:
    wire = Wire(same)
    sent = wire.call(1) + wire.data(1, b"\0\0") + wire.call(1, flags=h2.END_HEADERS | h2.END_STREAM)
    wire.splice.from_client(sent)
    assert bytes(wire.backend) == sent
    assert wire.log == [("passed", "incomplete")]


async def test_answers_in_pieces() -> None:
    wire = Wire(same)
    wire.splice.from_client(wire.call(1) + wire.data(1, MESSAGE, end=True))
    await until(lambda: wire.log)
    answer = pack(b"the answer", compressed=True)
    sent = wire.answer(1) + b"".join(wire.data(1, answer[at : at + 4]) for at in range(0, len(answer), 4))
    sent += wire.data(1, MESSAGE) + wire.answer(1, end=True)
    wire.client.clear()
    for at in range(0, len(sent), 11):
        wire.splice.from_client(b"")
        wire.splice.from_runtime(sent[at : at + 11])
    assert bytes(wire.client) == sent
    assert wire.log == [("request", b"hello"), ("answered", b"the answer")]


async def test_an_answer_that_cannot_be_read() -> None:
    wire = Wire(same)
    wire.splice.from_client(wire.call(1) + wire.data(1, MESSAGE, end=True))
    await until(lambda: wire.log)
    wire.splice.from_runtime(wire.answer(1) + wire.data(1, b"\x01\0\0\0\x03xyz") + wire.answer(1, end=True))
    assert wire.log == [("request", b"hello"), ("answered", None)]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(h2.head(16385, h2.DATA, 0, 1), id="too-long"),
        pytest.param(h2.head(2, h2.HEADERS, h2.END_HEADERS, 1) + b"\xff\xff", id="no-hpack"),
        pytest.param(h2.head(1, h2.HEADERS, h2.END_HEADERS, 1) + b"\xc8", id="no-such-entry"),
        pytest.param(h2.head(1, h2.SETTINGS, 0, 0) + b"x", id="settings"),
    ],
)
async def test_malformed(sent: bytes) -> None:
    with pytest.raises(FrameError):
        Wire(same).splice.from_client(sent)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(h2.head(16385, h2.DATA, 0, 1), id="too-long"),
        pytest.param(h2.head(3, h2.WINDOW_UPDATE, 0, 0) + b"xxx", id="window-update"),
        pytest.param(h2.head(0, h2.CONTINUATION, 0, 1), id="continuation"),
    ],
)
async def test_malformed_from_the_runtime(sent: bytes) -> None:
    with pytest.raises(FrameError):
        Wire(same).splice.from_runtime(sent)
