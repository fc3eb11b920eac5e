"""The interface for recording events: `LogAuditor` with gate AuditEvents, else `NullAuditor` (spec 02 §9.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.audit.events import About, line
from koordlet.audit.logfile import AuditLogFile


class Auditor(Protocol):
    """Used by strategies, the executor and detectors."""

    def enabled(self, level: int) -> bool:
        """Whether events of this level are recorded; check it before computing an expensive message."""
        ...

    def record(
        self, level: int, about: About, reason: str, message: str = "", *, details: Mapping[str, Any] | None = None
    ) -> None:
        """Record one event. `level`: 0 evictions, 1 quota changes, 3 each changed file. `reason` is a CamelCase word,
        `message` is for people, `details` are fields for programs. Never raises and never blocks for long."""
        ...


class NullAuditor:
    """Discards all events."""

    def enabled(self, level: int) -> bool:
        return False

    def record(
        self, level: int, about: About, reason: str, message: str = "", *, details: Mapping[str, Any] | None = None
    ) -> None:
        return None


class LogAuditor:
    """Writes events up to level `verbose` (0: all) to a log."""

    def __init__(self, log: AuditLogFile, verbose: int = 3, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log = log
        self._verbose = verbose
        self._clock = clock

    def enabled(self, level: int) -> bool:
        return self._verbose == 0 or level <= self._verbose

    def record(
        self, level: int, about: About, reason: str, message: str = "", *, details: Mapping[str, Any] | None = None
    ) -> None:
        if self.enabled(level):
            self._log.append(line(self._clock.now(), level, about, reason, message, details))
            if level <= 0:  # the events that are needed after a crash
                self._log.flush()
