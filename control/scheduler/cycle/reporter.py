"""Reports scheduling results to users and metrics: Events, the condition PodScheduled, attempts (spec 05 §3.5).

A few background tasks write the conditions: only the newest of each pod, and only if it differs from the present one.
While the API server fails, conditions are kept and retried.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from control.scheduler.audit.auditor import WorkloadAuditor
from control.scheduler.cycle.binding import CurrentPod
from control.scheduler.cycle.loop import Reporter
from control.scheduler.cycle.monitor import AttemptMonitor
from control.scheduler.cycle.placement import Placement
from control.scheduler.framework.status import PluginStatus
from control.scheduler.process.metrics import SchedulerMetrics
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import Time
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube import ApiError, Client, ConnectionFailed, EventRecorder, KubeError, NotFound, PatchKind

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


@dataclass(frozen=True)
class _PendingCondition:
    reason: str
    message: str
    nominated: str | None


class UserReporter(Reporter):
    """The `Reporter` of a running scheduler; a service for `Runner`."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        metrics: SchedulerMetrics,
        monitor: AttemptMonitor,
        clock: Clock,
        current: CurrentPod,
        *,
        auditor: WorkloadAuditor | None = None,
        log_failures: bool = False,
    ) -> None:
        self.name = "reporter"
        self.log_failures = log_failures
        self._client = client
        self._events = events
        self._metrics = metrics
        self._monitor = monitor
        self._clock = clock
        self._current = current
        self._auditor = auditor
        self._due: dict[str, _PendingCondition] = {}
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
        self._events.normal(pod.pod, "Scheduled", f"Successfully assigned {pod.key} to {placement.node}")

    def failed(self, pod: PodInfo, status: PluginStatus, message: str, nominated: str | None) -> None:
        self._monitor.complete(pod)
        if self._auditor is not None:
            self._auditor.attempt_failed(pod)
        if self.log_failures:
            log.info("Pod not scheduled", pod=pod.key, status=status.code_name, plugin=status.plugin, why=message)
        self._events.warning(pod.pod, "FailedScheduling", truncated(message))
        reason = "Unschedulable" if status.rejected else "SchedulerError"
        self._due[pod.key] = _PendingCondition(reason, message, nominated)
        self._wake.set()

    # Writing conditions

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._write(), name=f"conditions:{n}") for n in range(_WRITERS)]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            key = next((key for key in self._due if key not in self._busy), None)
            if key is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            condition = self._due.pop(key)
            self._busy.add(key)
            try:
                await self._patch(key, condition)
            except NotFound:
                pass  # the pod was deleted in the meantime
            except KubeError as error:
                self._metrics.patch_failures.inc()
                log.warning("Failed to write the condition of a pod", pod=key, err=error)
                if _temporary(error):
                    await self._clock.sleep(RETRY_S)
                    self._due.setdefault(key, condition)
            finally:
                self._busy.discard(key)
                self._wake.set()

    async def _patch(self, key: str, condition: _PendingCondition) -> None:
        pod = self._current(key)
        if pod is None or pod.spec.node_name:
            return
        status: dict[str, Any] = {}
        known = pod.status.condition("PodScheduled")
        generation = pod.metadata.generation
        present = (known.status, known.reason, known.message, known.observed_generation) if known is not None else None
        if present != ("False", condition.reason, condition.message, generation):
            now = str(Time.of(datetime.fromtimestamp(self._clock.now(), UTC)))
            changed = now if known is None or known.status != "False" else str(known.last_transition_time or now)
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    **({"observedGeneration": generation} if generation else {}),
                    "status": "False",
                    "reason": condition.reason,
                    "message": condition.message,
                    "lastTransitionTime": changed,
                    "lastProbeTime": None,
                }
            ]
        if condition.nominated is not None and condition.nominated != pod.status.nominated_node_name:
            status["nominatedNodeName"] = condition.nominated or None
        if status:
            meta = pod.metadata
            await self._client.patch(
                Pod,
                meta.name,
                meta.namespace,
                body={"metadata": {"uid": meta.uid}, "status": status},
                kind=PatchKind.STRATEGIC,
                subresource="status",
            )
