"""Sharing the event loop: long work runs in slices of two milliseconds, with a rest of the same length after each.

    for node in nodes:
        work_on(node)
        await yield_to_loop()

Serving a request takes several iterations of the loop. With `sleep(0)` between two pieces of work the request would
wait for one piece per iteration; during a rest it is served completely. All tasks of a loop share one slice, so several
working tasks do not occupy the loop longer than one does. These tasks get at most half of the loop's time, which is why
nothing at start-up yields like this (`koordlet.kube.informer`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final
from weakref import WeakKeyDictionary

SLICE_S: Final = 0.002
MAX_REST_S: Final = 0.02
"""After a piece of work that took longer than a slice and could not be divided."""


class LoopSlice:
    """How much of the current slice of a loop is used. It measures real time even where tests use a fake clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._started_at: float | None = None
        """Time of the first call in this iteration of the loop."""

    def remaining(self) -> float:
        """Seconds until the slice ends; negative after its end."""
        now = time.perf_counter()
        if self._started_at is None:
            self._started_at = now
            self._loop.call_soon(self._on_next_iteration)
        return self._started_at + SLICE_S - now

    def _on_next_iteration(self) -> None:
        self._started_at = None


_SLICES: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopSlice] = WeakKeyDictionary()


async def yield_to_loop() -> None:
    """Rest if the slice of this loop is used up; costs a microsecond otherwise."""
    loop = asyncio.get_running_loop()
    current = _SLICES.get(loop)
    if current is None:
        current = _SLICES[loop] = LoopSlice(loop)
    overrun = -current.remaining()
    if overrun >= 0:
        await asyncio.sleep(min(overrun + SLICE_S, MAX_REST_S))
