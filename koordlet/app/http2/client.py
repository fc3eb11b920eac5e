"""A gRPC client for unary calls over one unix connection, many at a time, on the frames of this package.

Made for hooks, which stand in the way of every pod: a call costs a tenth of what gRPC's library takes for it, needs no
thread of that library's, and a client that lost its connection says so at once instead of waiting before it tries
again. It knows what a server of gRPC may do with unary calls, no more: answers are not compressed (none is offered),
push and priorities do not come up. Request headers are written out without HPACK's table, so that calls share no state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote_to_bytes

from hpack import HPACKError

from koordlet.app.http2 import frames as h2
from koordlet.app.http2.frames import Frame, FrameError, Splitter
from koordlet.app.http2.grpc import PREFIX_BYTES, Status, pack, prefix
from koordlet.app.http2.headers import HeaderDecoder
from koordlet.app.http2.output import Output, Piece
from koordlet.app.http2.windows import Chunk, Sender

MAX_ANSWER = 16 << 20
"""Bytes, as kubelet and runtimes allow each other."""
MAX_HEADERS = 1 << 16
_MOST = (1 << 31) - 1
_CREDIT = 1 << 20
"""Bytes received after which the server is given as much credit back."""
_REFUSED_STREAM = 0x7


class CallError(Exception):
    """The call did not end well; the text begins with gRPC's name of the status. `status` and `detail` are the server's
    own; None and "" when it said none."""

    def __init__(self, text: str, status: Status | None = None, detail: str = "") -> None:
        super().__init__(text)
        self.status, self.detail = status, detail


class ConnectionLost(CallError):
    """It got no answer, and nothing says that another call on this connection would."""


@dataclass(slots=True)
class _Call:
    answer: asyncio.Future[bytes]
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    late: bool = False


class Client(asyncio.Protocol):
    """One connection; `connect` makes it."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._transport: asyncio.Transport | None = None
        self._splitter, self._decoder = Splitter(), HeaderDecoder(MAX_HEADERS)
        self._output = Output(self._send)
        self._write = self._output.write
        self._sender = Sender(self._write, lambda stream, size: None)
        self._calls: dict[int, _Call] = {}
        self._next = 1
        self._received = 0
        self._gone = ""
        """Why no call can begin any more."""

    @classmethod
    async def connect(cls, path: str, agent: str) -> Client:
        """`agent`: who calls, as servers are told. Raises OSError."""
        _, client = await asyncio.get_running_loop().create_unix_connection(lambda: cls(agent), path)
        return client

    @property
    def gone(self) -> bool:
        """Whether no call can begin any more."""
        return bool(self._gone)

    async def call(self, method: str, request: bytes, seconds: float) -> bytes:
        """The answer's message to `/service/method`. Raises CallError, in time; a call that is cancelled, or is not
        answered in time, is cancelled at the server too."""
        stream, self._next = self._next, self._next + 2
        if self._gone or stream > _MOST:
            raise ConnectionLost(f"UNAVAILABLE: {self._gone or 'the connection is used up'}")
        loop = asyncio.get_running_loop()
        call = self._calls[stream] = _Call(loop.create_future())
        block = _block(method, self._agent, seconds)
        self._write(h2.head(len(block), h2.HEADERS, h2.END_HEADERS, stream) + block)
        self._sender.follow(stream)
        body = memoryview(pack(request, compressed=False))
        self._sender.put(stream, Chunk(body, len(body), end=True, held=False))
        self._output.flush()
        timer = loop.call_later(seconds, _late, call, seconds)
        try:
            return await call.answer
        finally:
            timer.cancel()
            del self._calls[stream]
            if call.late or call.answer.cancelled() or self._sender.waits(stream):
                self._write(h2.rst_stream(stream))
                self._output.flush()
            self._sender.forget(stream)

    async def close(self, grace: float) -> None:
        """Begin no calls; end when those under way have, or after `grace` seconds."""
        self._gone = self._gone or "the connection is being closed"
        if self._calls:
            await asyncio.wait([call.answer for call in self._calls.values()], timeout=grace)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._write(h2.PREFACE + h2.settings((h2.INITIAL_WINDOW_SIZE, _MOST)) + h2.window_update(0, _MOST - 65535))
        self._output.flush()

    def data_received(self, data: bytes) -> None:
        try:
            data, units = self._splitter.feed(data)
            for frame in units:
                self._take(data, frame)
            self._output.flush()
        except (FrameError, HPACKError, ValueError) as error:
            self._lose(f"the answer can't be read: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("the server closed the connection" + (f": {exc}" if exc else ""))

    def _take(self, data: bytes, frame: Frame) -> None:
        call = self._calls.get(frame.stream)
        match frame.kind:
            case h2.SETTINGS if not frame.flags & h2.ACK:
                for name, value in h2.settings_in(data, frame):
                    if name == h2.INITIAL_WINDOW_SIZE:
                        self._sender.set_initial(value)
                self._write(h2.settings(ack=True))
            case h2.PING if not frame.flags & h2.ACK:
                self._write(h2.head(8, h2.PING, h2.ACK, 0) + data[frame.end - 8 : frame.end])
            case h2.WINDOW_UPDATE:
                self._sender.credit(frame.stream, h2.number(data, frame))
            case h2.GOAWAY:
                last = int.from_bytes(data[frame.start + h2.HEAD_BYTES :][:4]) & _MOST
                self._gone = "the server goes away"
                self._fail(one for stream, one in self._calls.items() if stream > last)
            case h2.RST_STREAM if call is not None:
                code = h2.number(data, frame)
                kind = ConnectionLost if code == _REFUSED_STREAM else CallError
                _end(call, kind(f"UNAVAILABLE: the call was reset with code {code}"))
            case h2.DATA:
                self._credit(frame.length)
                if call is not None:
                    start, end = h2.payload(data, frame)
                    call.body += data[start:end]
            case h2.HEADERS:  # also those of calls given up: the table is of the connection
                headers = self._decoder.decode(h2.header_block(data, frame))
                if call is not None:
                    call.headers.update(headers)
        if call is not None and frame.kind in (h2.DATA, h2.HEADERS):
            if frame.flags & h2.END_STREAM:
                _finish(call)
            elif len(call.body) > MAX_ANSWER + PREFIX_BYTES:
                self._write(h2.rst_stream(frame.stream))
                _end(call, CallError(f"RESOURCE_EXHAUSTED: an answer of more than {MAX_ANSWER} bytes"))

    def _credit(self, size: int) -> None:
        self._received += size
        if self._received >= _CREDIT:
            self._write(h2.window_update(0, self._received))
            self._received = 0

    def _lose(self, why: str) -> None:
        self._gone = self._gone or why
        self._fail(self._calls.values())
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, calls: Iterable[_Call]) -> None:
        for call in list(calls):
            _end(call, ConnectionLost(f"UNAVAILABLE: {self._gone}"))

    def _send(self, pieces: list[Piece]) -> None:
        """All of a turn at once: each write would be a system call and wake the server."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)


def _finish(call: _Call) -> None:
    status = call.headers.get(b"grpc-status", b"")
    if status == b"0":
        if len(call.body) < PREFIX_BYTES or prefix(call.body) != (False, len(call.body) - PREFIX_BYTES):
            _end(call, CallError("INTERNAL: the answer is not one message"))
        elif not call.answer.done():
            call.answer.set_result(bytes(memoryview(call.body)[PREFIX_BYTES:]))
        return
    text = unquote_to_bytes(call.headers.get(b"grpc-message", b"")).decode(errors="replace")
    if status.isdigit() and int(status) < len(Status):
        known = Status(int(status))
        _end(call, CallError(f"{known.name}: {text}", known, text))
    else:
        http = call.headers.get(b":status", b"").decode(errors="replace")
        _end(call, CallError(f"UNKNOWN: HTTP status {http}, gRPC status {status.decode(errors='replace')!r}: {text}"))


def _late(call: _Call, seconds: float) -> None:
    if not call.answer.done():
        call.late = True
        call.answer.set_exception(ConnectionLost(f"DEADLINE_EXCEEDED: no answer within {seconds:.3g} s"))


def _end(call: _Call, error: CallError) -> None:
    if not call.answer.done():
        call.answer.set_exception(error)


def _block(method: str, agent: str, seconds: float) -> bytes:
    """A call's header block: static table and literals that nobody remembers (RFC 7541 §6.2.2)."""
    timeout = b"%dm" % min(max(1, round(seconds * 1000)), 99_999_999)
    path, who = _text(method.encode()), b"\x0f\x2b" + _text(agent.encode())
    return b"\x83\x86\x04" + path + _REST + who + b"\x00" + _text(b"grpc-timeout") + _text(timeout)


def _text(value: bytes) -> bytes:
    assert len(value) < 127
    return bytes((len(value),)) + value


_REST = b"".join(
    (
        b"\x01" + _text(b"localhost"),  # :authority; a socket's path is none
        b"\x00" + _text(b"te") + _text(b"trailers"),
        b"\x0f\x10" + _text(b"application/grpc"),  # content-type
    )
)
