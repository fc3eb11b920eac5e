"""A named task that runs again and again, whatever happens to one run of it.

The schedule is fixed-rate on the monotonic clock: run n is due at start + n x period (plus jitter), a run that
takes too long makes the missed ones fall away instead of piling up, and a wall-clock jump changes nothing. A run
that raises or exceeds its deadline is counted and logged with its cause; the first failure of a streak and then
every power of two are logged, so that a broken node does not write its own disk full. The next run comes as
usual. Only cancellation ends the task.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet

log = get_logger(__name__)

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


def is_cancelled(error: BaseException) -> bool:
    """Whether `error` is the cancellation of the current task itself.

    Awaiting something that another task cancelled raises the same error; a loop must not end of that.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


class TaskMetrics(MetricSet):
    """The metrics of every periodic task, by its name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        label = ["task"]
        self.runs = Counter("koord_periodic_task_runs_total", "Runs begun.", label, registry=registry)
        self.failures = Counter(
            "koord_periodic_task_failures_total", "Runs that raised or missed their deadline.", label,
            registry=registry,
        )  # fmt: skip
        self.duration = Histogram(
            "koord_periodic_task_duration_seconds", "Time a run took.", label, buckets=_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self.cpu = Counter(
            "koord_periodic_task_cpu_seconds_total", "CPU time of runs that do not wait for anything.", label,
            registry=registry,
        )  # fmt: skip
        self.lateness = Histogram(
            "koord_periodic_task_lateness_seconds", "How long after its due time a run began.", label,
            buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self.last_success = Gauge(
            "koord_periodic_task_last_success_timestamp_seconds", "Unix time of the last run that succeeded.",
            label, registry=registry,
        )  # fmt: skip


class Periodic:
    """Runs `fn` every `period` seconds; a service for `Runner` (start/stop).

    jitter: fraction of the period by which each run is delayed at random, so that a fleet does not march in step.
    deadline: seconds after which an async run is cancelled and counted as failed; None lets it take its time.
    immediate: the first run is due at once, else after one period.
    """

    def __init__(
        self,
        name: str,
        period: float,
        fn: Callable[[], Awaitable[object] | object],
        *,
        jitter: float = 0.0,
        deadline: float | None = None,
        immediate: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        registry: CollectorRegistry | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if period <= 0:
            raise ValueError(f"period of task {name} must be positive, got {period}")
        self.name = name
        self.period = period
        self._fn = fn
        self._jitter = jitter
        self._deadline = deadline
        self._immediate = immediate
        self._clock = clock
        self._rng = rng or random.Random()
        self._metrics = TaskMetrics.of(registry)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failing = 0
        """Failures since the last success."""
        self.last_success: float | None = None
        """Wall time of the last run that succeeded; None before the first."""

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name=f"periodic:{self.name}")

    async def stop(self) -> None:
        """Cancel the task, the current run included, and wait until it has ended."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def trigger(self) -> None:
        """Make the next run due now; calls before it begins collapse into one, and the schedule starts anew."""
        self._wake.set()

    async def run(self) -> None:
        """The endless loop; normally driven through `start`."""
        due = self._clock.monotonic() + (0.0 if self._immediate else self.period)
        while True:
            delay = self._jitter * self.period * self._rng.random() if self._jitter else 0.0
            if await self._wait_until(due + delay):
                due = self._clock.monotonic()
                delay = 0.0
            await self.run_once(due + delay)
            due += self.period
            behind = self._clock.monotonic() - due
            if behind > 0:  # drop the runs that were missed, keep the beat
                due += self.period * (behind // self.period)

    async def run_once(self, due: float | None = None) -> bool:
        """One accounted run; True when it succeeded. `due`: monotonic time it should have begun."""
        begun, used = self._clock.monotonic(), time.thread_time()
        self._metrics.runs.labels(self.name).inc()
        if due is not None:
            self._metrics.lateness.labels(self.name).observe(max(0.0, begun - due))
        try:
            async with self._clock.timeout(self._deadline):
                result = self._fn()
                if inspect.isawaitable(result):
                    await result  # what the loop does meanwhile is not this task's
                else:
                    self._metrics.cpu.labels(self.name).inc(time.thread_time() - used)
        except (Exception, asyncio.CancelledError) as error:  # the task must outlive any run; counted and logged
            if is_cancelled(error):
                raise
            self._failed(error)
            return False
        finally:
            self._metrics.duration.labels(self.name).observe(self._clock.monotonic() - begun)
        if self.failing:
            log.info("Periodic task recovered", task=self.name, failures=self.failing)
        self.failing = 0
        self.last_success = self._clock.now()
        self._metrics.last_success.labels(self.name).set(self.last_success)
        return True

    def _failed(self, error: BaseException) -> None:
        self.failing += 1
        self._metrics.failures.labels(self.name).inc()
        if self.failing & (self.failing - 1) == 0:
            log.exception("Periodic task failed", task=self.name, failures=self.failing, err=error)

    async def _wait_until(self, due: float) -> bool:
        """Sleep until `due`; True when a trigger came first."""
        triggered = False
        try:
            async with self._clock.timeout(max(0.0, due - self._clock.monotonic())):
                await self._wake.wait()
                triggered = True
        except TimeoutError:
            pass  # the ordinary case: nobody asked for an early run
        self._wake.clear()
        return triggered
