"""Output to one peer: units in order, adjacent ones of one read as one slice, all of one loop iteration in one write.

Each separate write would be a system call and would wake the peer.
"""

from __future__ import annotations

from collections.abc import Callable

from koordlet.app.http2.frames import Frame

Piece = bytes | memoryview
Write = Callable[[list[Piece]], None]
"""Sends pieces in order; does not wait."""


class Output:
    """Collects output; `flush` sends it."""

    __slots__ = ("_end", "_pieces", "_start", "_view", "_write")

    def __init__(self, write: Write) -> None:
        self._write = write
        self._pieces: list[Piece] = []
        self._view: memoryview | None = None
        self._start = self._end = 0

    def pass_on(self, view: memoryview, frame: Frame) -> None:
        """Add a received unit unchanged."""
        if view is self._view and frame.start == self._end:
            self._end = frame.end
            return
        self._end_slice()
        self._view = view
        self._start = frame.start
        self._end = frame.end

    def write(self, data: Piece) -> None:
        """Add bytes generated here."""
        self._end_slice()
        self._pieces.append(data)

    def flush(self) -> None:
        """Send all collected output."""
        self._end_slice()
        if self._pieces:
            pieces = self._pieces
            self._pieces = []
            self._write(pieces)

    def _end_slice(self) -> None:
        if self._view is not None:
            self._pieces.append(self._view[self._start : self._end])
            self._view = None
