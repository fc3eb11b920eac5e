"""Virtual time for tests.

`SetTime` is a function that returns the time to which the test sets it.
`FakeClock` advances only by `advance()`, which fires due timers in order of their time and runs the loop in between, so
that a task that sleeps again within the interval is woken again by the same call.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType


class SetTime:
    """Returns `now`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeClock:
    """A `Clock` in virtual time.

    With `auto=True` each sleep returns at once and advances the clock by its length: for tests of back-off against a
    real in-process server, in which the number of sleeps is not known.
    """

    SETTLE_ITERATIONS = 25
    """Loop iterations between two timers; a chain of awaits needs one per link."""

    def __init__(self, wall: float = 1_700_000_000.0, *, auto: bool = False) -> None:
        self._mono = 0.0
        self._wall = wall
        self._auto = auto
        self._sequence = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self.slept: list[float] = []
        """The arguments of all `sleep` calls, in order, for tests of back-off sequences."""

    def now(self) -> float:
        return self._wall + self._mono

    def monotonic(self) -> float:
        return self._mono

    def jump(self, seconds: float) -> None:
        """Change only the wall clock, like an administrator or an NTP step."""
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

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        try:
            async with self.timeout(max(0.0, seconds)):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            event.clear()
        return True

    async def advance(self, seconds: float) -> None:
        """Advance by `seconds` and fire the timers that become due, in order."""
        target = self._mono + seconds
        await self.settle()
        while self._timers and self._timers[0][0] <= target:
            when, _, fire = heapq.heappop(self._timers)
            self._mono = max(self._mono, when)
            fire()
            await self.settle()
        self._mono = target

    async def settle(self) -> None:
        """Run the loop so that ready tasks can continue; no time passes."""
        for _ in range(self.SETTLE_ITERATIONS):
            await asyncio.sleep(0)

    def _call_at(self, when: float, fire: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._sequence), fire))


class _FakeTimeout:
    """`asyncio.timeout` in virtual time: cancels the task when due and turns this cancellation into TimeoutError."""

    def __init__(self, clock: FakeClock, seconds: float | None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._expired = False
        self._cancelling = 0

    async def __aenter__(self) -> _FakeTimeout:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("a timeout needs a task")
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
        task = self._task
        self._task = None
        if self._expired and task is not None:
            not_cancelled_otherwise = task.uncancel() <= self._cancelling
            if not_cancelled_otherwise and kind is asyncio.CancelledError:
                raise TimeoutError from error
        return None
