"""The culprit matrix of the last seconds. Pure.

The matrix of a full node has fifty thousand pairs and more; a small part of it grows within seconds. So one whole
reading is kept, and for each part of the window only what was added. The collector of schedule latency has a window for
`/top`, the interference detector a shorter one.
"""

from __future__ import annotations

from collections import deque

from koordlet.probes.culprits.matrix import CulpritMatrix
from koordlet.probes.culprits.reader import MatrixReading


class CulpritWindow:
    """As long as a `SnapshotWindow` of the same seconds, or as the time between two readings if that is longer. A part
    that is longer than the window is left out once a newer one exists: its average would hide what is new.

    Memory: one `MatrixReading`, and the matrix of each part of the window."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last: MatrixReading | None = None
        self._added: deque[tuple[int, CulpritMatrix]] = deque()
        """(begin, what was added from then to the next part's begin, or to `_last`)."""
        self._pushed: CulpritMatrix | None = None

    def resize(self, seconds: float) -> None:
        """Set the length; it applies from the next reading on."""
        self.seconds = seconds

    def due(self, now_ns: int, seconds: float) -> bool:
        """Whether the last reading is at least this many seconds old."""
        return self._last is None or now_ns - self._last.time_ns >= seconds * 1e9

    def push(self, reading: MatrixReading) -> None:
        """Add a reading; another source than before empties the window first."""
        if self._last is None or self._last.source != reading.source:
            self._added.clear()
        else:
            self._added.append((self._last.time_ns, reading.minus(self._last)))
        self._last = reading
        self._pushed = None
        window_ns = self.seconds * 1e9
        while len(self._added) > 1:
            (begin, _), (end, _) = self._added[0], self._added[1]
            if end > reading.time_ns - window_ns and end - begin <= window_ns:
                break
            self._added.popleft()

    def until(self, now: MatrixReading) -> tuple[CulpritMatrix, float] | None:
        """(what was added from the window's begin to `now`, in how many seconds). A pair may occur several times. None
        before two readings."""
        if self._last is None or self._last.source != now.source:
            return None
        begin = self._added[0][0] if self._added else self._last.time_ns
        if now.time_ns <= begin:
            return None
        parts = [*(matrix for _, matrix in self._added), now.minus(self._last)]
        return CulpritMatrix.concatenate(parts), (now.time_ns - begin) / 1e9

    def pushed(self) -> tuple[CulpritMatrix, float] | None:
        """As `until`, up to the last reading that was pushed."""
        if self._last is None or not self._added:
            return None
        if self._pushed is None:
            self._pushed = CulpritMatrix.concatenate([matrix for _, matrix in self._added])
        return self._pushed, (self._last.time_ns - self._added[0][0]) / 1e9
