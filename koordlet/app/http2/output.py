"""What goes to one peer: whole units in order, neighbouring ones of a read as one slice, all of a turn in one write.

Each write of its own would be a system call and wake the peer.
"""

from __future__ import annotations

from collections.abc import Callable

from koordlet.app.http2.frames import Frame

Piece = bytes | memoryview
Write = Callable[[list[Piece]], None]
"""Takes pieces to be sent one after the other; does not wait."""


class Output:
    """Nothing goes before `flush`."""

    __slots__ = ("_end", "_pieces", "_start", "_view", "_write")

    def __init__(self, write: Write) -> None:
        self._write = write
        self._pieces: list[Piece] = []
        self._view: memoryview | None = None
        self._start = self._end = 0

    def pass_on(self, view: memoryview, frame: Frame) -> None:
        """The unit as it came."""
        if view is self._view and frame.start == self._end:
            self._end = frame.end
            return
        self._cut()
        self._view, self._start, self._end = view, frame.start, frame.end

    def write(self, data: Piece) -> None:
        """Bytes of our own."""
        self._cut()
        self._pieces.append(data)

    def flush(self) -> None:
        """The turn is over."""
        self._cut()
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._write(pieces)

    def _cut(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            self._pieces.append(view[self._start : self._end])
