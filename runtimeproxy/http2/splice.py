"""Forwards both directions of one HTTP/2 connection frame by frame; some requests are held and rewritten.

No sockets here: bytes come in through `from_client` and `from_runtime`, and go out through two functions. HEADERS are
forwarded unchanged and in order, so that compression state and stream order remain the peers'; only the client's are
also decoded. Forwarding is immediate, except for the HEADERS of an intercepted request: these go out with its data, or
before anything else that goes out. Responses are forwarded immediately. Held are the DATA of intercepted requests, and
DATA for which the runtime's flow-control windows have no room (`windows`). Invalid frames raise FrameError: the
connection is lost.

Refusing a call: the runtime is sent RST_STREAM. It may have sent response HEADERS already, which the client needs for
its compression state, so it is also sent an empty SETTINGS frame. After the ACK of that no more of such a response can
arrive: the client then gets the proxy's response, or the end of the stream if headers were forwarded. A complete
response of the runtime takes precedence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from hpack import HPACKError

from koordlet.app.http2 import frames as h2
from koordlet.app.http2.frames import Frame, FrameError, Splitter
from koordlet.app.http2.grpc import BodyError, prefix, refusal, timeout_seconds, unpack
from koordlet.app.http2.headers import HeaderDecoder
from koordlet.app.http2.output import Output, Write
from koordlet.app.http2.windows import FlowWindow, Sender
from koordlet.app.logging import get_logger
from runtimeproxy.http2.heldstream import HeldStream, HoldStage, chunk_of
from runtimeproxy.http2.interception import (
    MAX_MESSAGE_BYTES,
    GrpcCallHandler,
    GrpcHandlerSelector,
    HoldBudget,
    InterceptionRefused,
)

log = get_logger(__name__)

_MAX_HEADER_LIST_BYTES = 1 << 20
_MAX_BLOCKED_BYTES = 2 * MAX_MESSAGE_BYTES
"""With more bytes waiting for the runtime's windows, no further requests of the connection are held."""
_MAX_PENDING_BYTES = 16384
"""Held bytes of a connection that are not credited to its client, while as many are left for its other streams."""
_CREDIT_SLACK_BYTES = 4096
GRPC_UNKNOWN = 2


class _UnackedSettings(NamedTuple):
    """SETTINGS sent to the runtime: the client's (with its HEADER_TABLE_SIZE), or the proxy's for a refused stream."""

    table_size: int | None = None
    refused: HeldStream | None = None
    text: str = ""


