"""Lets a task wait for pods, ends backoffs every second and retries long-waiting pods every 30 seconds."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from control.scheduler.queue.queue import SchedulingQueue
from control.scheduler.state.pods import PodInfo
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.periodic import Periodic

BACKOFF_PERIOD_S = 1.0
LEFTOVER_PERIOD_S = 30.0


class Feed:
    """A service for `Runner`. Only one task may pop."""

    def __init__(self, queue: SchedulingQueue, *, clock: Clock = SYSTEM_CLOCK, registry: CollectorRegistry) -> None:
        self.name = "queue"
        self.queue = queue
        self._filled = asyncio.Event()
        queue.ready = self._filled.set
        self._flushes = [
            Periodic(name, period, flush, immediate=False, clock=clock, registry=registry)
            for name, period, flush in (
                ("queue-backoff", BACKOFF_PERIOD_S, queue.flush_backoff),
                ("queue-leftover", LEFTOVER_PERIOD_S, queue.flush_leftover),
            )
        ]

    async def start(self) -> None:
        for flush in self._flushes:
            await flush.start()

    async def stop(self) -> None:
        for flush in self._flushes:
            await flush.stop()

    async def pop_run(self, limit: int) -> list[PodInfo]:
        """Wait for the next pods, at least one, all of one shape."""
        while not (run := self.queue.pop_run(limit)):
            self._filled.clear()
            await self._filled.wait()
        return run
