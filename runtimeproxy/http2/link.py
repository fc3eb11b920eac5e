"""Connects a client's socket with a new connection to the runtime: back-pressure, half-close, loss.

What happens to one connection is repeated on the other: end of stream, loss. A client that does not begin with the
HTTP/2 preface is relayed as bytes. A side is not read before its protocol is known, while the other side's write buffer
is full, or (the client) while `Splice` stalls it. So each connection buffers at most two socket reads plus what
`interception` allows to hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import cast

from koordlet.app.http2.frames import PREFACE, FrameError
from koordlet.app.logging import get_logger
from runtimeproxy.http2.interception import GrpcHandlerSelector, HoldBudget
from runtimeproxy.http2.splice import Splice

log = get_logger(__name__)

_LINGER_S = 5.0
"""Time for a side to receive what was written before the other side closed."""


class PauseReason(Enum):
    """Why a side is not read."""

    PROTOCOL_UNKNOWN = auto()
    PEER_BUFFER_FULL = auto()
    SPLICE_STALLED = auto()


class Http2Side(asyncio.Protocol):
    """One of the two sockets of a link."""

    def __init__(self, link: Http2Link, name: str) -> None:
        self.link = link
        self.name = name
        self.transport: asyncio.Transport | None = None
        self.on_data: Callable[[bytes], None] = self._buffer_early
        self._pauses: set[PauseReason] = {PauseReason.PROTOCOL_UNKNOWN}
        self._early: list[bytes] = []
        self._eof_written = False
        self.other: Http2Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self.transport.pause_reading()
        self.link.made(self)

    def _buffer_early(self, data: bytes) -> None:
        """An event loop may start to read although `connection_made` paused reading."""
        self._early.append(data)
        if self.transport is not None:
            self.transport.pause_reading()

    def begin(self, on_data: Callable[[bytes], None]) -> None:
        """Start reading into `on_data`."""
        self.on_data = on_data
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)
        self.set_paused(PauseReason.PROTOCOL_UNKNOWN, False)

    def data_received(self, data: bytes) -> None:
        try:
            self.on_data(data)
        except FrameError as error:
            self.link.malformed(self, error)

    def eof_received(self) -> bool:
        return self.link.ended(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.lost(self)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.set_paused(PauseReason.PEER_BUFFER_FULL, True)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.set_paused(PauseReason.PEER_BUFFER_FULL, False)

    def set_paused(self, reason: PauseReason, paused: bool) -> None:
        """Add or remove a reason not to read; the socket is read while there is none."""
        before = bool(self._pauses)
        (self._pauses.add if paused else self._pauses.discard)(reason)
        after = bool(self._pauses)
        if before == after or self.transport is None or self.transport.is_closing():
            return
        (self.transport.pause_reading if after else self.transport.resume_reading)()

    def write(self, data: bytes | memoryview) -> None:
        self.writelines([data])

    def writelines(self, pieces: list[bytes | memoryview]) -> None:
        """Ignored once the connection is closing or its end of stream was written."""
        if self.transport is not None and not self._eof_written and not self.transport.is_closing():
            self.transport.writelines(pieces)

    def write_eof(self) -> None:
        if self.transport is not None and not self._eof_written and not self.transport.is_closing():
            self._eof_written = True
            self.transport.write_eof()

    def close(self) -> None:
        """Send what is written, then close; abort after `_LINGER_S`."""
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.close()
        asyncio.get_running_loop().call_later(_LINGER_S, self.transport.abort)


Connect = Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]
"""Connects to the runtime with this protocol factory; raises OSError."""


class Http2Link:
    """One client. `client` is the protocol for the accepted connection."""

    def __init__(
        self,
        connect: Connect,
        select: GrpcHandlerSelector,
        budget: HoldBudget,
        opened: Callable[[Http2Link], None],
        closed: Callable[[Http2Link], None],
        on_malformed: Callable[[], None],
    ) -> None:
        """`closed` follows `opened` exactly once; `on_malformed` counts connections closed because of invalid bytes."""
        self._connect = connect
        self._select = select
        self._budget = budget
        self._opened = opened
        self._closed = closed
        self._on_malformed = on_malformed
        self.client = Http2Side(self, "client")
        self._runtime = Http2Side(self, "runtime")
        self._splice: Splice | None = None
        self._first = b""
        self._task: asyncio.Task[None] | None = None
        self._eof: set[Http2Side] = set()

    def made(self, side: Http2Side) -> None:
        if side is self.client:
            self._opened(self)
            self._task = asyncio.get_running_loop().create_task(self._connect_runtime())

    async def _connect_runtime(self) -> None:
        try:
            await self._connect(lambda: self._runtime)
        except OSError as error:
            log.warning("Cannot connect to the runtime for a client", err=error)
            self.close()
            return
        if self.client.transport is None or self.client.transport.is_closing():
            self._runtime.close()
            return
        self.client.other = self._runtime
        self._runtime.other = self.client
        self.client.begin(self._detect_protocol)

    def _detect_protocol(self, data: bytes) -> None:
        """Splice the connection if its first bytes are the HTTP/2 preface, else relay it."""
        self._first += data
        if len(self._first) < len(PREFACE) and PREFACE.startswith(self._first):
            return
        data, self._first = self._first, b""
        self._runtime.write(data[: len(PREFACE)])
        rest = data[len(PREFACE) :]
        if data.startswith(PREFACE):
            self._splice = Splice(
                self._runtime.writelines, self.client.writelines, self._select, self._budget, self._stalled
            )
            self.client.on_data = self._splice.from_client
            self._runtime.begin(self._splice.from_runtime)
            self._splice.from_client(rest)
            return
        log.once("blind", "Client does not use HTTP/2; relaying bytes")
        self.client.on_data = self._runtime.write
        self._runtime.begin(self.client.write)
        if rest:
            self._runtime.write(rest)

    def _stalled(self, stalled: bool) -> None:
        self.client.set_paused(PauseReason.SPLICE_STALLED, stalled)

    def ended(self, side: Http2Side) -> bool:
        """End of file from `side`: half-close the other one. Returns whether `side` is still written to."""
        self._eof.add(side)
        if side is self.client and self._splice is not None:
            self._splice.close()
        if self._first:
            self._runtime.write(self._first)
            self._first = b""
        if side.other is None or len(self._eof) == 2:
            self.close()
            return False
        if side is self.client and self._splice is None:
            self._runtime.begin(self.client.write)  # the protocol stays unknown: relay until the runtime closes
        side.other.write_eof()
        return True

    def lost(self, side: Http2Side) -> None:
        """The connection of `side` is closed."""
        if side is self.client:
            self._closed(self)
        self.close()

    def malformed(self, side: Http2Side, error: FrameError) -> None:
        """Invalid frames from `side`: the rest of the connection cannot be parsed, by the peers neither."""
        self._on_malformed()
        log.once(f"malformed:{side.name}", "Closing a connection with invalid frames", peer=side.name, err=error)
        self.close()

    def send_goaway(self) -> None:
        """Make the client open no new streams on this connection."""
        if self._splice is not None:
            self._splice.send_goaway()

    def close(self) -> None:
        """Close both sides."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if self._splice is not None:
            self._splice.close()
        self.client.close()
        self._runtime.close()
