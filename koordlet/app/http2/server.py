"""A gRPC server, foremost for unary calls, on a unix socket, on the process's own loop.

Made for hooks, which stand in the way of every pod: gRPC's library serves from a thread of its own, and each of the
hops between it and the loop waits for the interpreter's lock; on a busy node that is most of a call. Any client of gRPC
is served: deadlines, cancellation, gzip and flow control are kept; push and priorities are not known, and of streaming
calls only those in which each message has one answer at once (`Stream`, made for reflection).
One `GrpcServer` has its methods and limits; each of its connections is a `Connection`.

Bounds: a message's and all requests' bytes, calls at once, a header list's bytes; nothing is read from a client that
does not take its answers.
"""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from hpack import HPACKError

from koordlet.app.http2 import frames as h2
from koordlet.app.http2.frames import Frame, FrameError, Splitter
from koordlet.app.http2.grpc import (
    PREFIX_BYTES,
    BodyError,
    GrpcStatus,
    answer_head,
    answer_tail,
    pack,
    prefix,
    refusal,
    timeout_seconds,
    unpack,
)
from koordlet.app.http2.headers import HeaderDecoder
from koordlet.app.http2.output import Output, Piece
from koordlet.app.http2.windows import Chunk, Sender
from koordlet.app.logging import get_logger

log = get_logger(__name__)

MAX_HEADERS = 1 << 16
BACKLOG = 128
LINGER_SECONDS = 1.0
"""A client has this long to take its last answers when the server stops."""
_MOST = (1 << 31) - 1
_WINDOW = 4 << 20
"""Bytes that one connection may have under way; what arrives is credited at half of it."""
_MAX_CONCURRENT_STREAMS, _MAX_HEADER_LIST_SIZE = 0x3, 0x6
_NO_ERROR, _PROTOCOL_ERROR, _REFUSED_STREAM = 0x0, 0x1, 0x7


class CallRefused(Exception):
    """A method's answer that is a status: the text is the caller's to read."""

    def __init__(self, text: str, status: GrpcStatus = GrpcStatus.INTERNAL) -> None:
        super().__init__(text)
        self.status = status


Method = Callable[[bytes, float | None], Awaitable[bytes]]
"""A request's message, and the seconds that its caller has left (None: not said), to the answer's message. Raises
CallRefused; is cancelled when its caller gives up, or has no time left."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A method that answers each message of a stream as it comes."""

    answer: Callable[[bytes], bytes]
    """Raises CallRefused, which ends the stream, and nothing else."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Of one server."""

    message: int = 16 << 20
    """Bytes of one request, unpacked too."""
    held: int = 64 << 20
    """Bytes of all requests that are being received."""
    calls: int = 1024


@dataclass(slots=True)
class _Call:
    stream: int
    method: Method | Stream
    encoding: bytes | None
    deadline: float | None
    """On the loop's clock."""
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    """The client has sent all of it."""
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    tail: bytes = b""
    """What is to follow an answer's DATA that waits for the client's windows."""


