"""Lets a pod's task wait for changes and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from koordlet.app.clock import Clock


class ChangeSignal:
    """`dirty` is set by `notify_change` and cleared by the pod's task before each pass."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()
        self.dirty = True

    def notify_change(self) -> None:
        self.dirty = True
        self._event.set()

    def recheck(self) -> None:
        """Make waiters check their conditions again, without marking the pod as changed."""
        self._event.set()

    async def wait_until(self, done: Callable[[], bool], limit: Callable[[], float | None]) -> bool:
        """Wait until `done()`, checked at each notification, or until `limit()`; False at the limit.

        `limit()` is a monotonic time that may change, or None for no limit.
        """
        while not done():
            deadline = limit()
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                return False
            self._event.clear()
            try:
                async with self._clock.timeout(left):
                    await self._event.wait()
            except TimeoutError:
                continue
        return True
