"""Attempts that take too long are told, once a sweep and once at their end (spec 05 §7.3).

A cycle is short; what can take long is what follows it: waiting at Permit, volumes, the API server.
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
    taken: float
    started: float | None = None


class Monitor:
    """Attempts under way, by uid. `late(profile)` is called for each that is found to take too long."""

    def __init__(
        self, now: Callable[[], float], late: Callable[[str], object], *, timeout: float = 30.0, unhandled: float = 5.0
    ) -> None:
        self._now, self._late = now, late
        self._timeout, self._unhandled = timeout, unhandled
        self._attempts: dict[str, _Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def taken(self, pod: PodInfo) -> None:
        """Taken from the queue; a terminating pod is forgotten."""
        if pod.terminating:
            self._attempts.pop(pod.uid, None)
        else:
            self._attempts[pod.uid] = _Attempt(pod, self._now())

    def started(self, pod: PodInfo) -> None:
        """Its cycle begins."""
        attempt = self._attempts.get(pod.uid)
        if attempt is None:
            attempt = self._attempts[pod.uid] = _Attempt(pod, self._now())
        attempt.started = self._now()

    def complete(self, pod: PodInfo) -> None:
        """Bound, or failed."""
        attempt = self._attempts.pop(pod.uid, None)
        if attempt is not None:
            self._check(attempt)

    def sweep(self) -> None:
        """Look at everything under way; due every `--scheduler-monitor-period`."""
        now = self._now()
        for uid, attempt in list(self._attempts.items()):
            if attempt.started is not None:
                self._check(attempt)
            elif now - attempt.taken > self._unhandled:
                del self._attempts[uid]

    def _check(self, attempt: _Attempt) -> None:
        if attempt.started is None:
            return
        seconds = self._now() - attempt.started
        if seconds > self._timeout:
            pod = attempt.pod
            log.error("Scheduling takes too long", pod=pod.key, seconds=round(seconds, 3), attempts=pod.attempts)
            self._late(pod.shape.scheduler)