class GrpcServer:
    """`methods` by their paths, `/service/method`."""

    def __init__(self, methods: Mapping[str, Method | Stream], limits: ServerLimits | None = None) -> None:
        self.methods = {path.encode(): method for path, method in methods.items()}
        self.limits = limits or ServerLimits()
        self.held = 0
        self.connections: set[Connection] = set()
        self.stopping = False
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self, path: Path, mode: int = 0o600) -> None:
        """Listen at `path`, where nothing is yet. Raises OSError."""
        listening = _bound(path, mode)
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Connection(self), sock=listening, backlog=BACKLOG)
        except BaseException:
            listening.close()
            raise

    async def stop(self, grace: float) -> None:
        """Take no more calls; those that run get `grace` seconds. The socket's file is the caller's to remove."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for connection in self.connections:
            connection.last_word()
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            log.warning("stopping with calls under way", calls=self._calls)
        ending = [connection.lost for connection in self.connections]
        for connection in list(self.connections):
            connection.close()
        if ending:
            await asyncio.wait(ending, timeout=LINGER_SECONDS)
        for connection in list(self.connections):
            connection.abort()

    def begin(self) -> bool:
        """Count a call, if there may be one more."""
        if self._calls >= self.limits.calls:
            return False
        self._calls += 1
        self._idle.clear()
        return True

    def end(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._idle.set()


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._first = b""
        self._greeted = self._agreed = False
        self._splitter, self._decoder = Splitter(), HeaderDecoder(MAX_HEADERS)
        self._output = Output(self._send)
        self._write = self._output.write
        self._sender = Sender(self._write, lambda stream, size: None)
        self._calls: dict[int, _Call] = {}
        self._last = 0
        self._received = 0

    # Socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._server.connections.add(self)
        self._write(
            h2.settings(
                (_MAX_CONCURRENT_STREAMS, self._server.limits.calls),
                (h2.INITIAL_WINDOW_SIZE, _MOST),
                (_MAX_HEADER_LIST_SIZE, MAX_HEADERS),
            )
            + h2.window_update(0, _WINDOW - 65535)
        )
        self._output.flush()
        if self._server.stopping:
            self.close()

    def data_received(self, data: bytes) -> None:
        if not self._greeted:
            data = self._first + data
            if not data.startswith(h2.PREFACE):
                self._first = data
                if not h2.PREFACE.startswith(data):
                    self._malformed("no HTTP/2")
                return
            self._greeted, self._first, data = True, b"", data[len(h2.PREFACE) :]
        try:
            data, units = self._splitter.feed(data)
            for frame in units:
                self._take(data, frame)
        except (FrameError, HPACKError) as error:
            self._malformed(str(error))
            return
        self._output.flush()

    def pause_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_calls()
        self._server.connections.discard(self)
        if not self.lost.done():
            self.lost.set_result(None)

    def last_word(self) -> None:
        """Ask the client to open no more calls here; those that are open go on."""
        self._write(h2.goaway(self._last))
        for call in [call for call in self._calls.values() if isinstance(call.method, Stream)]:
            self._fail(call, GrpcStatus.UNAVAILABLE, "the server stops")
        self._output.flush()

    def close(self) -> None:
        """Give up what runs, send what is written."""
        self._drop_calls()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _drop_calls(self) -> None:
        for call in list(self._calls.values()):
            self._forget(call)

    def _malformed(self, why: str) -> None:
        log.once("malformed", "closing a gRPC connection for what came over it", error=why)
        if self._greeted:
            self._write(h2.goaway(self._last, _PROTOCOL_ERROR))
        self._output.flush()
        self.close()

    def _send(self, pieces: list[Piece]) -> None:
        """All of a turn at once: each write would be a system call and wake the client."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)

    # Frames

    def _take(self, data: bytes, frame: Frame) -> None:
        kind = frame.kind
        if not self._agreed:
            if kind != h2.SETTINGS or frame.flags & h2.ACK:
                raise FrameError("the first frame is no SETTINGS")
            self._agreed = True
        if kind == h2.HEADERS:
            self._headers(data, frame)
        elif kind == h2.DATA:
            self._data(data, frame)
        elif kind == h2.WINDOW_UPDATE:
            self._credited(frame.stream, h2.number(data, frame))
        elif kind == h2.RST_STREAM:
            h2.number(data, frame)
            if (call := self._known(frame.stream)) is not None:
                self._forget(call)
        elif kind == h2.SETTINGS:
            if not frame.flags & h2.ACK:
                self._settings(data, frame)
        elif kind == h2.PING:
            if frame.length != 8 or frame.stream:
                raise FrameError(f"PING of {frame.length} bytes on stream {frame.stream}")
            if not frame.flags & h2.ACK:
                self._write(h2.head(8, h2.PING, h2.ACK, 0) + data[frame.end - 8 : frame.end])
        elif kind == h2.PUSH_PROMISE:
            raise FrameError("PUSH_PROMISE of a client")

    def _known(self, stream: int) -> _Call | None:
        """The call of a stream; None when it is over. FrameError when there never was one."""
        if not 0 < stream <= self._last or not stream & 1:
            raise FrameError(f"stream {stream} was not opened")
        return self._calls.get(stream)

    def _headers(self, data: bytes, frame: Frame) -> None:
        headers = self._decoder.decode(h2.header_block(data, frame))
        stream, over = frame.stream, bool(frame.flags & h2.END_STREAM)
        if stream > self._last and stream & 1:
            self._last = stream
            self._open(stream, dict(headers), over)
        elif (call := self._known(stream)) is not None:  # trailers
            if not over or call.ended:
                raise FrameError("headers in the middle of a request")
            self._asked(call)

    def _open(self, stream: int, headers: dict[bytes, bytes], over: bool) -> None:
        if self._server.stopping:
            self._write(h2.rst_stream(stream, _REFUSED_STREAM))
            return
        method = self._server.methods.get(headers.get(b":path", b""))
        timeout = headers.get(b"grpc-timeout")
        seconds = None if timeout is None else timeout_seconds(timeout)
        if headers.get(b":method") != b"POST" or not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self._refuse(stream, GrpcStatus.UNKNOWN, "not a call of gRPC", over)
        elif method is None:
            self._refuse(stream, GrpcStatus.UNIMPLEMENTED, "no such method", over)
        elif timeout is not None and seconds is None:
            self._refuse(stream, GrpcStatus.INTERNAL, "malformed grpc-timeout", over)
        elif not self._server.begin():
            self._refuse(stream, GrpcStatus.RESOURCE_EXHAUSTED, "too many calls at once", over)
        else:
            deadline = None if seconds is None else self._loop.time() + seconds
            call = _Call(stream, method, headers.get(b"grpc-encoding"), deadline)
            self._calls[stream] = call
            self._sender.follow(stream)
            if isinstance(method, Stream):
                self._write(answer_head(stream))
            if deadline is not None:
                call.timer = self._loop.call_at(deadline, self._expired, call)
            if over:
                self._asked(call)

    def _data(self, data: bytes, frame: Frame) -> None:
        self._received += frame.length
        if self._received >= _WINDOW // 2:
            self._write(h2.window_update(0, self._received))
            self._received = 0
        call = self._known(frame.stream)
        if call is None:
            return
        if call.ended:
            raise FrameError("DATA behind the end of a request")
        start, end = h2.payload(data, frame)
        body, limits = call.body, self._server.limits
        body += data[start:end]
        self._server.held += end - start
        size = prefix(body)[1] if len(body) >= PREFIX_BYTES else 0
        if size > limits.message:
            text = f"a message of {size} bytes where {limits.message} are allowed"
            self._fail(call, GrpcStatus.RESOURCE_EXHAUSTED, text)
        elif len(body) > PREFIX_BYTES + size and not isinstance(call.method, Stream):
            self._fail(call, GrpcStatus.INTERNAL, "more than one message")
        elif self._server.held > limits.held:
            self._fail(call, GrpcStatus.RESOURCE_EXHAUSTED, "too much is being received at once")
        elif frame.flags & h2.END_STREAM:
            self._asked(call)
        elif isinstance(call.method, Stream):
            self._answer_each(call, call.method)

    def _credited(self, stream: int, more: int) -> None:
        if stream and self._known(stream) is None:
            return
        window = self._sender.window(stream) if stream else self._sender.connection
        if not more or window.room + more > _MOST:
            raise FrameError(f"WINDOW_UPDATE of {more} to {window.room}")
        self._sender.credit(stream, more)
        self._finish_sent()

    def _settings(self, data: bytes, frame: Frame) -> None:
        for name, value in h2.settings_in(data, frame):
            if name == h2.INITIAL_WINDOW_SIZE:
                if value > _MOST:
                    raise FrameError(f"INITIAL_WINDOW_SIZE of {value}")
                self._sender.set_initial(value)
        self._write(h2.settings(ack=True))
        self._finish_sent()

    # Calls

    def _asked(self, call: _Call) -> None:
        """The request is whole."""
        call.ended = True
        body, method = call.body, call.method
        if isinstance(method, Stream):
            self._answer_each(call, method, last=True)
        elif len(body) < PREFIX_BYTES or prefix(body)[1] != len(body) - PREFIX_BYTES:
            self._fail(call, GrpcStatus.INTERNAL, "the request is not one message")
        elif (message := self._unpacked(call, bytes(body))) is not None:
            self._server.held -= len(body)
            call.body = bytearray()
            call.task = self._loop.create_task(self._run(call, method, message))

    def _unpacked(self, call: _Call, message: bytes) -> bytes | None:
        """None: it can't be, and the call has failed."""
        try:
            return unpack(message, call.encoding or b"identity", self._server.limits.message)
        except BodyError as error:
            known = call.encoding in (None, b"gzip", b"identity")
            self._fail(call, GrpcStatus.INTERNAL if known else GrpcStatus.UNIMPLEMENTED, str(error))
            return None

    def _answer_each(self, call: _Call, stream: Stream, *, last: bool = False) -> None:
        """Answer what has come whole. A client that asks on while answers wait for its window is refused."""
        body = call.body
        while len(body) >= PREFIX_BYTES and len(body) >= (end := PREFIX_BYTES + prefix(body)[1]):
            if self._sender.waits(call.stream):
                self._fail(call, GrpcStatus.RESOURCE_EXHAUSTED, "answers that were asked for are not taken")
                return
            message = self._unpacked(call, bytes(body[:end]))
            if message is None:
                return
            try:
                answer = stream.answer(message)
            except CallRefused as refused:
                self._fail(call, refused.status, str(refused))
                return
            del body[:end]
            self._server.held -= end
            self._put(call, answer)
        if last and body:
            self._fail(call, GrpcStatus.INTERNAL, "the last message is cut off")
        elif last:
            call.tail = answer_tail(call.stream)
            self._finish(call)

    async def _run(self, call: _Call, method: Method, message: bytes) -> None:
        left = None if call.deadline is None else max(0.0, call.deadline - self._loop.time())
        try:
            answer = await method(message, left)
        except CallRefused as refused:
            self._fail(call, refused.status, str(refused))
        except Exception as error:  # ours; the caller is told by a status, as by any gRPC server
            log.exception("call failed", error=repr(error))
            self._fail(call, GrpcStatus.UNKNOWN, repr(error))
        else:
            self._answer(call, answer)
        self._output.flush()

    def _answer(self, call: _Call, answer: bytes) -> None:
        stream = call.stream
        if self._calls.get(stream) is not call:
            return
        self._write(answer_head(stream))
        self._put(call, answer)
        call.tail = answer_tail(stream)
        self._finish(call)

    def _put(self, call: _Call, answer: bytes) -> None:
        data = memoryview(pack(answer, compressed=False))
        self._sender.put(call.stream, Chunk(data, len(data), end=False, held=False))

    def _finish_sent(self) -> None:
        for call in [call for call in self._calls.values() if call.tail]:
            self._finish(call)

    def _finish(self, call: _Call) -> None:
        """End the answer once all of it is sent."""
        if not self._sender.waits(call.stream):
            self._write(call.tail)
            self._forget(call)

    def _expired(self, call: _Call) -> None:
        if call.tail:  # it is the client that does not take the answer
            self._write(h2.rst_stream(call.stream))
            self._forget(call)
        else:
            self._fail(call, GrpcStatus.DEADLINE_EXCEEDED, "no answer in time")
        self._output.flush()

    def _fail(self, call: _Call, status: GrpcStatus, text: str) -> None:
        if self._calls.get(call.stream) is call:
            self._refuse(call.stream, status, text, call.ended, begun=isinstance(call.method, Stream))
            self._forget(call)

    def _refuse(self, stream: int, status: GrpcStatus, text: str, over: bool, *, begun: bool = False) -> None:
        """`over`: the client has sent all; else it is asked to stop. `begun`: it has the answer's head."""
        self._write(refusal(stream, status, text, begun=begun))
        if not over:
            self._write(h2.rst_stream(stream, _NO_ERROR))

    def _forget(self, call: _Call) -> None:
        """The call is over, whoever ended it."""
        del self._calls[call.stream]
        self._server.held -= len(call.body)
        self._sender.forget(call.stream)
        if call.timer is not None:
            call.timer.cancel()
        if call.task is not None and call.task is not asyncio.current_task(self._loop):
            call.task.cancel()
        self._server.end()


def remove_socket(path: Path) -> None:
    """Make way for a server: take away a socket that an earlier process left. Raises FileExistsError when there is
    something else, OSError when it can't be removed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError("there is something that is not a socket")
    path.unlink()


def _bound(path: Path, mode: int) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        bound.bind(str(path))
        path.chmod(mode)  # before anybody can connect
    except BaseException:
        bound.close()
        raise
    return bound