class Splice:
    """See the module. After FrameError only `close` may be called."""

    def __init__(
        self,
        to_runtime: Write,
        to_client: Write,
        select: GrpcHandlerSelector,
        budget: HoldBudget,
        stalled: Callable[[bool], None],
    ) -> None:
        """`stalled(True)` requests a pause of `from_client` until `stalled(False)`."""
        self._select = select
        self._budget = budget
        self._stall_changed = stalled
        self._client_frames = Splitter()
        self._runtime_frames = Splitter()
        self._runtime = Output(to_runtime)
        self._client = Output(to_client)
        self._sender = Sender(self._runtime.write, self._repay)
        self._decoder = HeaderDecoder(_MAX_HEADER_LIST_BYTES)
        self._calls: dict[int, HeldStream] = {}
        self._last_stream = 0
        self._sent_settings: deque[_UnackedSettings] = deque()
        self._offered_windows: deque[int | None] = deque()
        """INITIAL_WINDOW_SIZE of the runtime's SETTINGS that the client has not acknowledged."""
        self._held_bytes = 0
        self._defer_flush = False
        self._table_size = 4096
        self._lowered_table_size: int | None = None
        self._stalled: tuple[int, bytes, list[Frame]] | None = None
        self._stalled_reads: deque[bytes] = deque()
        self._responses: list[tuple[GrpcCallHandler, bytes | None]] = []
        """Handlers to call for the present read of the runtime's bytes, with the response message."""

    # From the client

    def from_client(self, data: bytes) -> None:
        """Bytes after the connection preface."""
        if self._stalled is not None:
            self._stalled_reads.append(data)
            return
        self._take_from_client(*self._client_frames.feed(data))

    def _take_from_client(self, data: bytes, units: list[Frame]) -> None:
        view = memoryview(data)
        for index, frame in enumerate(units):
            kind = frame.kind
            if kind == h2.DATA:
                self._client_data(data, view, frame)
            elif kind == h2.HEADERS:
                if self._must_wait(frame.stream):
                    self._stalled = (frame.stream, data, units[index:])
                    self._stall_changed(True)
                    break
                self._runtime.pass_on(view, frame)
                self._client_headers(data, frame)
            elif kind == h2.RST_STREAM:
                self._client_reset(view, frame)
            else:
                self._runtime.pass_on(view, frame)
                if kind == h2.SETTINGS:
                    self._client_settings(data, frame)
        if self._defer_flush and self._stalled is None and all(self._is_deciding(frame) for frame in units):
            self._defer_flush = False  # these headers wait for their data only: do not wake the runtime twice
            self._credit_connection()
            self._client.flush()
        else:
            self._defer_flush = False
            self._flush()

    def _is_deciding(self, frame: Frame) -> bool:
        held = self._calls.get(frame.stream)
        return held is not None and held.stage is HoldStage.DECIDING and frame.kind in (h2.HEADERS, h2.DATA)

    def _client_data(self, data: bytes, view: memoryview, frame: Frame) -> None:
        held, sender = self._calls.get(frame.stream), self._sender
        if held is None:
            if not sender.blocked and frame.length <= sender.connection.room:
                sender.connection.room -= frame.length
                self._runtime.pass_on(view, frame)
                return
            sender.put(frame.stream, chunk_of(data, frame, held=False))
            return
        held.client_ended = held.client_ended or bool(frame.flags & h2.END_STREAM)
        if held.stage is HoldStage.OPEN:
            sender.put(frame.stream, chunk_of(data, frame, held=False))
        elif held.stage is HoldStage.REFUSING:
            self._repay(0, frame.length)
        elif held.stage is HoldStage.DECIDING:
            held.add(chunk_of(data, frame, held=False))
        elif sender.blocked > _MAX_BLOCKED_BYTES or not self._budget.take(frame.length):
            self._let_pass(held, "held too much")
            sender.put(frame.stream, chunk_of(data, frame, held=False))
        else:
            held.held += frame.length
            self._held_bytes += frame.length
            held.add(chunk_of(data, frame, held=True))
            self._give_credit(held, sender.hold(frame.stream, frame.length))
            self._collected(held)

    def _give_credit(self, held: HeldStream, window: FlowWindow) -> None:
        """Send window updates for held bytes of a stream, if the client may need them for the rest of the message."""
        if not held.client_ended and window.room - window.pending < held.missing + _CREDIT_SLACK_BYTES:
            self._credit(held.stream, window, window.pending)

    def _credit(self, stream: int, window: FlowWindow, size: int) -> None:
        if size:
            window.pending -= size
            self._client.write(h2.window_update(stream, size))

    def _collected(self, held: HeldStream) -> None:
        if held.message_size > MAX_MESSAGE_BYTES:
            self._let_pass(held, "size")
        elif held.complete:
            message = held.message()
            try:
                body = unpack(message, held.encoding, MAX_MESSAGE_BYTES)
            except BodyError as error:
                log.once(f"unpack:{error}", "Forwarding a request that cannot be decoded", err=error)
                self._let_pass(held, "encoding")
                return
            held.stage = HoldStage.DECIDING
            compressed, _ = prefix(message)
            held.task = asyncio.get_running_loop().create_task(self._decide(held, body, compressed))
            self._defer_flush = True
        elif held.client_ended:
            self._let_pass(held, "incomplete")

    async def _decide(self, held: HeldStream, body: bytes, compressed: bool) -> None:
        try:
            replacement = await held.handler.request(body)
        except InterceptionRefused as refused:
            self._refuse(held, str(refused))
            return
        except Exception as error:  # a bug of the proxy must not block the pod
            log.exception("Handler of a request failed", err=error)
            held.handler.passed("error")
            replacement = body
        if held.stage is not HoldStage.DECIDING:
            return
        if replacement is not body:
            held.replace(replacement, compressed=compressed)
        self._release(held)
        self._resume()
        self._flush()

    def _let_pass(self, held: HeldStream, reason: str) -> None:
        held.handler.passed(reason)
        self._release(held)

    def _release(self, held: HeldStream) -> None:
        """Forward everything that is held."""
        held.stage, held.task = HoldStage.OPEN, None
        chunks, held.chunks = held.chunks, []
        self._free(held)
        for chunk in chunks:
            self._sender.put(held.stream, chunk)
        window = self._sender.window(held.stream)
        if window.pending and not held.client_ended and not self._sender.waits(held.stream):
            self._credit(held.stream, window, window.pending)

    def _refuse(self, held: HeldStream, text: str) -> None:
        if held.stage is not HoldStage.DECIDING:
            return
        held.stage, held.task = HoldStage.REFUSING, None
        self._drop(held)
        self._runtime.write(h2.rst_stream(held.stream) + h2.settings())
        self._sent_settings.append(_UnackedSettings(refused=held, text=text))
        self._resume()
        self._flush()

    def _client_headers(self, data: bytes, frame: Frame) -> None:
        try:
            headers = self._decoder.decode(h2.header_block(data, frame))
        except HPACKError as error:
            raise FrameError(f"invalid header block: {error}") from error
        if frame.stream <= self._last_stream:
            if (held := self._calls.get(frame.stream)) is not None:
                held.client_ended = True
                self._sender.end(frame.stream)
            return
        self._last_stream = frame.stream
        if frame.flags & h2.END_STREAM:
            return
        path = kind = timeout = b""
        encoding = b"identity"
        for name, value in headers:
            if name == b":path":
                path = value
            elif name == b"content-type":
                kind = value
            elif name == b"grpc-timeout":
                timeout = value
            elif name == b"grpc-encoding":
                encoding = value
        if not kind.startswith(b"application/grpc"):
            return
        handler = self._select(path, timeout_seconds(timeout))
        if handler is not None:
            self._calls[frame.stream] = HeldStream(frame.stream, handler, encoding)
            self._sender.follow(frame.stream)

    def _must_wait(self, stream: int) -> bool:
        """Whether HEADERS (that is, trailers) would overtake DATA of their stream."""
        held = self._calls.get(stream)
        if held is not None and held.stage is HoldStage.COLLECTING:
            self._let_pass(held, "incomplete")
        return (held is not None and held.stage is HoldStage.DECIDING) or self._sender.waits(stream)

    def _resume(self) -> None:
        """Continue with frames that waited for DATA of a stream, if that has been sent."""
        if self._stalled is None or self._must_wait(self._stalled[0]):
            return
        _, data, units = self._stalled
        self._stalled = None
        self._take_from_client(data, units)
        while self._stalled_reads and self._stalled is None:
            self._take_from_client(*self._client_frames.feed(self._stalled_reads.popleft()))
        if self._stalled is None:
            self._stall_changed(False)

    def _client_reset(self, view: memoryview, frame: Frame) -> None:
        held = self._calls.get(frame.stream)
        if held is not None:
            refusing = held.stage is HoldStage.REFUSING
            self._end_call(held)
            if refusing:
                return  # the runtime already got RST_STREAM
        else:
            self._forget(frame.stream)
        self._runtime.pass_on(view, frame)

    def _client_settings(self, data: bytes, frame: Frame) -> None:
        if frame.flags & h2.ACK:
            initial = self._offered_windows.popleft() if self._offered_windows else None
            if initial is not None:
                self._sender.set_initial(initial)
                for held in self._calls.values():
                    if held.stage is HoldStage.COLLECTING:
                        self._give_credit(held, self._sender.window(held.stream))
            return
        table_size = None
        for name, value in h2.settings_in(data, frame):
            if name == h2.MAX_FRAME_SIZE:
                self._runtime_frames.limit = max(self._runtime_frames.limit, value)
            elif name == h2.HEADER_TABLE_SIZE:
                table_size = value
        self._sent_settings.append(_UnackedSettings(table_size))

    # From the runtime

    def from_runtime(self, data: bytes) -> None:
        data, units = self._runtime_frames.feed(data)
        view, client = memoryview(data), self._client
        try:
            for frame in units:
                kind = frame.kind
                if kind == h2.WINDOW_UPDATE:
                    self._runtime_credit(data, view, frame)
                elif kind == h2.SETTINGS:
                    if self._runtime_settings(data, frame):
                        client.pass_on(view, frame)
                else:
                    if kind in (h2.DATA, h2.HEADERS, h2.RST_STREAM):
                        self._runtime_stream(data, view, frame)
                    client.pass_on(view, frame)
            if self._responses:
                client.flush()  # do not wait for the handlers; the client's next request is read after that
        finally:
            self._notify_handlers()
        self._resume()
        self._flush()

    def _runtime_stream(self, data: bytes, view: memoryview, frame: Frame) -> None:
        """Update the stream's state for DATA, HEADERS or RST_STREAM, before the frame is forwarded."""
        if frame.kind == h2.HEADERS:
            self._lowered_table_size = None
        held = self._calls.get(frame.stream)
        if held is None:
            if frame.kind == h2.RST_STREAM:
                self._forget(frame.stream)
            return
        held.response_begun = True
        if frame.kind == h2.DATA and not held.response.done:
            start, end = h2.payload(data, frame)
            try:
                body = held.response.feed(view[start:end])
            except BodyError as error:
                log.once("answer", "Cannot decode the response of an intercepted call", err=error)
                body = None
            if held.response.done:
                self._responses.append((held.handler, body))
        if frame.kind == h2.RST_STREAM:
            self._end_call(held)
        elif frame.flags & h2.END_STREAM:
            unsent = held.client_ended and held.stage is not HoldStage.REFUSING and not self._sender.ended(frame.stream)
            self._end_call(held)
            if unsent:
                self._runtime.write(h2.rst_stream(frame.stream))

    def _notify_handlers(self) -> None:
        responses, self._responses = self._responses, []
        for handler, body in responses:
            handler.answered(body)

    def _runtime_credit(self, data: bytes, view: memoryview, frame: Frame) -> None:
        more = h2.number(data, frame)
        passed = self._sender.credit(frame.stream, more)
        if passed == more:
            self._client.pass_on(view, frame)
        elif passed:
            self._client.write(h2.window_update(frame.stream, passed))

    def _runtime_settings(self, data: bytes, frame: Frame) -> bool:
        """Whether the frame is forwarded to the client."""
        if not frame.flags & h2.ACK:
            initial = None
            for name, value in h2.settings_in(data, frame):
                if name == h2.INITIAL_WINDOW_SIZE:
                    initial = value
                elif name == h2.MAX_FRAME_SIZE:
                    self._client_frames.limit = max(self._client_frames.limit, value)
                elif name == h2.HEADER_TABLE_SIZE:
                    self._decoder.allow(value)
            self._offered_windows.append(initial)
            return True
        sent = self._sent_settings.popleft() if self._sent_settings else _UnackedSettings()
        if sent.refused is not None:
            self._refused(sent.refused, sent.text)
            return False
        if sent.table_size is not None:
            if sent.table_size < self._table_size:
                self._lowered_table_size = sent.table_size
            self._table_size = sent.table_size
        return True

    def _refused(self, held: HeldStream, text: str) -> None:
        if self._calls.get(held.stream) is not held:
            return  # the runtime's own response was forwarded, or the client has cancelled
        self._end_call(held)
        table_size = self._lowered_table_size
        self._client.write(refusal(held.stream, GRPC_UNKNOWN, text, begun=held.response_begun, table_size=table_size))
        self._lowered_table_size = None

    # Both

    def _repay(self, stream: int, size: int) -> None:
        """Send the proxy's own window updates to the client: for the connection, and for a stream other than 0."""
        if size:
            self._client.write(h2.window_update(0, size) + (h2.window_update(stream, size) if stream else b""))

    def _flush(self) -> None:
        """Send what this iteration of the event loop has produced."""
        self._credit_connection()
        self._runtime.flush()
        self._client.flush()

    def _credit_connection(self) -> None:
        """Send the connection's window updates for held bytes if these are many or little room is left for other
        streams; and for bytes that are no longer held and were not sent, because they were dropped or replaced by a
        shorter message."""
        connection = self._sender.connection
        pending = connection.pending
        if pending > _MAX_PENDING_BYTES or (pending and connection.room - pending < _MAX_PENDING_BYTES):
            self._credit(0, connection, pending)
        elif pending > self._held_bytes and not self._sender.blocked:
            self._credit(0, connection, pending - self._held_bytes)

    def _free(self, held: HeldStream) -> None:
        self._budget.release(held.held)
        self._held_bytes -= held.held
        held.held = 0

    def _forget(self, stream: int) -> None:
        """Drop waiting DATA of the stream."""
        self._repay(0, self._sender.forget(stream))

    def _drop(self, held: HeldStream) -> None:
        """Drop the unsent part of the request."""
        self._free(held)
        self._repay(0, sum(chunk.size for chunk in held.chunks if not chunk.held))
        held.chunks = []
        self._forget(held.stream)

    def _end_call(self, held: HeldStream) -> None:
        """The call has ended, for whatever reason."""
        del self._calls[held.stream]
        held.stage = HoldStage.OPEN
        task, held.task = held.task, None
        if task is not None:
            task.cancel()
        self._drop(held)
        if not held.response.done:
            held.response.done = True
            held.handler.answered(None)

    def send_goaway(self) -> None:
        """Send GOAWAY: the client opens no new streams, open ones continue."""
        self._client.write(h2.goaway())
        self._client.flush()

    def close(self) -> None:
        """The connection has ended: cancel handlers, release held bytes."""
        for held in list(self._calls.values()):
            self._end_call(held)
        self._stalled = None
        self._stalled_reads.clear()
