"""Time as an argument: wall clock, monotonic clock, sleeping and time-outs.

Every loop in the project takes a `Clock`, so that tests run hours of back-off in milliseconds and no test waits
for real time. Two readings are kept apart on purpose: `now()` is wall time, may jump either way and is only for
what people or other machines read; `monotonic()` is what delays, ages and deadlines are computed from.

`FakeClock` moves only when told: `advance()` fires due timers one by one in order of their time and lets the
loop settle between them, so a task that sleeps again inside the window is woken again inside the same call.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol


class Clock(Protocol):
    """What a loop needs to know about time; seconds everywhere."""

    def now(self) -> float:
        """Wall clock, seconds since 1970 (may jump)."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never runs back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time; 0 or less only yields to the loop."""
        ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """`async with clock.timeout(3):` raises TimeoutError when the body takes longer; None never does."""
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


SYSTEM_CLOCK: Clock = SystemClock()


def boot_clock() -> float:
    """Seconds since boot, including suspend. Never steps, and continues over a restart of the process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class FakeClock:
    """Virtual time for tests.

    With `auto=True` every sleep ends at once and moves the clock by its length: for tests of code that backs off
    against a real in-process server, where nobody wants to wait and nobody knows how often it will sleep.
    """

    SETTLE_ROUNDS = 25
    """Loop iterations given to tasks between two timers; deep await chains need one per hop."""

    def __init__(self, wall: float = 1_700_000_000.0, *, auto: bool = False) -> None:
        self._mono = 0.0
        self._wall = wall
        self._auto = auto
        self._sequence = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self.slept: list[float] = []
        """Every length asked of `sleep`, in order: tests read back-off sequences here."""

    def now(self) -> float:
        return self._wall + self._mono

    def monotonic(self) -> float:
        return self._mono

    def jump(self, seconds: float) -> None:
        """Move the wall clock only, as an administrator or NTP step would."""
        self._wall += seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self._auto:
            self._mono += max(0.0, seconds)
        if self._auto or seconds <= 0:
            await asyncio.sleep(0)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call_at(self._mono + seconds, lambda: None if done.done() else done.set_result(None))
        await done

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return _FakeTimeout(self, seconds)

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass, firing every timer that falls due in order."""
        target = self._mono + seconds
        await self.settle()
        while self._timers and self._timers[0][0] <= target:
            when, _, fire = heapq.heappop(self._timers)
            self._mono = max(self._mono, when)
            fire()
            await self.settle()
        self._mono = target

    async def settle(self) -> None:
        """Run the loop until the tasks that were ready have had their turns; no time passes."""
        for _ in range(self.SETTLE_ROUNDS):
            await asyncio.sleep(0)

    def _call_at(self, when: float, fire: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._sequence), fire))


class _FakeTimeout:
    """`asyncio.timeout` on virtual time: cancels the task when due, turns that cancellation into TimeoutError."""

    def __init__(self, clock: FakeClock, seconds: float | None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._expired = False
        self._cancelling = 0

    async def __aenter__(self) -> _FakeTimeout:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("a time-out needs a task")
        self._cancelling = self._task.cancelling()
        if self._seconds is not None:
            self._clock._call_at(self._clock.monotonic() + self._seconds, self._fire)
        return self

    def _fire(self) -> None:
        if self._task is not None:
            self._expired = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        task, self._task = self._task, None
        if self._expired and task is not None:
            ours_alone = task.uncancel() <= self._cancelling
            if ours_alone and kind is asyncio.CancelledError:
                raise TimeoutError from error
        return None
