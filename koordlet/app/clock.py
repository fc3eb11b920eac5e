"""Time as an argument: wall clock, monotonic clock, boot clock, sleeping and timeouts.

A loop that sleeps takes a `Clock`, so that tests run hours of back-off in milliseconds and do not wait for real time.
`now()` is wall time: it may jump and is only for people and other machines. `monotonic()` is for delays, ages and
deadlines. A component that only reads the time of samples takes a function: `boot_clock`, since cached samples outlive
the process.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Clock(Protocol):
    """Time for loops; all values are in seconds."""

    def now(self) -> float:
        """Wall clock, seconds since 1970 (may jump)."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never decreases."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time; 0 or less only yields to the loop."""
        ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """`async with clock.timeout(3):` raises TimeoutError if the body takes longer; None means no limit."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait until the event is set, at most `seconds`; returns whether it was set. Clears it."""
        ...


class SystemClock:
    """The machine's clocks and the running loop's timers."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        # A timer that sets the event takes two thirds of the CPU time of `timeout`, which cancels the task.
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            event.set()

        timer = asyncio.get_running_loop().call_later(max(0.0, seconds), expire)
        try:
            await event.wait()
        finally:
            timer.cancel()
        event.clear()
        return not expired


SYSTEM_CLOCK: Clock = SystemClock()


def boot_clock() -> float:
    """Seconds since boot, including suspend. Never steps, and continues over a restart of the process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
