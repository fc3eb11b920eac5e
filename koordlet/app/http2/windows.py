"""Flow control towards the runtime when some bytes are held and others pass (RFC 9113 §5.2).

The client sees the runtime's credit, as WINDOW_UPDATE frames pass. For bytes that are held the proxy may give credit
back on its own account, and owes that much once they are sent: what the runtime credits later is kept until the debt is
paid. So the client's idea of a window is the real one, less what is held and not credited, and with the debt; what it
sends beyond the real one waits here. Pure but for `write` and `repay`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from koordlet.app.http2.frames import DATA, END_STREAM, LEAST_MAX_FRAME, head

INITIAL = 65535


@dataclass(slots=True)
class FlowWindow:
    """What the runtime's credit allows (`room`, negative after it took some back), what is owed of it, and what is held
    that the client has not been given credit for (`pending`)."""

    room: int = INITIAL
    debt: int = 0
    pending: int = 0

    def sent(self, size: int, held: bool) -> None:
        """`held`: the bytes were, or are of our own making; what of that is pending needs no credit any more."""
        self.room -= size
        if held:
            settled = min(size, self.pending)
            self.pending -= settled
            self.debt += size - settled

    def credited(self, more: int) -> int:
        """Take a WINDOW_UPDATE; how much of it is the client's."""
        self.room += more
        kept = min(more, self.debt)
        self.debt -= kept
        return more - kept


@dataclass(slots=True)
class Chunk:
    """DATA that waits: what it carries, and the frame it came in as long as it can go on as it came.

    `size` is what flow control counts, padding included; `held` says that it was pending, or is of our own making.
    """

    payload: memoryview
    size: int
    end: bool
    held: bool
    frame: bytes | None = None


@dataclass(slots=True)
class Flow:
    """A stream's waiting DATA. Without a window of its own the client's is the real one."""

    window: FlowWindow | None
    waiting: deque[Chunk] = field(default_factory=deque)
    ended: bool = False
    """END_STREAM has been sent."""


class Sender:
    """Sends DATA to the runtime as its windows allow, streams in turns, each stream's in order."""

    def __init__(self, write: Callable[[bytes | memoryview], None], repay: Callable[[int, int], None]) -> None:
        """`repay(stream, size)` gives the client credit for padding that was not passed on."""
        self._write, self._repay = write, repay
        self.connection = FlowWindow()
        self.initial = INITIAL
        self.blocked = 0
        """Bytes that wait, of all streams; plus one for each empty frame."""
        self._flows: dict[int, Flow] = {}

    def follow(self, stream: int) -> None:
        """Keep a window of its own for a stream whose DATA may be held."""
        self._flows[stream] = Flow(FlowWindow(self.initial))

    def put(self, stream: int, chunk: Chunk) -> None:
        """Send it now or when it is due."""
        flow = self._flows.get(stream)
        if flow is None:
            flow = self._flows[stream] = Flow(None)
        flow.waiting.append(chunk)
        self.blocked += chunk.size or 1
        self._send(stream, flow, many=True)
        self._settle(stream, flow)

    def window(self, stream: int) -> FlowWindow:
        """Of a followed stream."""
        window = self._flows[stream].window
        assert window is not None
        return window

    def hold(self, stream: int, size: int) -> FlowWindow:
        """DATA of a followed stream is held; the stream's window."""
        window = self.window(stream)
        self.connection.pending += size
        window.pending += size
        return window

    def waits(self, stream: int) -> bool:
        """Whether DATA of the stream waits."""
        flow = self._flows.get(stream)
        return flow is not None and bool(flow.waiting)

    def ended(self, stream: int) -> bool:
        """Whether all that the client sends on a followed stream has been sent."""
        flow = self._flows.get(stream)
        return flow is not None and flow.ended

    def end(self, stream: int) -> None:
        """The client has ended a followed stream otherwise than with DATA."""
        flow = self._flows.get(stream)
        if flow is not None:
            flow.ended = True

    def forget(self, stream: int) -> int:
        """Drop what waits; how many of its bytes the client has counted that were never pending."""
        flow = self._flows.pop(stream, None)
        if flow is None:
            return 0
        self.blocked -= sum(chunk.size or 1 for chunk in flow.waiting)
        return sum(chunk.size for chunk in flow.waiting if not chunk.held)

    def credit(self, stream: int, more: int) -> int:
        """A WINDOW_UPDATE of the runtime; how much of it is to be passed to the client."""
        if stream == 0:
            passed = self.connection.credited(more)
        else:
            flow = self._flows.get(stream)
            if flow is None or flow.window is None:
                return more
            passed = flow.window.credited(more)
        if self.blocked:
            self.drain()
        return passed

    def set_initial(self, size: int) -> None:
        """The runtime's INITIAL_WINDOW_SIZE, from the moment on at which the client agreed to it."""
        change, self.initial = size - self.initial, size
        for flow in self._flows.values():
            if flow.window is not None:
                flow.window.room += change
        if self.blocked:
            self.drain()

    def drain(self) -> None:
        """Send what may be sent by now, a frame of each stream in turn."""
        busy = [(stream, flow) for stream, flow in self._flows.items() if flow.waiting]
        while busy:
            busy = [(stream, flow) for stream, flow in busy if self._send(stream, flow, many=False) and flow.waiting]
        for stream, flow in list(self._flows.items()):
            self._settle(stream, flow)

    def _settle(self, stream: int, flow: Flow) -> None:
        if flow.window is None and not flow.waiting:
            self._flows.pop(stream, None)

    def _send(self, stream: int, flow: Flow, *, many: bool) -> bool:
        """Send one frame, or all that may be; whether any was."""
        sent = False
        while flow.waiting and (many or not sent):
            chunk = flow.waiting[0]
            room = self.connection.room if flow.window is None else min(self.connection.room, flow.window.room)
            if chunk.frame is not None and chunk.size <= max(room, 0):
                size, count = chunk.size, chunk.size or 1
                self._write(chunk.frame)
            elif not chunk.payload or room > 0:
                size, count = self._part(stream, chunk, room)
            else:
                return sent
            self.connection.sent(size, chunk.held)
            if flow.window is not None:
                flow.window.sent(size, chunk.held)
            self.blocked -= count
            sent = True
            if chunk.frame is not None or not chunk.payload:
                flow.waiting.popleft()
                flow.ended = flow.ended or chunk.end
        return sent

    def _part(self, stream: int, chunk: Chunk, room: int) -> tuple[int, int]:
        """Send what of a chunk fits in one frame of our own; its bytes, and how much less is `blocked`."""
        if chunk.frame is not None:  # it can't go on as it came: padding is left out and given back
            padding = chunk.size - len(chunk.payload)
            chunk.frame = None
            if padding:
                chunk.size -= padding
                self.blocked -= padding if chunk.size else padding - 1
                if not chunk.held:
                    self._repay(stream, padding)
        size = min(len(chunk.payload), room, LEAST_MAX_FRAME) if chunk.payload else 0
        piece, chunk.payload = chunk.payload[:size], chunk.payload[size:]
        last = chunk.end and not chunk.payload
        self._write(head(size, DATA, END_STREAM if last else 0, stream))
        if size:
            self._write(piece)
        count = size or 1
        chunk.size -= size
        return size, count
