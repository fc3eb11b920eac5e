"""Pods being scheduled, and what happened meanwhile: an event during an attempt must not be lost on its pod.

The log begins where the oldest attempt began. It is bounded: a pod whose beginning has fallen off the log is taken to
have missed something that helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from control.scheduler.framework.plugin import Event


@dataclass(frozen=True, slots=True)
class Happening:
    """An event with the objects that it was about."""

    event: Event
    old: Any
    new: Any


@dataclass(slots=True)
class _Attempt:
    start: int
    own: list[Happening] = field(default_factory=list)
    forced: bool = False


class InFlight:
    """Attempts by uid of the pod."""

    LIMIT: Final = 1 << 15

    def __init__(self) -> None:
        self._attempts: dict[str, _Attempt] = {}
        self._base = 0
        self._log: list[Happening] = []

    def __len__(self) -> int:
        return len(self._attempts)

    def __contains__(self, uid: str) -> bool:
        return uid in self._attempts

    @property
    def events(self) -> Sequence[Happening]:
        return self._log

    def begin(self, uid: str) -> None:
        self._attempts.pop(uid, None)  # a second attempt goes to the end of the order
        self._attempts[uid] = _Attempt(self._base + len(self._log))

    def end(self, uid: str) -> tuple[Sequence[Happening] | None, bool]:
        """End an attempt: (what happened since it began, or None if that is not known any more; whether forced)."""
        attempt = self._attempts.pop(uid, None)
        if attempt is None:
            return (), False
        missed = None
        if attempt.start >= self._base:
            missed = attempt.own + self._log[attempt.start - self._base :]
        self._trim()
        return missed, attempt.forced

    def note(self, happening: Happening) -> None:
        """Something happened in the cluster."""
        if not self._attempts:
            return
        self._log.append(happening)
        if len(self._log) > self.LIMIT:
            self._base += self.LIMIT // 2
            del self._log[: self.LIMIT // 2]

    def note_for(self, uid: str, happening: Happening) -> None:
        """Something happened to this pod itself."""
        self._attempts[uid].own.append(happening)

    def force(self, uid: str) -> None:
        """Let the pod come back to the active queue at once."""
        self._attempts[uid].forced = True

    def _trim(self) -> None:
        oldest = next(iter(self._attempts.values()), None)
        if oldest is None:
            self._base += len(self._log)
            self._log.clear()
        elif oldest.start - self._base > len(self._log) // 2:
            del self._log[: oldest.start - self._base]
            self._base = oldest.start
