"""Waiting for the queue, and its two clocks: backoffs end every second, leftovers are tried every 30 seconds."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from control.scheduler.queue.queue import SchedulingQueue
from control.scheduler.state.pods import PodInfo
from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.periodic import Periodic

BACKOFF_PERIOD = 1.0
LEFTOVER_PERIOD = 30.0


class Feed:
    """A service for `Runner`. For one task that pops."""

    def __init__(
        self, queue: SchedulingQueue, *, clock: Clock = SYSTEM_CLOCK, registry: CollectorRegistry | None = None
    ) -> None:
        self.name = "queue"
        self.queue = queue
        self._filled = asyncio.Event()
        queue.ready = self._filled.set
        self._flushes = [
            Periodic(name, period, flush, immediate=False, clock=clock, registry=registry)
            for name, period, flush in (
                ("queue-backoff", BACKOFF_PERIOD, queue.flush_backoff),
                ("queue-leftover", LEFTOVER_PERIOD, queue.flush_leftover),
            )
        ]

    async def start(self) -> None:
        for flush in self._flushes:
            await flush.start()

    async def stop(self) -> None:
        for flush in self._flushes:
            await flush.stop()

    async def pop(self) -> PodInfo:
        """The next pod; waits until there is one."""
        return (await self.pop_run(1))[0]

    async def pop_run(self, limit: int) -> list[PodInfo]:
        """The next pods of one shape, at least one; waits until there is one."""
        while not (run := self.queue.pop_run(limit)):
            self._filled.clear()
            await self._filled.wait()
        return run
