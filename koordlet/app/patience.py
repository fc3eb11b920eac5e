"""A time limit for another process's answer that does not count the time in which this process was busy itself.

A plain time-out of an event loop that was blocked for longer than the limit ends the wait although the answer has
arrived. It would then be reported as the other side's fault, in every round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

STEP_S: Final = 0.1
"""The wait is checked this often. A step that takes longer was delayed by this process; the excess is not counted."""


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The result of `work`, and the seconds in which this event loop was blocked meanwhile. Raises TimeoutError after
    `seconds` in which the loop ran, and what `work` raises."""
    task = asyncio.ensure_future(work)
    waited, own_delay = 0.0, 0.0
    try:
        while True:
            step = min(STEP_S, seconds - waited)
            if step <= 0:
                raise TimeoutError(f"no answer within {seconds:g} s")
            began = time.monotonic()
            done, _ = await asyncio.wait({task}, timeout=step)
            elapsed = time.monotonic() - began
            waited += min(elapsed, step)
            own_delay += max(elapsed - step - STEP_S, 0.0)
            if done:
                return task.result(), own_delay
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})  # what it uses may be closed after this
