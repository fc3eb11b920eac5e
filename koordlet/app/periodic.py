"""A named task that runs periodically and continues after failures.

The schedule is fixed-rate on the monotonic clock: run n is due at start + n * period (plus jitter). Runs that are
missed because a run took too long are skipped, and wall-clock jumps have no effect. A run that raises or exceeds its
deadline is counted and logged with its cause. Of consecutive failures the first, second, fourth, eighth, … are logged,
so that a broken node does not fill its disk. The next run follows as scheduled. Only cancellation ends the task.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet, counter, gauge, histogram
from koordlet.app.tasks import end_tasks

log = get_logger(__name__)

_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


def is_cancelled(error: BaseException) -> bool:
    """Whether `error` is the cancellation of the current task itself.

    Awaiting a task that was cancelled by another task raises the same error, which must not end a loop.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


class TaskMetrics(MetricSet):
    """Metrics of periodic tasks, labelled by the task's name."""

    runs = counter("koord_periodic_task_runs_total", "Started runs.", "task")
    failures = counter("koord_periodic_task_failures_total", "Runs that raised or exceeded their deadline.", "task")
    duration = histogram("koord_periodic_task_duration_seconds", "Duration of a run.", "task", buckets=_BUCKETS_S)
    cpu = counter("koord_periodic_task_cpu_seconds_total", "CPU time of runs that are not coroutines.", "task")
    lateness = histogram(
        "koord_periodic_task_lateness_seconds",
        "Time between the due time and the start of a run.",
        "task",
        buckets=_BUCKETS_S,
    )
    last_success = gauge(
        "koord_periodic_task_last_success_timestamp_seconds", "Unix time of the last successful run.", "task"
    )


class Periodic:
    """Runs `fn` every `period` seconds; a service for `Runner` (start/stop).

    jitter: maximum random delay of each run as a fraction of the period, so that the nodes of a cluster do not run in
    step. deadline: seconds after which an async run is cancelled and counted as failed; None means no limit.
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
        self._period = period
        self._fn = fn
        self._jitter = jitter
        self._deadline = deadline
        self._immediate = immediate
        self._clock = clock
        self._rng = rng or random.Random()
        metrics = TaskMetrics.of(registry)
        self._runs, self._failures = metrics.runs.labels(name), metrics.failures.labels(name)
        self._duration, self._lateness = metrics.duration.labels(name), metrics.lateness.labels(name)
        self._cpu = metrics.cpu.labels(name)
        self._last_success = metrics.last_success
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failing = 0
        """Failures since the last success."""
        self.last_success: float | None = None
        """Wall time of the last successful run; None before the first."""

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name=f"periodic:{self.name}")

    async def stop(self) -> None:
        """Cancel the task including the current run, and wait until it has ended."""
        task = self._task
        self._task = None
        await end_tasks(task)

    def set_period(self, period: float) -> None:
        """Run every `period` seconds from the next run on."""
        self._period = period

    def trigger(self) -> None:
        """Make the next run due now and restart the schedule. Calls before that run begins are merged."""
        self._wake.set()

    async def run(self) -> None:
        """The endless loop; normally driven through `start`."""
        due = self._clock.monotonic() + (0.0 if self._immediate else self._period)
        while True:
            delay = self._jitter * self._period * self._rng.random() if self._jitter else 0.0
            if await self._clock.wait(self._wake, due + delay - self._clock.monotonic()):
                due = self._clock.monotonic()
                delay = 0.0
            await self.run_once(due + delay)
            due += self._period
            behind = self._clock.monotonic() - due
            if behind > 0:  # skip the missed runs, keep the schedule
                due += self._period * (behind // self._period)

    async def run_once(self, due: float | None = None) -> bool:
        """Run once and update the metrics; returns whether the run succeeded. `due`: monotonic time of the schedule."""
        started_at = self._clock.monotonic()
        cpu_at_start = time.thread_time()
        self._runs.inc()
        if due is not None:
            self._lateness.observe(max(0.0, started_at - due))
        try:
            async with self._clock.timeout(self._deadline):
                result = self._fn()
                if result is not None and inspect.isawaitable(result):
                    await result  # CPU time is not counted: the loop runs other tasks meanwhile
                else:
                    self._cpu.inc(time.thread_time() - cpu_at_start)
        except (Exception, asyncio.CancelledError) as error:  # the task continues after a failed run; counted, logged
            if is_cancelled(error):
                raise
            self._failed(error)
            return False
        finally:
            self._duration.observe(self._clock.monotonic() - started_at)
        if self.failing:
            log.info("Periodic task recovered", task=self.name, failures=self.failing)
        self.failing = 0
        self.last_success = self._clock.now()
        self._last_success.labels(self.name).set(self.last_success)
        return True

    def _failed(self, error: BaseException) -> None:
        self.failing += 1
        self._failures.inc()
        if self.failing & (self.failing - 1) == 0:
            log.exception("Periodic task failed", task=self.name, failures=self.failing, err=error)
