"""Reports scheduling results to users and metrics: Events, the condition PodScheduled, attempts (spec 05 §3.5).

A few background tasks write the conditions: only the newest of each pod, and only if it differs from the present one.
While the API server fails, conditions are kept and retried.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from control.reservation.failures import reservation_failure
from control.scheduler.audit.auditor import WorkloadAuditor
from control.scheduler.cycle.loop import Reporter
from control.scheduler.cycle.monitor import AttemptMonitor
from control.scheduler.cycle.placement import Placement
from control.scheduler.framework.status import PluginStatus
from control.scheduler.process.metrics import SchedulerMetrics
from control.scheduler.state.pods import POD, PodInfo
from control.scheduler.state.subjects import FailedAttempt, Subjects
from koordlet.api.names import ANNOTATION_RESERVATION_AFFINITY
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.app.tasks import end_tasks
from koordlet.kube import ApiError, ConnectionFailed, EventRecorder, KubeError, NotFound

log = get_logger(__name__)

MAX_NOTE_BYTES: Final = 1024
_WRITERS: Final = 4
RETRY_S: Final = 1.0
"""Pause of a writer after a temporary failure. Then the pod is read again: it may have a node by now."""


def truncated(text: str) -> str:
    """At most `MAX_NOTE_BYTES` bytes; a longer text ends with ` ...`."""
    data = text.encode()
    if len(data) <= MAX_NOTE_BYTES:
        return text
    return data[: MAX_NOTE_BYTES - 4].decode("utf-8", "ignore") + " ..."


def _temporary(error: KubeError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, ConnectionFailed) or (
        isinstance(error, ApiError) and (error.status == 429 or error.status >= 500)
    )


class UserReporter(Reporter):
    """The `Reporter` of a running scheduler; a service for `Runner`."""

    def __init__(
        self,
        subjects: Subjects,
        events: EventRecorder,
        metrics: SchedulerMetrics,
        monitor: AttemptMonitor,
        clock: Clock,
        *,
        auditor: WorkloadAuditor | None = None,
        log_failures: bool = False,
    ) -> None:
        self.name = "reporter"
        self.log_failures = log_failures
        self._subjects = subjects
        self._events = events
        self._metrics = metrics
        self._monitor = monitor
        self._clock = clock
        self._auditor = auditor
        self._due: dict[str, tuple[PodInfo, FailedAttempt]] = {}
        """By key."""
        self._busy: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # Called by the loop

    def started(self, pod: PodInfo) -> None:
        self._monitor.started(pod)

    def abandoned(self, pod: PodInfo) -> None:
        self._monitor.complete(pod)

    def attempt(self, profile: str, result: str, seconds: float) -> None:
        self._metrics.attempts.labels(result, profile).inc()
        self._metrics.attempt_seconds.labels(result, profile).observe(seconds)
        if result == "scheduled":
            self._metrics.algorithm_seconds.observe(seconds)

    def scheduled(self, placement: Placement, seconds: float) -> None:
        pod = placement.pod
        self._monitor.complete(pod)
        if self._auditor is not None:
            self._auditor.attempt_scheduled(pod)
        self._metrics.pod_attempts.observe(pod.attempts)
        self._metrics.sli_seconds.labels(str(pod.attempts) if pod.attempts < 15 else "15+").observe(seconds)
        self._metrics.evaluated.observe(placement.evaluated)
        self._metrics.feasible.observe(placement.feasible)
        self._due.pop(pod.key, None)
        shown = pod.key if pod.subject == POD else pod.name
        message = f"Successfully assigned {shown} to {placement.node}"
        self._events.normal(self._about(pod), "Scheduled", message, "Binding")

    def failed(self, pod: PodInfo, status: PluginStatus, message: str, nominated: str | None) -> None:
        self._monitor.complete(pod)
        if self._auditor is not None:
            self._auditor.attempt_failed(pod)
        if self.log_failures:
            log.info("Pod not scheduled", pod=pod.key, status=status.code_name, plugin=status.plugin, why=message)
        self._events.warning(self._about(pod), "FailedScheduling", truncated(message), "Scheduling")
        if ANNOTATION_RESERVATION_AFFINITY in pod.shape.annotations:
            text = reservation_failure(message)
            if text:
                self._events.warning(self._about(pod), "FailedScheduling-Reservation", truncated(text), "Scheduling")
        reason = "Unschedulable" if status.rejected else "SchedulerError"
        self._due[pod.key] = (pod, FailedAttempt(reason, message, nominated))
        self._wake.set()

    def taken_over(self, pod: PodInfo) -> None:
        self._monitor.complete(pod)
        if self._auditor is not None:
            self._auditor.attempt_failed(pod)

    def _about(self, pod: PodInfo) -> Any:
        return self._subjects.of(pod).event_object(pod)

    # Writing conditions

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._write(), name=f"conditions:{n}") for n in range(_WRITERS)]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        await end_tasks(*tasks)

    async def _write(self) -> None:
        while True:
            key = next((key for key in self._due if key not in self._busy), None)
            if key is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            pod, failed = due = self._due.pop(key)
            self._busy.add(key)
            try:
                await self._subjects.of(pod).report(pod, failed)
            except NotFound:
                pass  # the pod was deleted in the meantime
            except KubeError as error:
                self._metrics.patch_failures.inc()
                log.warning("Failed to write the condition of a pod", pod=key, err=error)
                if _temporary(error):
                    await self._clock.sleep(RETRY_S)
                    self._due.setdefault(key, due)
            finally:
                self._busy.discard(key)
                self._wake.set()
