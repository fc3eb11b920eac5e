"""A gRPC client for concurrent unary calls over one unix connection.

It exists because each pod start waits for hook calls: a call costs a tenth of the time that the gRPC library takes and
needs no library thread, and a lost connection fails calls at once, whereas the library waits before it reconnects. It
implements only what unary calls need: answers are not compressed (compression is not offered), and there is no push and
no priority. Request headers do not use HPACK's dynamic table, so calls share no state.
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
from koordlet.app.http2.grpc import PREFIX_BYTES, GrpcStatus, pack, prefix
from koordlet.app.http2.headers import HeaderDecoder
from koordlet.app.http2.output import Output, Piece
from koordlet.app.http2.windows import Chunk, Sender

MAX_ANSWER_BYTES = 16 << 20
"""The limit between kubelet and runtimes."""
MAX_HEADER_BYTES = 1 << 16
_MAX_31_BITS = (1 << 31) - 1
_CREDIT_BYTES = 1 << 20
"""A WINDOW_UPDATE is sent each time this much was received."""
_REFUSED_STREAM = 0x7


class GrpcCallError(Exception):
    """The call failed; the text begins with the name of the gRPC status. `status` and `detail` are the server's, None
    and "" if it sent none."""

    def __init__(self, text: str, status: GrpcStatus | None = None, detail: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.detail = detail


class ConnectionLost(GrpcCallError):
    """There was no answer, and other calls on this connection may get none either."""


@dataclass(slots=True)
class _Call:
    answer: asyncio.Future[bytes]
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    timed_out: bool = False


class UnaryClient(asyncio.Protocol):
    """One connection; create it with `connect`."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._transport: asyncio.Transport | None = None
        self._splitter = Splitter()
        self._decoder = HeaderDecoder(MAX_HEADER_BYTES)
        self._output = Output(self._send)
        self._write = self._output.write
        self._sender = Sender(self._write, lambda stream, size: None)
        self._calls: dict[int, _Call] = {}
        self._next_stream = 1
        self._uncredited_bytes = 0
        self._closed_reason = ""
        """Why no new call can begin; empty while calls can."""

    @classmethod
    async def connect(cls, path: str, agent: str) -> UnaryClient:
        """`agent`: the user-agent header. Raises OSError."""
        _, client = await asyncio.get_running_loop().create_unix_connection(lambda: cls(agent), path)
        return client

    @property
    def closed(self) -> bool:
        """Whether no new call can begin."""
        return bool(self._closed_reason)

    async def call(self, method: str, request: bytes, seconds: float) -> bytes:
        """Call `/service/method` and return the answer's message. Raises GrpcCallError, at the latest after `seconds`.
        A call that times out or is cancelled is cancelled at the server, too."""
        stream = self._next_stream
        self._next_stream += 2
        if self._closed_reason or stream > _MAX_31_BITS:
            raise ConnectionLost(f"UNAVAILABLE: {self._closed_reason or 'the connection has no stream ids left'}")
        loop = asyncio.get_running_loop()
        call = self._calls[stream] = _Call(loop.create_future())
        block = _block(method, self._agent, seconds)
        self._write(h2.head(len(block), h2.HEADERS, h2.END_HEADERS, stream) + block)
        self._sender.follow(stream)
        body = memoryview(pack(request, compressed=False))
        self._sender.put(stream, Chunk(body, len(body), end=True, held=False))
        self._output.flush()
        timer = loop.call_later(seconds, _time_out, call, seconds)
        try:
            return await call.answer
        finally:
            timer.cancel()
            del self._calls[stream]
            if call.timed_out or call.answer.cancelled() or self._sender.waits(stream):
                self._write(h2.rst_stream(stream))
                self._output.flush()
            self._sender.forget(stream)

    async def close(self, grace: float) -> None:
        """Refuse new calls; close the connection when the running ones have ended, or after `grace` seconds."""
        self._closed_reason = self._closed_reason or "the connection is being closed"
        if self._calls:
            await asyncio.wait([call.answer for call in self._calls.values()], timeout=grace)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        settings = h2.settings((h2.INITIAL_WINDOW_SIZE, _MAX_31_BITS))
        self._write(h2.PREFACE + settings + h2.window_update(0, _MAX_31_BITS - 65535))
        self._output.flush()

    def data_received(self, data: bytes) -> None:
        try:
            data, units = self._splitter.feed(data)
            for frame in units:
                self._on_frame(data, frame)
            self._output.flush()
        except (FrameError, HPACKError, ValueError) as error:
            self._abort(f"invalid answer: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._abort("the server closed the connection" + (f": {exc}" if exc else ""))

    def _on_frame(self, data: bytes, frame: Frame) -> None:
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
                last = int.from_bytes(data[frame.start + h2.HEAD_BYTES :][:4]) & _MAX_31_BITS
                self._closed_reason = "the server is shutting down"
                self._fail(unprocessed for stream, unprocessed in self._calls.items() if stream > last)
            case h2.RST_STREAM if call is not None:
                code = h2.number(data, frame)
                kind = ConnectionLost if code == _REFUSED_STREAM else GrpcCallError
                _end(call, kind(f"UNAVAILABLE: the call was reset with code {code}"))
            case h2.DATA:
                self._credit(frame.length)
                if call is not None:
                    start, end = h2.payload(data, frame)
                    call.body += data[start:end]
            case h2.HEADERS:  # decoded for abandoned calls, too, since the HPACK table belongs to the connection
                headers = self._decoder.decode(h2.header_block(data, frame))
                if call is not None:
                    call.headers.update(headers)
        if call is not None and frame.kind in (h2.DATA, h2.HEADERS):
            if frame.flags & h2.END_STREAM:
                _finish(call)
            elif len(call.body) > MAX_ANSWER_BYTES + PREFIX_BYTES:
                self._write(h2.rst_stream(frame.stream))
                _end(call, GrpcCallError(f"RESOURCE_EXHAUSTED: an answer of more than {MAX_ANSWER_BYTES} bytes"))

    def _credit(self, size: int) -> None:
        self._uncredited_bytes += size
        if self._uncredited_bytes >= _CREDIT_BYTES:
            self._write(h2.window_update(0, self._uncredited_bytes))
            self._uncredited_bytes = 0

    def _abort(self, reason: str) -> None:
        self._closed_reason = self._closed_reason or reason
        self._fail(self._calls.values())
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, calls: Iterable[_Call]) -> None:
        for call in list(calls):
            _end(call, ConnectionLost(f"UNAVAILABLE: {self._closed_reason}"))

    def _send(self, pieces: list[Piece]) -> None:
        """One write per loop iteration, since each write is a system call and wakes the server."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)


def _finish(call: _Call) -> None:
    status = call.headers.get(b"grpc-status", b"")
    if status == b"0":
        if len(call.body) < PREFIX_BYTES or prefix(call.body) != (False, len(call.body) - PREFIX_BYTES):
            _end(call, GrpcCallError("INTERNAL: the answer is not one message"))
        elif not call.answer.done():
            call.answer.set_result(bytes(memoryview(call.body)[PREFIX_BYTES:]))
        return
    text = unquote_to_bytes(call.headers.get(b"grpc-message", b"")).decode(errors="replace")
    if status.isdigit() and int(status) < len(GrpcStatus):
        known = GrpcStatus(int(status))
        _end(call, GrpcCallError(f"{known.name}: {text}", known, text))
    else:
        http = call.headers.get(b":status", b"").decode(errors="replace")
        _end(
            call, GrpcCallError(f"UNKNOWN: HTTP status {http}, gRPC status {status.decode(errors='replace')!r}: {text}")
        )


def _time_out(call: _Call, seconds: float) -> None:
    if not call.answer.done():
        call.timed_out = True
        call.answer.set_exception(ConnectionLost(f"DEADLINE_EXCEEDED: no answer within {seconds:.3g} s"))


def _end(call: _Call, error: GrpcCallError) -> None:
    if not call.answer.done():
        call.answer.set_exception(error)


def _block(method: str, agent: str, seconds: float) -> bytes:
    """A call's header block: static table and literals without indexing (RFC 7541 §6.2.2)."""
    timeout = b"%dm" % min(max(1, round(seconds * 1000)), 99_999_999)
    path = _text(method.encode())
    user_agent = b"\x0f\x2b" + _text(agent.encode())
    return b"\x83\x86\x04" + path + _REST + user_agent + b"\x00" + _text(b"grpc-timeout") + _text(timeout)


def _text(value: bytes) -> bytes:
    assert len(value) < 127
    return bytes((len(value),)) + value


_REST = b"".join(
    (
        b"\x01" + _text(b"localhost"),  # :authority, which a socket's path cannot be
        b"\x00" + _text(b"te") + _text(b"trailers"),
        b"\x0f\x10" + _text(b"application/grpc"),  # content-type
    )
)
