"""Both directions of one HTTP/2 connection: frames pass on their own streams; some requests are held and rewritten.

No sockets here: bytes come in by `from_client` and `from_backend`, and go out by two functions. HEADERS always pass as
they are and in order, so that compression state and the order of streams stay the peers' own; only the client's are
read along. They pass at once, but for those of a request that somebody looks into: these go with its data, or in front
of whatever else goes before. Answers pass at once, too. What is held is DATA of the requests that somebody is
interested in, and DATA that the runtime's windows have no room for (`windows`). Frames that are no frames raise
FrameError: the connection is lost.

A refused call: the runtime is sent RST_STREAM and, since an answer of its own may be under way, whose HEADERS the
client's compression state needs, a SETTINGS frame without settings. Once its ACK has come, there is no more of such an
answer: the client gets ours, or its end if headers have passed. A whole answer of the runtime's counts.
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
from koordlet.app.http2.windows import Sender, Window
from koordlet.app.logging import get_logger
from runtimeproxy.http2.exchange import MAX_MESSAGE, Exchange, Holding, Interest, Refused
from runtimeproxy.http2.held import Held, Stage, chunk_of

log = get_logger(__name__)

_MAX_HEADER_LIST = 1 << 20
_MAX_BLOCKED = 2 * MAX_MESSAGE
"""Once that much waits for the runtime's windows, no more requests are held on this connection."""
_MAX_PENDING = 16384
"""Held bytes of a connection for which its client gets no credit, while as many are left for its other streams."""
_SLACK = 4096
UNKNOWN = 2


class _Unacknowledged(NamedTuple):
    """SETTINGS that the runtime was sent: the client's, with its HEADER_TABLE_SIZE, or ours for a refused stream."""

    table_size: int | None = None
    refused: Held | None = None
    text: str = ""


