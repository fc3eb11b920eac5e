"""The last seconds of a source that only knows totals: two snapshots to take the difference of.

Snapshots ("anchors") are kept at every quarter of the window, so a window is up to a quarter longer than asked for.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

ANCHORS = 4


class Snapshot(Protocol):
    @property
    def source(self) -> str: ...
    @property
    def time_ns(self) -> int: ...


S = TypeVar("S", bound=Snapshot)


class Window(Generic[S]):
    """Holds at most six snapshots."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.latest: S | None = None
        self._anchors: deque[S] = deque()

    def push(self, snapshot: S) -> None:
        """Take a reading; another source than before starts the window anew."""
        if self.latest is not None and self.latest.source != snapshot.source:
            self._anchors.clear()
        self.latest = snapshot
        horizon = snapshot.time_ns - self.seconds * 1e9
        while len(self._anchors) > 1 and self._anchors[1].time_ns <= horizon:
            self._anchors.popleft()
        if not self._anchors or snapshot.time_ns - self._anchors[-1].time_ns >= self.seconds * 1e9 / ANCHORS:
            self._anchors.append(snapshot)

    def span(self) -> tuple[S, S, float] | None:
        """(oldest, newest, seconds between them); None before two readings."""
        if self.latest is None or not self._anchors or self.latest.time_ns <= self._anchors[0].time_ns:
            return None
        return self._anchors[0], self.latest, (self.latest.time_ns - self._anchors[0].time_ns) / 1e9
