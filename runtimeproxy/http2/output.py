"""What goes to one peer: neighbouring units of one read as one slice, everything in order, always whole units."""

from __future__ import annotations

from collections.abc import Callable

from runtimeproxy.http2.frames import Frame

Write = Callable[[bytes | memoryview], None]


class Output:
    """`write` must take memoryviews and not wait."""

    __slots__ = ("_end", "_start", "_view", "_write")

    def __init__(self, write: Write) -> None:
        self._write = write
        self._view: memoryview | None = None
        self._start = self._end = 0

    def pass_on(self, view: memoryview, frame: Frame) -> None:
        """The unit as it came; written at the latest by `flush`."""
        if view is self._view and frame.start == self._end:
            self._end = frame.end
            return
        self.flush()
        self._view, self._start, self._end = view, frame.start, frame.end

    def write(self, data: bytes | memoryview) -> None:
        """Bytes of our own, at once."""
        if self._view is not None:
            self.flush()
        self._write(data)

    def flush(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            self._write(view[self._start : self._end])
