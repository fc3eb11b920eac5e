"""One task waiting for whatever happens to one pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from koordlet.app.clock import Clock


class ChangeSignal:
    """`ring` says that something has changed; `dirty` stays set until the pod has been looked at anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()
        self.dirty = True

    def notify_change(self) -> None:
        self.dirty = True
        self._event.set()

    def recheck(self) -> None:
        """Have waiters look at their conditions again, no more."""
        self._event.set()

    async def wait_until(self, done: Callable[[], bool], limit: Callable[[], float | None]) -> bool:
        """Wait for `done()`, looked at after each event, or until `limit()` (monotonic, may move; None: for ever)."""
        while not done():
            at = limit()
            left = None if at is None else at - self._clock.monotonic()
            if left is not None and left <= 0:
                return False
            self._event.clear()
            try:
                async with self._clock.timeout(left):
                    await self._event.wait()
            except TimeoutError:
                continue
        return True
