"""A client's connection and the one to the runtime that it gets: sockets, back-pressure, ends.

Whatever one side does to its connection is done to the other: end of stream, loss. A client that does not begin with
HTTP/2's preface is relayed as bytes. Nothing is read from either side before it is known which it is, while the other
side's buffer is full, or (the client) while `Splice` asks for it: so each connection buffers two socket reads and what
`exchange` allows to hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import cast

from koordlet.app.http2.frames import PREFACE, FrameError
from koordlet.app.logging import get_logger
from runtimeproxy.http2.exchange import Holding, Interest
from runtimeproxy.http2.splice import Splice

log = get_logger(__name__)

_LINGER = 5.0
"""Seconds that a side has to take what was written before its peer went."""


class Why(Enum):
    """Why nothing is read from a side."""

    UNDECIDED = auto()
    FULL = auto()
    STALLED = auto()


class Side(asyncio.Protocol):
    """One of the two sockets."""

    def __init__(self, link: Link, name: str) -> None:
        self.link, self.name = link, name
        self.transport: asyncio.Transport | None = None
        self.take: Callable[[bytes], None] = self._not_yet
        self._reasons: set[Why] = {Why.UNDECIDED}
        self._early: list[bytes] = []
        self._finished = False
        self.other: Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.transport.pause_reading()
        self.link.made(self)

    def _not_yet(self, data: bytes) -> None:
        """A loop may begin to read although `connection_made` asked it not to."""
        self._early.append(data)
        if self.transport is not None:
            self.transport.pause_reading()

    def begin(self, take: Callable[[bytes], None]) -> None:
        """It is known what to do with what arrives."""
        self.take = take
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)
        self.hold(Why.UNDECIDED, False)

    def data_received(self, data: bytes) -> None:
        try:
            self.take(data)
        except FrameError as error:
            self.link.malformed(self, error)

    def eof_received(self) -> bool:
        return self.link.ended(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.lost(self)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.hold(Why.FULL, True)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.hold(Why.FULL, False)

    def hold(self, why: Why, on: bool) -> None:
        """Stop reading for a reason, or forget that reason; read when there is none."""
        before = bool(self._reasons)
        (self._reasons.add if on else self._reasons.discard)(why)
        after = bool(self._reasons)
        if before == after or self.transport is None or self.transport.is_closing():
            return
        (self.transport.pause_reading if after else self.transport.resume_reading)()

    def write(self, data: bytes | memoryview) -> None:
        self.writelines([data])

    def writelines(self, pieces: list[bytes | memoryview]) -> None:
        """Nothing more once the connection ends, or its end of stream was written."""
        if self.transport is not None and not self._finished and not self.transport.is_closing():
            self.transport.writelines(pieces)

    def write_eof(self) -> None:
        if self.transport is not None and not self._finished and not self.transport.is_closing():
            self._finished = True
            self.transport.write_eof()

    def close(self) -> None:
        """Send what is written, then close; don't wait for ever."""
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.close()
        asyncio.get_running_loop().call_later(_LINGER, self.transport.abort)


Connect = Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]
"""Connects to the runtime with this protocol; OSError when it can't."""


class Link:
    """One client. Register with `client` as the protocol of an accepted connection."""

    def __init__(
        self,
        connect: Connect,
        interest: Interest,
        holding: Holding,
        opened: Callable[[Link], None],
        closed: Callable[[Link], None],
        broken: Callable[[], None],
    ) -> None:
        """`closed` follows `opened` once; `broken` counts connections that were closed for what came over them."""
        self._connect, self._interest, self._holding = connect, interest, holding
        self._opened, self._closed, self._broken = opened, closed, broken
        self.client = Side(self, "client")
        self._backend = Side(self, "runtime")
        self._splice: Splice | None = None
        self._first = b""
        self._task: asyncio.Task[None] | None = None
        self._eof: set[Side] = set()

    def made(self, side: Side) -> None:
        if side is self.client:
            self._opened(self)
            self._task = asyncio.get_running_loop().create_task(self._reach())

    async def _reach(self) -> None:
        try:
            await self._connect(lambda: self._backend)
        except OSError as error:
            log.warning("Cannot reach the runtime for a client", err=error)
            self.close()
            return
        if self.client.transport is None or self.client.transport.is_closing():
            self._backend.close()
            return
        self.client.other, self._backend.other = self._backend, self.client
        self.client.begin(self._decide)

    def _decide(self, data: bytes) -> None:
        """The client's first bytes: HTTP/2 or not."""
        self._first += data
        if len(self._first) < len(PREFACE) and PREFACE.startswith(self._first):
            return
        data, self._first = self._first, b""
        self._backend.write(data[: len(PREFACE)])
        rest = data[len(PREFACE) :]
        if data.startswith(PREFACE):
            self._splice = Splice(
                self._backend.writelines, self.client.writelines, self._interest, self._holding, self._stalled
            )
            self.client.take = self._splice.from_client
            self._backend.begin(self._splice.from_backend)
            self._splice.from_client(rest)
            return
        log.once("blind", "A client does not speak HTTP/2; relaying bytes")
        self.client.take = self._backend.write
        self._backend.begin(self.client.write)
        if rest:
            self._backend.write(rest)

    def _stalled(self, on: bool) -> None:
        self.client.hold(Why.STALLED, on)

    def ended(self, side: Side) -> bool:
        """A side sends no more: the other hears of it; whether this side is still written to."""
        self._eof.add(side)
        if side is self.client and self._splice is not None:
            self._splice.close()
        if self._first:
            self._backend.write(self._first)
            self._first = b""
        if side.other is None or len(self._eof) == 2:
            self.close()
            return False
        side.other.write_eof()
        return True

    def lost(self, side: Side) -> None:
        """A side is gone."""
        if side is self.client:
            self._closed(self)
        self.close()

    def malformed(self, side: Side, error: FrameError) -> None:
        """Nothing that follows can be understood; the peers' own view is as bad."""
        self._broken()
        log.once(f"malformed:{side.name}", "Closing a connection for what came over it", peer=side.name, err=error)
        self.close()

    def last_word(self) -> None:
        """Ask the client to go elsewhere once its calls are answered."""
        if self._splice is not None:
            self._splice.last_word()

    def close(self) -> None:
        """End both sides."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if self._splice is not None:
            self._splice.close()
        self.client.close()
        self._backend.close()
