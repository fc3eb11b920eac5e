"""The last seconds of a source that only has totals: two snapshots whose difference is taken. Pure.

Snapshots are kept at every quarter of the window, so a window is up to a quarter longer than requested.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

PARTS = 4
"""Parts of a window between the snapshots that are kept."""
JITTER_RATIO = 0.05
"""Part of a window by which it may be shorter than requested: readings come a little early or late, and without this
tolerance every second window would be one reading longer."""


class Snapshot(Protocol):
    """Cumulative figures of one source at one moment."""

    @property
    def source(self) -> str:
        """Snapshots of different sources have no difference."""

    @property
    def time_ns(self) -> int:
        """Monotonic clock."""


S = TypeVar("S", bound=Snapshot)


class SnapshotWindow(Generic[S]):
    """Holds at most six snapshots."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.latest: S | None = None
        self._kept: deque[S] = deque()

    def push(self, snapshot: S) -> None:
        """Add a reading; another source than before starts a new window."""
        if self.latest is not None and self.latest.source != snapshot.source:
            self._kept.clear()
        self.latest = snapshot
        horizon = snapshot.time_ns - self.seconds * (1.0 - JITTER_RATIO) * 1e9
        while len(self._kept) > 1 and self._kept[1].time_ns <= horizon:
            self._kept.popleft()
        if not self._kept or snapshot.time_ns - self._kept[-1].time_ns >= self.seconds * 1e9 / PARTS:
            self._kept.append(snapshot)

    def span(self) -> tuple[S, S, float] | None:
        """(oldest, newest, seconds between them); None before two readings."""
        if self.latest is None or not self._kept or self.latest.time_ns <= self._kept[0].time_ns:
            return None
        return self._kept[0], self.latest, (self.latest.time_ns - self._kept[0].time_ns) / 1e9
