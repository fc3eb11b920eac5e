"""A gRPC server for unary calls on a unix socket, in the process's event loop.

It exists because each pod start waits for hook calls: the gRPC library serves from its own thread, and each switch
between that thread and the loop waits for the interpreter lock, which on a busy node is most of a call's time. All gRPC
clients are served: deadlines, cancellation, gzip and flow control are implemented. Push and priorities are not, and of
streaming calls only those in which each message has exactly one immediate answer (`Stream`, for reflection).
A `GrpcServer` has methods and limits; each of its connections is a `Connection`.

Bounded are the bytes of a message, of all requests and of a header list, and the number of concurrent calls. Nothing is
read from a client that does not read its answers.
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

MAX_HEADER_BYTES = 1 << 16
BACKLOG = 128
LINGER_S = 1.0
"""Time for clients to read their last answers when the server stops."""
_MAX_31_BITS = (1 << 31) - 1
_WINDOW_BYTES = 4 << 20
"""Receive window of a connection; a WINDOW_UPDATE is sent each time half of it was received."""
_MAX_CONCURRENT_STREAMS, _MAX_HEADER_LIST_SIZE = 0x3, 0x6
_NO_ERROR, _PROTOCOL_ERROR, _REFUSED_STREAM = 0x0, 0x1, 0x7


class CallRefused(Exception):
    """Raised by a method to answer with an error status; the text is sent to the caller."""

    def __init__(self, text: str, status: GrpcStatus = GrpcStatus.INTERNAL) -> None:
        super().__init__(text)
        self.status = status


Method = Callable[[bytes, float | None], Awaitable[bytes]]
"""(request message, seconds until the caller's deadline or None) -> answer message. Raises CallRefused; is cancelled
when the caller cancels or its deadline passes."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A method that answers each message of a stream immediately."""

    answer: Callable[[bytes], bytes]
    """Raises only CallRefused, which ends the stream."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one server."""

    message: int = 16 << 20
    """Bytes of one request, compressed and decompressed."""
    held: int = 64 << 20
    """Bytes of all requests that are being received."""
    calls: int = 1024
    """Concurrent calls."""


@dataclass(slots=True)
class _Call:
    stream: int
    method: Method | Stream
    encoding: bytes | None
    deadline: float | None
    """On the loop's clock."""
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    """Whether the client has sent the whole request."""
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    tail: bytes = b""
    """Bytes to send after the answer's DATA, which may wait for the client's windows."""


class GrpcServer:
    """`methods` by path, `/service/method`."""

    def __init__(self, methods: Mapping[str, Method | Stream], limits: ServerLimits | None = None) -> None:
        self.methods = {path.encode(): method for path, method in methods.items()}
        self.limits = limits or ServerLimits()
        self.held = 0
        """Bytes of all requests that are being received."""
        self.connections: set[Connection] = set()
        self.stopping = False
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self, path: Path) -> None:
        """Listen at `path`, which must not exist. Raises OSError."""
        listening = _bind(path)
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Connection(self), sock=listening, backlog=BACKLOG)
        except BaseException:
            listening.close()
            raise

    async def stop(self, grace: float) -> None:
        """Refuse new calls; running ones get `grace` seconds. The caller removes the socket file."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        for connection in self.connections:
            connection.go_away()
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            log.warning("Stopping while calls are running", calls=self._calls)
        closing = [connection.lost for connection in self.connections]
        for connection in list(self.connections):
            connection.close()
        if closing:
            await asyncio.wait(closing, timeout=LINGER_S)
        for connection in list(self.connections):
            connection.abort()

    def begin(self) -> bool:
        """Count a call, unless the limit is reached."""
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
    """The connection of one client."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._partial_preface = b""
        self._got_preface = False
        self._got_settings = False
        self._splitter = Splitter()
        self._decoder = HeaderDecoder(MAX_HEADER_BYTES)
        self._output = Output(self._send)
        self._write = self._output.write
        self._sender = Sender(self._write, lambda stream, size: None)
        self._calls: dict[int, _Call] = {}
        self._last_stream = 0
        self._uncredited_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._server.connections.add(self)
        self._write(
            h2.settings(
                (_MAX_CONCURRENT_STREAMS, self._server.limits.calls),
                (h2.INITIAL_WINDOW_SIZE, _MAX_31_BITS),
                (_MAX_HEADER_LIST_SIZE, MAX_HEADER_BYTES),
            )
            + h2.window_update(0, _WINDOW_BYTES - 65535)
        )
        self._output.flush()
        if self._server.stopping:
            self.close()

    def data_received(self, data: bytes) -> None:
        if not self._got_preface:
            data = self._partial_preface + data
            if not data.startswith(h2.PREFACE):
                self._partial_preface = data
                if not h2.PREFACE.startswith(data):
                    self._malformed("not HTTP/2")
                return
            self._got_preface = True
            self._partial_preface = b""
            data = data[len(h2.PREFACE) :]
        try:
            data, units = self._splitter.feed(data)
            for frame in units:
                self._on_frame(data, frame)
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

    def go_away(self) -> None:
        """Send GOAWAY, so that the client opens no more calls; running unary calls continue."""
        self._write(h2.goaway(self._last_stream))
        for call in [call for call in self._calls.values() if isinstance(call.method, Stream)]:
            self._fail(call, GrpcStatus.UNAVAILABLE, "the server stops")
        self._output.flush()

    def close(self) -> None:
        """Cancel running calls and close the connection after sending buffered output."""
        self._drop_calls()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _drop_calls(self) -> None:
        for call in list(self._calls.values()):
            self._remove(call)

    def _malformed(self, reason: str) -> None:
        log.once("malformed", "Closing a gRPC connection after a protocol error", error=reason)
        if self._got_preface:
            self._write(h2.goaway(self._last_stream, _PROTOCOL_ERROR))
        self._output.flush()
        self.close()

    def _send(self, pieces: list[Piece]) -> None:
        """One write per loop iteration, since each write is a system call and wakes the client."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)

    def _on_frame(self, data: bytes, frame: Frame) -> None:
        kind = frame.kind
        if not self._got_settings:
            if kind != h2.SETTINGS or frame.flags & h2.ACK:
                raise FrameError("the first frame is not SETTINGS")
            self._got_settings = True
        if kind == h2.HEADERS:
            self._on_headers(data, frame)
        elif kind == h2.DATA:
            self._on_data(data, frame)
        elif kind == h2.WINDOW_UPDATE:
            self._on_window_update(frame.stream, h2.number(data, frame))
        elif kind == h2.RST_STREAM:
            h2.number(data, frame)
            if (call := self._call_of(frame.stream)) is not None:
                self._remove(call)
        elif kind == h2.SETTINGS:
            if not frame.flags & h2.ACK:
                self._on_settings(data, frame)
        elif kind == h2.PING:
            if frame.length != 8 or frame.stream:
                raise FrameError(f"PING of {frame.length} bytes on stream {frame.stream}")
            if not frame.flags & h2.ACK:
                self._write(h2.head(8, h2.PING, h2.ACK, 0) + data[frame.end - 8 : frame.end])
        elif kind == h2.PUSH_PROMISE:
            raise FrameError("PUSH_PROMISE from a client")

    def _call_of(self, stream: int) -> _Call | None:
        """The call of a stream; None if it has ended. FrameError if the stream was never opened."""
        if not 0 < stream <= self._last_stream or not stream & 1:
            raise FrameError(f"stream {stream} was not opened")
        return self._calls.get(stream)

    def _on_headers(self, data: bytes, frame: Frame) -> None:
        headers = self._decoder.decode(h2.header_block(data, frame))
        stream = frame.stream
        ended = bool(frame.flags & h2.END_STREAM)
        if stream > self._last_stream and stream & 1:
            self._last_stream = stream
            self._open(stream, dict(headers), ended)
        elif (call := self._call_of(stream)) is not None:  # trailers
            if not ended or call.ended:
                raise FrameError("headers in the middle of a request")
            self._on_request_end(call)

    def _open(self, stream: int, headers: dict[bytes, bytes], ended: bool) -> None:
        if self._server.stopping:
            self._write(h2.rst_stream(stream, _REFUSED_STREAM))
            return
        method = self._server.methods.get(headers.get(b":path", b""))
        timeout = headers.get(b"grpc-timeout")
        seconds = None if timeout is None else timeout_seconds(timeout)
        if headers.get(b":method") != b"POST" or not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self._refuse(stream, GrpcStatus.UNKNOWN, "not a gRPC call", ended)
        elif method is None:
            self._refuse(stream, GrpcStatus.UNIMPLEMENTED, "no such method", ended)
        elif timeout is not None and seconds is None:
            self._refuse(stream, GrpcStatus.INTERNAL, "malformed grpc-timeout", ended)
        elif not self._server.begin():
            self._refuse(stream, GrpcStatus.RESOURCE_EXHAUSTED, "too many concurrent calls", ended)
        else:
            deadline = None if seconds is None else self._loop.time() + seconds
            call = _Call(stream, method, headers.get(b"grpc-encoding"), deadline)
            self._calls[stream] = call
            self._sender.follow(stream)
            if isinstance(method, Stream):
                self._write(answer_head(stream))
            if deadline is not None:
                call.timer = self._loop.call_at(deadline, self._expired, call)
            if ended:
                self._on_request_end(call)

    def _on_data(self, data: bytes, frame: Frame) -> None:
        self._uncredited_bytes += frame.length
        if self._uncredited_bytes >= _WINDOW_BYTES // 2:
            self._write(h2.window_update(0, self._uncredited_bytes))
            self._uncredited_bytes = 0
        call = self._call_of(frame.stream)
        if call is None:
            return
        if call.ended:
            raise FrameError("DATA after the end of a request")
        start, end = h2.payload(data, frame)
        body = call.body
        limits = self._server.limits
        body += data[start:end]
        self._server.held += end - start
        size = prefix(body)[1] if len(body) >= PREFIX_BYTES else 0
        if size > limits.message:
            text = f"a message of {size} bytes exceeds the limit of {limits.message}"
            self._fail(call, GrpcStatus.RESOURCE_EXHAUSTED, text)
        elif len(body) > PREFIX_BYTES + size and not isinstance(call.method, Stream):
            self._fail(call, GrpcStatus.INTERNAL, "more than one message")
        elif self._server.held > limits.held:
            self._fail(call, GrpcStatus.RESOURCE_EXHAUSTED, "too many bytes are being received at once")
        elif frame.flags & h2.END_STREAM:
            self._on_request_end(call)
        elif isinstance(call.method, Stream):
            self._answer_each(call, call.method)

    def _on_window_update(self, stream: int, more: int) -> None:
        if stream and self._call_of(stream) is None:
            return
        window = self._sender.window(stream) if stream else self._sender.connection
        if not more or window.room + more > _MAX_31_BITS:
            raise FrameError(f"WINDOW_UPDATE of {more} to {window.room}")
        self._sender.credit(stream, more)
        self._finish_sent()

    def _on_settings(self, data: bytes, frame: Frame) -> None:
        for name, value in h2.settings_in(data, frame):
            if name == h2.INITIAL_WINDOW_SIZE:
                if value > _MAX_31_BITS:
                    raise FrameError(f"INITIAL_WINDOW_SIZE of {value}")
                self._sender.set_initial(value)
        self._write(h2.settings(ack=True))
        self._finish_sent()

    def _on_request_end(self, call: _Call) -> None:
        """Run the method; the request is complete."""
        call.ended = True
        body = call.body
        method = call.method
        if isinstance(method, Stream):
            self._answer_each(call, method, last=True)
        elif len(body) < PREFIX_BYTES or prefix(body)[1] != len(body) - PREFIX_BYTES:
            self._fail(call, GrpcStatus.INTERNAL, "the request is not one message")
        elif (message := self._unpacked(call, bytes(body))) is not None:
            self._server.held -= len(body)
            call.body = bytearray()
            call.task = self._loop.create_task(self._run(call, method, message))

    def _unpacked(self, call: _Call, message: bytes) -> bytes | None:
        """None if the message cannot be decoded; the call has failed then."""
        try:
            return unpack(message, call.encoding or b"identity", self._server.limits.message)
        except BodyError as error:
            supported = call.encoding in (None, b"gzip", b"identity")
            self._fail(call, GrpcStatus.INTERNAL if supported else GrpcStatus.UNIMPLEMENTED, str(error))
            return None

    def _answer_each(self, call: _Call, stream: Stream, *, last: bool = False) -> None:
        """Answer the complete messages. Fails the call if the client sends more requests while answers wait for its
        window."""
        body = call.body
        while len(body) >= PREFIX_BYTES and len(body) >= (end := PREFIX_BYTES + prefix(body)[1]):
            if self._sender.waits(call.stream):
                self._fail(call, GrpcStatus.RESOURCE_EXHAUSTED, "the client does not read its answers")
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
            self._fail(call, GrpcStatus.INTERNAL, "the last message is truncated")
        elif last:
            call.tail = answer_tail(call.stream)
            self._finish(call)

    async def _run(self, call: _Call, method: Method, message: bytes) -> None:
        left = None if call.deadline is None else max(0.0, call.deadline - self._loop.time())
        try:
            answer = await method(message, left)
        except CallRefused as refused:
            self._fail(call, refused.status, str(refused))
        except Exception as error:  # a defect of the method; the caller gets a status, as from other gRPC servers
            log.exception("Call failed", error=repr(error))
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
        """End the answer if all its DATA is sent."""
        if not self._sender.waits(call.stream):
            self._write(call.tail)
            self._remove(call)

    def _expired(self, call: _Call) -> None:
        if call.tail:  # the method has answered, but the client does not read the answer
            self._write(h2.rst_stream(call.stream))
            self._remove(call)
        else:
            self._fail(call, GrpcStatus.DEADLINE_EXCEEDED, "no answer in time")
        self._output.flush()

    def _fail(self, call: _Call, status: GrpcStatus, text: str) -> None:
        if self._calls.get(call.stream) is call:
            self._refuse(call.stream, status, text, call.ended, begun=isinstance(call.method, Stream))
            self._remove(call)

    def _refuse(self, stream: int, status: GrpcStatus, text: str, ended: bool, *, begun: bool = False) -> None:
        """`ended`: the client has sent the whole request; else RST_STREAM makes it stop. `begun`: the answer's headers
        were sent."""
        self._write(refusal(stream, status, text, begun=begun))
        if not ended:
            self._write(h2.rst_stream(stream, _NO_ERROR))

    def _remove(self, call: _Call) -> None:
        """Release the resources of a call that has ended."""
        del self._calls[call.stream]
        self._server.held -= len(call.body)
        self._sender.forget(call.stream)
        if call.timer is not None:
            call.timer.cancel()
        if call.task is not None and call.task is not asyncio.current_task(self._loop):
            call.task.cancel()
        self._server.end()


def remove_socket(path: Path) -> None:
    """Remove a socket that an earlier process left at `path`. Raises FileExistsError if `path` is not a socket or if a
    process still listens at it, OSError if it cannot be removed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError("the path exists and is not a socket")
    if _has_listener(path):
        raise FileExistsError("another process listens at this socket")
    path.unlink(missing_ok=True)


def _has_listener(path: Path) -> bool:
    """Whether a process listens, also one whose queue of connections is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            return True
    return True


def inode(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at `path`, to recognize one's own socket; None without a file."""
    try:
        status = path.lstat()
    except OSError:  # for any reason: the path is not the socket that this process serves
        return None
    return status.st_dev, status.st_ino


def _bind(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listening.bind(str(path))
        path.chmod(0o600)  # before the socket listens, so no client can connect earlier
    except BaseException:
        listening.close()
        raise
    return listening
