"""Reports scheduling attempts that take too long: in every sweep, and when they end (spec 05 §7.3).

A cycle is short. Long attempts come from the wait at Permit, from volumes and from the API server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from control.scheduler.state.pods import PodInfo
from koordlet.app.logging import get_logger

log = get_logger(__name__)


@dataclass
class _Attempt:
    pod: PodInfo
    started: float


class AttemptMonitor:
    """Attempts in progress, by uid. `late(profile)` is called for each attempt that is found to take too long."""

    def __init__(self, now: Callable[[], float], late: Callable[[str], object], *, timeout: float = 30.0) -> None:
        """`timeout`: seconds."""
        self._now = now
        self._late = late
        self._timeout = timeout
        self._attempts: dict[str, _Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def started(self, pod: PodInfo) -> None:
        """A cycle for the pod begins."""
        self._attempts[pod.uid] = _Attempt(pod, self._now())

    def complete(self, pod: PodInfo) -> None:
        """The attempt ended, for whatever reason."""
        attempt = self._attempts.pop(pod.uid, None)
        if attempt is not None:
            self._check(attempt)

    def sweep(self) -> None:
        """Check all attempts in progress. Called every `--scheduler-monitor-period`."""
        for attempt in self._attempts.values():
            self._check(attempt)

    def _check(self, attempt: _Attempt) -> None:
        seconds = self._now() - attempt.started
        if seconds > self._timeout:
            pod = attempt.pod
            log.error("Scheduling takes too long", pod=pod.key, seconds=round(seconds, 3), attempts=pod.attempts)
            self._late(pod.shape.scheduler)
