"""Where callers put events: `LogAuditor` with gate AuditEvents, `NullAuditor` without (spec 02 §9.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.audit.events import About, line
from koordlet.audit.logfile import AuditLog


class Auditor(Protocol):
    """The face that strategies, executor and detectors see."""

    def enabled(self, level: int) -> bool:
        """Whether events of this level are kept: ask before computing an expensive message."""
        ...

    def record(
        self, level: int, about: About, reason: str, message: str = "", *, details: Mapping[str, Any] | None = None
    ) -> None:
        """Keep one event. `level`: 0 evictions, 1 quota changes, 3 every changed file. `reason` is one CamelCase word,
        `message` is for people, `details` a few facts for programs. Never raises, never blocks for long."""
        ...


class NullAuditor:
    """Keeps nothing."""

    def enabled(self, level: int) -> bool:
        return False

    def record(
        self, level: int, about: About, reason: str, message: str = "", *, details: Mapping[str, Any] | None = None
    ) -> None:
        return None


class LogAuditor:
    """Writes events up to level `verbose` (0: all of them) to a log."""

    def __init__(self, log: AuditLog, verbose: int = 3, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log, self._verbose, self._clock = log, verbose, clock

    def enabled(self, level: int) -> bool:
        return self._verbose == 0 or level <= self._verbose

    def record(
        self, level: int, about: About, reason: str, message: str = "", *, details: Mapping[str, Any] | None = None
    ) -> None:
        if self.enabled(level):
            self._log.append(line(self._clock.now(), level, about, reason, message, details))
            if level <= 0:  # what people look for after a crash
                self._log.flush()
