"""Attempts in progress and the cluster events since they began, so that a pod does not miss an event that helps it.

The log begins with the oldest attempt. It is bounded: a pod whose attempt began before the log is assumed to have
missed an event that helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from control.scheduler.framework.plugin import ClusterEvent


@dataclass(frozen=True, slots=True)
class InFlightEvent:
    """A cluster event with the object before and after it."""

    event: ClusterEvent
    old: Any
    new: Any


@dataclass(slots=True)
class _Attempt:
    start: int
    own: list[InFlightEvent] = field(default_factory=list)
    forced: bool = False


class InFlight:
    """Attempts by uid of the pod."""

    MAX_EVENTS: Final = 1 << 15

    def __init__(self) -> None:
        self._attempts: dict[str, _Attempt] = {}
        self._base = 0
        self._log: list[InFlightEvent] = []

    def __len__(self) -> int:
        return len(self._attempts)

    def __contains__(self, uid: str) -> bool:
        return uid in self._attempts

    @property
    def events(self) -> Sequence[InFlightEvent]:
        return self._log

    def begin(self, uid: str) -> None:
        self._attempts.pop(uid, None)  # so that a second attempt is the newest in the order
        self._attempts[uid] = _Attempt(self._base + len(self._log))

    def end(self, uid: str) -> tuple[Sequence[InFlightEvent] | None, bool]:
        """End an attempt: (the events since it began, or None if the log does not reach back; whether it was
        forced)."""
        attempt = self._attempts.pop(uid, None)
        if attempt is None:
            return (), False
        missed = None
        if attempt.start >= self._base:
            missed = attempt.own + self._log[attempt.start - self._base :]
        self._trim()
        return missed, attempt.forced

    def note(self, event: InFlightEvent) -> None:
        """Record an event for all attempts."""
        if not self._attempts:
            return
        self._log.append(event)
        if len(self._log) > self.MAX_EVENTS:
            self._base += self.MAX_EVENTS // 2
            del self._log[: self.MAX_EVENTS // 2]

    def note_for(self, uid: str, event: InFlightEvent) -> None:
        """Record an event of the pod itself."""
        self._attempts[uid].own.append(event)

    def force(self, uid: str) -> None:
        """After its attempt the pod returns to the active queue immediately."""
        self._attempts[uid].forced = True

    def _trim(self) -> None:
        oldest = next(iter(self._attempts.values()), None)
        if oldest is None:
            self._base += len(self._log)
            self._log.clear()
        elif oldest.start - self._base > len(self._log) // 2:
            del self._log[: oldest.start - self._base]
            self._base = oldest.start
