"""CrashLoopBackOff: the delay before a container that exits repeatedly is started again.

10 s, doubled up to 300 s; reset after a container has run for more than 10 minutes since its restart. Pure:
all times come from the caller (seconds of one monotonic clock).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

INITIAL_SECONDS = 10.0
MAX_SECONDS = 300.0
RESET_AFTER_SECONDS = 600.0


@dataclass(slots=True)
class _Entry:
    delay: float
    started: float


@dataclass(slots=True)
class CrashLoopBackoff:
    """Keys are containers (or images) of one kubelet; not persisted, as in the real kubelet."""

    initial: float = INITIAL_SECONDS
    maximum: float = MAX_SECONDS
    reset_after: float = RESET_AFTER_SECONDS
    _entries: dict[Hashable, _Entry] = field(default_factory=dict)

    def remaining(self, key: Hashable, ended_at: float, now: float) -> float:
        """Seconds until a container that exited at `ended_at` may be started; 0: now."""
        entry = self._entries.get(key)
        if entry is None or ended_at - entry.started > self.reset_after:
            return 0.0
        return max(0.0, entry.delay - (now - ended_at))

    def delay(self, key: Hashable) -> float:
        """The current delay in seconds, for messages."""
        entry = self._entries.get(key)
        return entry.delay if entry else 0.0

    def restarted(self, key: Hashable, ended_at: float, now: float) -> None:
        """Record the restart of a container that exited at `ended_at`: its next delay is longer."""
        entry = self._entries.get(key)
        if entry is None or ended_at - entry.started > self.reset_after:
            self._entries[key] = _Entry(self.initial, now)
        else:
            self._entries[key] = _Entry(min(entry.delay * 2, self.maximum), now)

    def forget(self, key: Hashable) -> None:
        self._entries.pop(key, None)
