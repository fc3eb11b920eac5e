"""A work queue of keys with client-go's semantics.

An item is in the queue at most once, however often it is added. While it is being processed it is not returned again;
if it was added meanwhile, it is queued again when `done` is called. Failed items return after a delay that grows per
item (5 ms doubling to 1000 s), and not faster than the queue's overall limit (10/s, burst 100). Unlike client-go's, a
queue may be divided into shares that take turns.
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
from koordlet.app.tasks import end_tasks
from koordlet.kube.metrics import QueueMetrics
from koordlet.kube.ratelimit import TokenBucket
from koordlet.kube.turns import Turns

log = get_logger(__name__)
K = TypeVar("K", bound=Hashable)

_BASE_DELAY_S = 0.005
_MAX_STALE_ENTRIES = 64
"""Stale entries of the timer heap that are tolerated, in addition to one per delayed item."""


class QueueClosed(Exception):
    """`get` on a queue that was shut down and is empty."""


class WorkQueue(Generic[K]):
    """See the module's docstring. Use `get` and `done`, or `work(fn)`, which includes the retry policy."""

    def __init__(
        self,
        name: str,
        *,
        max_delay: float = 1000.0,
        qps: float = 10.0,
        burst: int = 100,
        share_of: Callable[[K], Hashable] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.name = name
        self._max_delay = max_delay
        self._clock = clock
        self._bucket = TokenBucket(qps, burst, clock=clock)
        self._ready = Turns(share_of)
        self._dirty: dict[K, float] = {}  # queued, or to be queued again after processing -> time it was added
        self._working: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._delayed: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}  # time at which a delayed item is added; other heap entries are stale
        self._sequence = itertools.count()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._rescheduled = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None
        self._closed = False
        self._metrics = QueueMetrics.of(registry)
        self._metrics.unfinished.labels(name).set_function(lambda: sum(self._in_progress_seconds()))
        self._metrics.longest.labels(name).set_function(lambda: max(self._in_progress_seconds(), default=0.0))

    def __len__(self) -> int:
        """Number of items ready to be returned by `get`."""
        return len(self._ready)

    def add(self, item: K) -> None:
        """Queue `item`, unless it is already queued or the queue is shut down."""
        self._due.pop(item, None)
        if self._closed or item in self._dirty:
            return
        self._metrics.adds.labels(self.name).inc()
        self._dirty[item] = self._clock.monotonic()
        if item not in self._working:
            self._push(item)

    def add_after(self, item: K, seconds: float) -> None:
        """Queue after a delay; of two delays of one item the earlier counts."""
        if seconds <= 0:
            self.add(item)
            return
        at = self._clock.monotonic() + seconds
        if self._closed or self._due.get(item, at + 1) <= at:
            return
        self._due[item] = at
        if len(self._delayed) > 2 * len(self._due) + _MAX_STALE_ENTRIES:  # rescheduled items leave stale entries
            self._delayed = [entry for entry in self._delayed if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._delayed)
        heapq.heappush(self._delayed, (at, next(self._sequence), item))
        self._rescheduled.set()
        if self._timer is None:
            self._timer = asyncio.create_task(self._run_timer(), name=f"workqueue:{self.name}")

    def add_rate_limited(self, item: K) -> None:
        """Queue after a failure, with a delay that grows until `forget`."""
        failures = self._failures.get(item, 0)
        self._failures[item] = failures + 1
        self._metrics.retries.labels(self.name).inc()
        own = min(self._max_delay, _BASE_DELAY_S * 2 ** min(failures, 60))
        self.add_after(item, max(own, self._bucket.reserve()))

    def forget(self, item: K) -> None:
        """Reset the item's delay after success, or when it is abandoned."""
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
                    self._wake()  # woken and cancelled at once: wake another waiter for the item
                raise
        item = self._ready.pop()
        now = self._clock.monotonic()
        self._metrics.latency.labels(self.name).observe(now - self._dirty.pop(item))
        self._metrics.depth.labels(self.name).set(len(self._ready))
        self._working[item] = now
        return item

    def done(self, item: K) -> None:
        """End the processing of `item`; if it was added meanwhile it is queued again."""
        started_at = self._working.pop(item, None)
        if started_at is None:
            return
        self._metrics.work.labels(self.name).observe(self._clock.monotonic() - started_at)
        if item in self._dirty:
            self._push(item)

    async def work(self, fn: Callable[[K], Awaitable[float | None]]) -> None:
        """Process items until the queue is shut down and empty. If `fn(item)` succeeds, the item is forgotten; if it
        returns a number, the item is queued again after that many seconds. If it raises, the error is logged and
        counted and the item is queued again with back-off. Run several for concurrency."""
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
        """Accept no more items. Queued items are still returned by `get`, delayed items are dropped."""
        self._closed = True
        self._delayed.clear()
        self._due.clear()
        while self._waiters:
            self._wake()
        timer = self._timer
        self._timer = None
        await end_tasks(timer)

    def _in_progress_seconds(self) -> list[float]:
        now = self._clock.monotonic()
        return [now - started_at for started_at in self._working.values()]

    def _push(self, item: K) -> None:
        self._ready.push(item)
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
