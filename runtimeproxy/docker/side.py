"""One of a link's two connections: a transport, what is unsent on it, and why it isn't read at the moment.

What is written in one turn goes in one write at its end: each of its own would be a system call and wake the peer.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import cast

BUFFERED = 512 << 10
"""Unsent bytes on a side from which on its mate is no longer read."""


class Side(asyncio.Protocol):
    """Calls back for what happens; `mate` is the side that the bytes come from which are written here."""

    mate: Side

    def __init__(
        self,
        made: Callable[[], None],
        data: Callable[[bytes], None],
        ended: Callable[[], None],
        gone: Callable[[], None],
    ) -> None:
        self._made, self._data, self._on_end, self._gone = made, data, ended, gone
        self._transport: asyncio.Transport | None = None
        self._pauses: set[str] = set()
        self._pieces: list[bytes] = []
        """Written in this turn."""
        self._read_end = False
        self._sent_end = False

    # -- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._transport.set_write_buffer_limits(high=BUFFERED)
        self._made()
        self.flush_both()

    def data_received(self, data: bytes) -> None:
        self._data(data)
        self.flush_both()

    def eof_received(self) -> bool:
        self._read_end = True
        self._on_end()
        self.flush_both()
        return True  # asyncio would close the sending half too

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._gone()

    def pause_writing(self) -> None:
        self.mate.pause("mate")

    def resume_writing(self) -> None:
        self.mate.resume("mate")

    # -- the link's calls

    @property
    def _live(self) -> asyncio.Transport | None:
        transport = self._transport
        return None if transport is None or transport.is_closing() else transport

    @property
    def unsent(self) -> bool:
        """Whether something waits for the peer to read."""
        transport = self._live
        return transport is not None and (bool(self._pieces) or transport.get_write_buffer_size() > 0)

    def pause(self, reason: str) -> None:
        """Read no more until every reason has gone."""
        transport = self._live
        if transport is not None and not self._pauses and not self._read_end:
            transport.pause_reading()
        self._pauses.add(reason)

    def resume(self, reason: str) -> None:
        if reason not in self._pauses:
            return
        self._pauses.discard(reason)
        transport = self._live
        if transport is not None and not self._pauses and not self._read_end:
            transport.resume_reading()

    def write(self, data: bytes | bytearray) -> None:
        """With the next flush; a turn that asyncio began here or at the mate ends with one."""
        if data and not self._sent_end:
            self._pieces.append(bytes(data))

    def flush_both(self) -> None:
        """The end of a turn, here and at the mate."""
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
        """Half close, after what is still unsent."""
        self.flush()
        transport = self._live
        if transport is not None and not self._sent_end:
            self._sent_end = True
            transport.write_eof()

    def close(self) -> None:
        """After what is still unsent."""
        self.flush()
        transport = self._live
        if transport is not None:
            transport.close()

    def peer_gone(self) -> bool:
        """After the peer's end of file: whether its socket is closed, not only the sending half (POLLHUP tells)."""
        transport = self._live
        sock: socket.socket | None = transport.get_extra_info("socket") if transport is not None else None
        if sock is None or sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(sock.fileno(), 0)
        return bool(poll.poll(0))
