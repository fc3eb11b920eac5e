"""One of a link's two connections: its transport, unsent bytes, and the reasons why it is not read.

Everything written in one iteration of the event loop is sent in one write at its end: separate writes would each be a
system call and wake the peer.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import cast

MAX_UNSENT_BYTES = 512 << 10
"""With more unsent bytes on a side, its mate is not read."""


class DockerSide(asyncio.Protocol):
    """Calls back on events. `mate`: the side whose bytes are written here."""

    mate: DockerSide

    def __init__(
        self,
        connected: Callable[[], None],
        data: Callable[[bytes], None],
        ended: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._made = connected
        self._data = data
        self._ended = ended
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._pauses: set[str] = set()
        self._pieces: list[bytes] = []
        """Written in this iteration of the event loop."""
        self._eof_received = False
        self._eof_written = False

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._made()
        self.flush_both()

    def data_received(self, data: bytes) -> None:
        self._data(data)
        self.flush_both()

    def eof_received(self) -> bool:
        self._eof_received = True
        self._ended()
        self.flush_both()
        return True  # False would make asyncio close the sending half too

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def pause_writing(self) -> None:
        self.mate.pause("mate")

    def resume_writing(self) -> None:
        self.mate.resume("mate")

    # Called by the link

    @property
    def _live(self) -> asyncio.Transport | None:
        transport = self._transport
        return None if transport is None or transport.is_closing() else transport

    @property
    def unsent(self) -> bool:
        """Whether bytes wait for the peer to read."""
        transport = self._live
        return transport is not None and (bool(self._pieces) or transport.get_write_buffer_size() > 0)

    def pause(self, reason: str) -> None:
        """Stop reading until every reason is removed."""
        transport = self._live
        if transport is not None and not self._pauses and not self._eof_received:
            transport.pause_reading()
        self._pauses.add(reason)

    def resume(self, reason: str) -> None:
        if reason not in self._pauses:
            return
        self._pauses.discard(reason)
        transport = self._live
        if transport is not None and not self._pauses and not self._eof_received:
            transport.resume_reading()

    def write(self, data: bytes | bytearray) -> None:
        """Send with the next flush; every iteration that asyncio begins here or at the mate ends with one."""
        if data and not self._eof_written:
            self._pieces.append(bytes(data))

    def flush_both(self) -> None:
        """Flush both sides at the end of an iteration."""
        if self.mate._pieces:
            self.mate.flush()
        if self._pieces:
            self.flush()

    def flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        transport = self._live
        if transport is None or not pieces:
            return
        if len(pieces) == 1:
            transport.write(pieces[0])
        else:
            transport.writelines(pieces)

    def write_end(self) -> None:
        """Half-close after what is unsent."""
        self.flush()
        transport = self._live
        if transport is not None and not self._eof_written:
            self._eof_written = True
            transport.write_eof()

    def close(self) -> None:
        """Close after what is unsent."""
        self.flush()
        transport = self._live
        if transport is not None:
            transport.close()

    def peer_gone(self) -> bool:
        """After the peer's end of file: whether its socket is closed, not only the sending half (POLLHUP)."""
        transport = self._live
        sock: socket.socket | None = transport.get_extra_info("socket") if transport is not None else None
        if sock is None or sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(sock.fileno(), 0)
        return bool(poll.poll(0))