class Splice:
    """See the module. Not for use after FrameError, but for `close`."""

    def __init__(
        self,
        to_backend: Write,
        to_client: Write,
        interest: Interest,
        holding: Holding,
        stalled: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`stalled(True)` asks not to be given more from the client until `stalled(False)`."""
        self._interest, self._holding, self._stall_changed = interest, holding, stalled
        self._up, self._down = Splitter(), Splitter()
        self._backend, self._client = Output(to_backend), Output(to_client)
        self._sender = Sender(self._backend.write, self._repay)
        self._decoder = HeaderDecoder(_MAX_HEADER_LIST)
        self._calls: dict[int, Held] = {}
        self._last_stream = 0
        self._sent_settings: deque[_Unacknowledged] = deque()
        self._offered: deque[int | None] = deque()  # INITIAL_WINDOW_SIZE of SETTINGS that the client has not agreed to
        self._held = 0
        self._asked = False
        self._table_size = 4096
        self._lowered: int | None = None
        self._stalled: tuple[int, bytes, list[Frame]] | None = None
        self._late: deque[bytes] = deque()
        self._answers: list[tuple[Exchange, bytes | None]] = []
        """What exchanges are to be told of this read of the runtime's bytes."""

    # From the client

    def from_client(self, data: bytes) -> None:
        """Bytes behind the connection preface."""
        if self._stalled is not None:
            self._late.append(data)
            return
        self._take_from_client(*self._up.feed(data))

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
                self._backend.pass_on(view, frame)
                self._client_headers(data, frame)
            elif kind == h2.RST_STREAM:
                self._client_reset(view, frame)
            else:
                self._backend.pass_on(view, frame)
                if kind == h2.SETTINGS:
                    self._client_settings(data, frame)
        if self._asked and self._stalled is None and all(self._is_asking(frame) for frame in units):
            self._asked = False  # nobody waits for these headers but their data: no need to wake the runtime twice
            self._credit_connection()
            self._client.flush()
        else:
            self._asked = False
            self._flush()

    def _is_asking(self, frame: Frame) -> bool:
        held = self._calls.get(frame.stream)
        return held is not None and held.stage is Stage.ASKING and frame.kind in (h2.HEADERS, h2.DATA)

    def _client_data(self, data: bytes, view: memoryview, frame: Frame) -> None:
        held, sender = self._calls.get(frame.stream), self._sender
        if held is None:
            if not sender.blocked and frame.length <= sender.connection.room:
                sender.connection.room -= frame.length
                self._backend.pass_on(view, frame)
                return
            sender.put(frame.stream, chunk_of(data, frame, held=False))
            return
        held.client_ended = held.client_ended or bool(frame.flags & h2.END_STREAM)
        if held.stage is Stage.OPEN:
            sender.put(frame.stream, chunk_of(data, frame, held=False))
        elif held.stage is Stage.REFUSING:
            self._repay(0, frame.length)
        elif held.stage is Stage.ASKING:
            held.add(chunk_of(data, frame, held=False))
        elif sender.blocked > _MAX_BLOCKED or not self._holding.take(frame.length):
            self._let_pass(held, "held too much")
            sender.put(frame.stream, chunk_of(data, frame, held=False))
        else:
            held.held += frame.length
            self._held += frame.length
            held.add(chunk_of(data, frame, held=True))
            self._give_credit(held, sender.hold(frame.stream, frame.length))
            self._collected(held)

    def _give_credit(self, held: Held, window: Window) -> None:
        """For what is held of a stream, if the client may need it for the rest of the message."""
        if not held.client_ended and window.room - window.pending < held.missing + _SLACK:
            self._credit(held.stream, window, window.pending)

    def _credit(self, stream: int, window: Window, size: int) -> None:
        if size:
            window.pending -= size
            self._client.write(h2.window_update(stream, size))

    def _collected(self, held: Held) -> None:
        if held.need > MAX_MESSAGE:
            self._let_pass(held, "size")
        elif held.whole:
            message = held.message()
            try:
                body = unpack(message, held.encoding, MAX_MESSAGE)
            except BodyError as error:
                log.once(f"unpack:{error}", "Passing a request that can't be looked into", err=error)
                self._let_pass(held, "encoding")
                return
            held.stage = Stage.ASKING
            compressed, _ = prefix(message)
            held.task = asyncio.get_running_loop().create_task(self._ask(held, body, compressed))
            self._asked = True
        elif held.client_ended:
            self._let_pass(held, "incomplete")

    async def _ask(self, held: Held, body: bytes, compressed: bool) -> None:
        try:
            instead = await held.exchange.request(body)
        except Refused as refused:
            self._refuse(held, str(refused))
            return
        except Exception as error:  # a mistake of ours must not cost the pod
            log.exception("Cannot look into a request", err=error)
            held.exchange.passed("error")
            instead = body
        if held.stage is not Stage.ASKING:
            return
        if instead is not body:
            held.replace(instead, compressed=compressed)
        self._release(held)
        self._resume()
        self._flush()

    def _let_pass(self, held: Held, reason: str) -> None:
        held.exchange.passed(reason)
        self._release(held)

    def _release(self, held: Held) -> None:
        """All that is held goes on."""
        held.stage, held.task = Stage.OPEN, None
        chunks, held.chunks = held.chunks, []
        self._free(held)
        for chunk in chunks:
            self._sender.put(held.stream, chunk)
        window = self._sender.window(held.stream)
        if window.pending and not held.client_ended and not self._sender.waits(held.stream):
            self._credit(held.stream, window, window.pending)

    def _refuse(self, held: Held, text: str) -> None:
        if held.stage is not Stage.ASKING:
            return
        held.stage, held.task = Stage.REFUSING, None
        self._drop(held)
        self._backend.write(h2.rst_stream(held.stream) + h2.settings())
        self._sent_settings.append(_Unacknowledged(refused=held, text=text))
        self._resume()
        self._flush()

    def _client_headers(self, data: bytes, frame: Frame) -> None:
        try:
            headers = self._decoder.decode(h2.header_block(data, frame))
        except HPACKError as error:
            raise FrameError(f"a header block that can't be read: {error}") from error
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
        exchange = self._interest(path, timeout_seconds(timeout))
        if exchange is not None:
            self._calls[frame.stream] = Held(frame.stream, exchange, encoding)
            self._sender.follow(frame.stream)

    def _must_wait(self, stream: int) -> bool:
        """Whether HEADERS (trailers, then) would overtake DATA of their stream."""
        held = self._calls.get(stream)
        if held is not None and held.stage is Stage.COLLECTING:
            self._let_pass(held, "incomplete")
        return (held is not None and held.stage is Stage.ASKING) or self._sender.waits(stream)

    def _resume(self) -> None:
        """Go on with what waited for DATA of a stream, if that has gone."""
        if self._stalled is None or self._must_wait(self._stalled[0]):
            return
        _, data, units = self._stalled
        self._stalled = None
        self._take_from_client(data, units)
        while self._late and self._stalled is None:
            self._take_from_client(*self._up.feed(self._late.popleft()))
        if self._stalled is None:
            self._stall_changed(False)

    def _client_reset(self, view: memoryview, frame: Frame) -> None:
        held = self._calls.get(frame.stream)
        if held is not None:
            refusing = held.stage is Stage.REFUSING
            self._over(held)
            if refusing:
                return  # the runtime has been told
        else:
            self._forget(frame.stream)
        self._backend.pass_on(view, frame)

    def _client_settings(self, data: bytes, frame: Frame) -> None:
        if frame.flags & h2.ACK:
            initial = self._offered.popleft() if self._offered else None
            if initial is not None:
                self._sender.set_initial(initial)
                for held in self._calls.values():
                    if held.stage is Stage.COLLECTING:
                        self._give_credit(held, self._sender.window(held.stream))
            return
        table_size = None
        for name, value in h2.settings_in(data, frame):
            if name == h2.MAX_FRAME_SIZE:
                self._down.limit = max(self._down.limit, value)
            elif name == h2.HEADER_TABLE_SIZE:
                table_size = value
        self._sent_settings.append(_Unacknowledged(table_size))

    # From the runtime

    def from_backend(self, data: bytes) -> None:
        data, units = self._down.feed(data)
        view, client = memoryview(data), self._client
        try:
            for frame in units:
                kind = frame.kind
                if kind == h2.WINDOW_UPDATE:
                    self._backend_credit(data, view, frame)
                elif kind == h2.SETTINGS:
                    if self._backend_settings(data, frame):
                        client.pass_on(view, frame)
                else:
                    if kind in (h2.DATA, h2.HEADERS, h2.RST_STREAM):
                        self._backend_stream(data, view, frame)
                    client.pass_on(view, frame)
            if self._answers:
                client.flush()  # it need not wait for what is kept of its call; its next request is read after that
        finally:
            self._tell_answers()
        self._resume()
        self._flush()

    def _backend_stream(self, data: bytes, view: memoryview, frame: Frame) -> None:
        """DATA, HEADERS or RST_STREAM, before it passes."""
        if frame.kind == h2.HEADERS:
            self._lowered = None
        held = self._calls.get(frame.stream)
        if held is None:
            if frame.kind == h2.RST_STREAM:
                self._forget(frame.stream)
            return
        held.begun = True
        if frame.kind == h2.DATA and not held.answer.over:
            start, end = h2.payload(data, frame)
            try:
                body = held.answer.feed(view[start:end])
            except BodyError as error:
                log.once("answer", "Cannot read the answer of an intercepted call", err=error)
                body = None
            if held.answer.over:
                self._answers.append((held.exchange, body))
        if frame.kind == h2.RST_STREAM:
            self._over(held)
        elif frame.flags & h2.END_STREAM:
            unsent = held.client_ended and held.stage is not Stage.REFUSING and not self._sender.ended(frame.stream)
            self._over(held)
            if unsent:
                self._backend.write(h2.rst_stream(frame.stream))

    def _tell_answers(self) -> None:
        answers, self._answers = self._answers, []
        for exchange, body in answers:
            exchange.answered(body)

    def _backend_credit(self, data: bytes, view: memoryview, frame: Frame) -> None:
        more = h2.number(data, frame)
        passed = self._sender.credit(frame.stream, more)
        if passed == more:
            self._client.pass_on(view, frame)
        elif passed:
            self._client.write(h2.window_update(frame.stream, passed))

    def _backend_settings(self, data: bytes, frame: Frame) -> bool:
        """Whether the frame is for the client."""
        if not frame.flags & h2.ACK:
            initial = None
            for name, value in h2.settings_in(data, frame):
                if name == h2.INITIAL_WINDOW_SIZE:
                    initial = value
                elif name == h2.MAX_FRAME_SIZE:
                    self._up.limit = max(self._up.limit, value)
                elif name == h2.HEADER_TABLE_SIZE:
                    self._decoder.allow(value)
            self._offered.append(initial)
            return True
        sent = self._sent_settings.popleft() if self._sent_settings else _Unacknowledged()
        if sent.refused is not None:
            self._refused(sent.refused, sent.text)
            return False
        if sent.table_size is not None:
            if sent.table_size < self._table_size:
                self._lowered = sent.table_size
            self._table_size = sent.table_size
        return True

    def _refused(self, held: Held, text: str) -> None:
        if self._calls.get(held.stream) is not held:
            return  # the runtime's own answer has passed, or the client has given up
        self._over(held)
        self._client.write(refusal(held.stream, UNKNOWN, text, begun=held.begun, table_size=self._lowered))
        self._lowered = None

    # Both

    def _repay(self, stream: int, size: int) -> None:
        """Give the client credit on our own account: of the connection, and of a stream other than 0."""
        if size:
            self._client.write(h2.window_update(0, size) + (h2.window_update(stream, size) if stream else b""))

    def _flush(self) -> None:
        """The turn is over."""
        self._credit_connection()
        self._backend.flush()
        self._client.flush()

    def _credit_connection(self) -> None:
        """Give the connection's credit for what is held if that is much or little is left for others; and for what is
        not held any more and was not sent: dropped, or replaced by something shorter."""
        connection = self._sender.connection
        pending = connection.pending
        if pending > _MAX_PENDING or (pending and connection.room - pending < _MAX_PENDING):
            self._credit(0, connection, pending)
        elif pending > self._held and not self._sender.blocked:
            self._credit(0, connection, pending - self._held)

    def _free(self, held: Held) -> None:
        self._holding.give(held.held)
        self._held -= held.held
        held.held = 0

    def _forget(self, stream: int) -> None:
        """Drop DATA of the stream that waits."""
        self._repay(0, self._sender.forget(stream))

    def _drop(self, held: Held) -> None:
        """Drop all of the request that has not been sent."""
        self._free(held)
        self._repay(0, sum(chunk.size for chunk in held.chunks if not chunk.held))
        held.chunks = []
        self._forget(held.stream)

    def _over(self, held: Held) -> None:
        """The call has ended, whoever ended it."""
        del self._calls[held.stream]
        held.stage = Stage.OPEN
        task, held.task = held.task, None
        if task is not None:
            task.cancel()
        self._drop(held)
        if not held.answer.over:
            held.answer.over = True
            held.exchange.answered(None)

    def last_word(self) -> None:
        """Ask the client to open no more streams here; those that are open go on."""
        self._client.write(h2.goaway())
        self._client.flush()

    def close(self) -> None:
        """The connection has ended: hooks are cancelled, nothing more is held."""
        for held in list(self._calls.values()):
            self._over(held)
        self._stalled = None
        self._late.clear()
