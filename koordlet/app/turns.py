"""Long work on a loop that others need: slices of two milliseconds, and as long a rest after each.

    for node in nodes:
        work_on(node)
        await give_way()

A request needs several turns of the loop, so that `sleep(0)` between two pieces of work would cost it a piece a turn;
a rest lets it run through. All tasks of a loop share one slice: several of them at work hold it no longer than one. At
most half of the loop's time goes to them, which is why nothing of the start-up waits like this (`informer`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final
from weakref import WeakKeyDictionary

SLICE_SECONDS: Final = 0.002
LONGEST_REST_SECONDS: Final = 0.02
"""After a piece that took longer than a slice, which nobody could divide."""


class Turns:
    """What of the present turn of a loop is used up. Times are real ones, whatever clock a test gives the rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._begun: float | None = None
        """When somebody first asked in this turn of the loop."""

    def left(self) -> float:
        """Seconds until the slice is over; negative after it."""
        now = time.perf_counter()
        if self._begun is None:
            self._begun = now
            self._loop.call_soon(self._turned)
        return self._begun + SLICE_SECONDS - now

    def _turned(self) -> None:
        self._begun = None

    async def give_way(self) -> None:
        """See `give_way`."""
        over = -self.left()
        if over >= 0:
            await asyncio.sleep(min(over + SLICE_SECONDS, LONGEST_REST_SECONDS))


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns() -> Turns:
    """Those of the running loop."""
    loop = asyncio.get_running_loop()
    found = _TURNS.get(loop)
    if found is None:
        found = _TURNS[loop] = Turns(loop)
    return found


async def give_way() -> None:
    """Rest if this turn of the loop has been worked in for a slice; costs a microsecond otherwise."""
    await turns().give_way()
