"""A queue of keys to work on, with client-go's promises.

An item is in the queue at most once however often it is added; while it is being worked on it is not given out
again, and if it was added meanwhile it comes back when that work is done. Failed items return after a delay that
grows per item (5 ms doubling to 1000 s) and is never faster than the queue's overall budget (10/s, burst 100).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.logging import get_logger
from koordlet.app.periodic import is_cancelled
from koordlet.kube.metrics import QueueMetrics
from koordlet.kube.ratelimit import TokenBucket

log = get_logger(__name__)
K = TypeVar("K", bound=Hashable)

_VOID = 64  # void entries of the timer heap that are not worth clearing away


class QueueClosed(Exception):
    """`get` on a queue that was shut down and has nothing left."""


class WorkQueue(Generic[K]):
    """See the module text. `get`/`done` by hand, or `work(fn)` with the retry policy built in."""

    def __init__(
        self,
        name: str,
        *,
        base_delay: float = 0.005,
        max_delay: float = 1000.0,
        qps: float = 10.0,
        burst: int = 100,
        clock: Clock = SYSTEM_CLOCK,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.name = name
        self._base_delay, self._max_delay = base_delay, max_delay
        self._clock = clock
        self._bucket = TokenBucket(qps, burst, clock=clock)
        self._ready: deque[K] = deque()
        self._dirty: dict[K, float] = {}  # waiting or to be given out again; when that began
        self._working: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._delayed: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}  # the time that counts for an item; older heap entries are void
        self._sequence = itertools.count()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._rescheduled = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None
        self._closed = False
        self._metrics = QueueMetrics.of(registry)

    def __len__(self) -> int:
        """Items ready to be taken."""
        return len(self._ready)

    def add(self, item: K) -> None:
        """Have `item` worked on; nothing when it waits already or the queue is shut down."""
        self._due.pop(item, None)
        if self._closed or item in self._dirty:
            return
        self._metrics.adds.labels(self.name).inc()
        self._dirty[item] = self._clock.monotonic()
        if item not in self._working:
            self._push(item)

    def add_after(self, item: K, seconds: float) -> None:
        """Add later; of two times the earlier counts."""
        if seconds <= 0:
            self.add(item)
            return
        at = self._clock.monotonic() + seconds
        if self._closed or self._due.get(item, at + 1) <= at:
            return
        self._due[item] = at
        if len(self._delayed) > 2 * len(self._due) + _VOID:  # items added early and delayed anew leave void entries
            self._delayed = [entry for entry in self._delayed if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._delayed)
        heapq.heappush(self._delayed, (at, next(self._sequence), item))
        self._rescheduled.set()
        if self._timer is None:
            self._timer = asyncio.create_task(self._run_timer(), name=f"workqueue:{self.name}")

    def add_rate_limited(self, item: K) -> None:
        """Add after a failure: later each time, until `forget`."""
        failures = self._failures.get(item, 0)
        self._failures[item] = failures + 1
        self._metrics.retries.labels(self.name).inc()
        own = min(self._max_delay, self._base_delay * 2 ** min(failures, 60))
        self.add_after(item, max(own, self._bucket.reserve()))

    def forget(self, item: K) -> None:
        """The item succeeded (or is given up): its next failure starts from the shortest delay."""
        self._failures.pop(item, None)

    def failures(self, item: K) -> int:
        return self._failures.get(item, 0)

    async def get(self) -> K:
        """The next item; call `done` with it afterwards. Raises QueueClosed."""
        while not self._ready:
            if self._closed:
                raise QueueClosed(self.name)
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # woken and cancelled at once: the item is for somebody else
                raise
        item = self._ready.popleft()
        now = self._clock.monotonic()
        self._metrics.latency.labels(self.name).observe(now - self._dirty.pop(item))
        self._metrics.depth.labels(self.name).set(len(self._ready))
        self._working[item] = now
        return item

    def done(self, item: K) -> None:
        """The work on `item` ended; if it was added meanwhile it is ready again."""
        begun = self._working.pop(item, None)
        if begun is None:
            return
        self._metrics.work.labels(self.name).observe(self._clock.monotonic() - begun)
        if item in self._dirty:
            self._push(item)

    async def work(self, fn: Callable[[K], Awaitable[float | None]]) -> None:
        """Take items for ever: `fn(item)` ending well forgets the item (a number: and adds it again after so many
        seconds), raising logs, counts and adds it again with back-off. Run several for concurrency. Returns when
        the queue is shut down and empty."""
        while True:
            try:
                item = await self.get()
            except QueueClosed:
                return
            try:
                again = await fn(item)
            except (Exception, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                self.add_rate_limited(item)
                failures = self.failures(item)
                if failures & (failures - 1) == 0:
                    log.exception("Work failed", queue=self.name, item=str(item), failures=failures, err=error)
            else:
                self.forget(item)
                if again is not None:
                    self.add_after(item, again)
            finally:
                self.done(item)

    async def shutdown(self) -> None:
        """Take nothing more; what is ready is still given out, delayed items are dropped."""
        self._closed = True
        self._delayed.clear()
        self._due.clear()
        while self._waiters:
            self._wake()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)

    def _push(self, item: K) -> None:
        self._ready.append(item)
        self._metrics.depth.labels(self.name).set(len(self._ready))
        self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _run_timer(self) -> None:
        while True:
            now = self._clock.monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                at, _, item = heapq.heappop(self._delayed)
                if self._due.get(item) == at:
                    self.add(item)
            self._rescheduled.clear()
            wait = self._delayed[0][0] - now if self._delayed else None
            try:
                async with self._clock.timeout(wait):
                    await self._rescheduled.wait()
            except TimeoutError:
                continue  # the head of the heap is due
