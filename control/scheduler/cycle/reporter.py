"""What users and metrics are told of each pod: events, the condition PodScheduled, attempts (spec 05 §3.5).

Conditions are written in the background by a few tasks, the newest for each pod only; one that is there already is
not written again. While the API server is unwell they are kept until they could be written.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from control.scheduler.audit.auditor import Auditor
from control.scheduler.cycle.binding import Current
from control.scheduler.cycle.cycle import Placement
from control.scheduler.cycle.monitor import Monitor
from control.scheduler.framework.status import Status
from control.scheduler.process.metrics import SchedulerMetrics
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import Time
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube import ApiError, Client, ConnectionFailed, EventRecorder, KubeError, NotFound, PatchKind

log = get_logger(__name__)

NOTE_BYTES: Final = 1024
_WRITERS: Final = 4
RETRY_SECONDS: Final = 1.0
"""How long a writer rests after a failure that may pass; then the pod is looked at again, it may have a node by now."""


def cut(text: str) -> str:
    """At most `NOTE_BYTES` bytes, the last four of a longer text replaced by ` ...`."""
    data = text.encode()
    if len(data) <= NOTE_BYTES:
        return text
    return data[: NOTE_BYTES - 4].decode("utf-8", "ignore") + " ..."


def _passes(error: KubeError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, ConnectionFailed) or (
        isinstance(error, ApiError) and (error.status == 429 or error.status >= 500)
    )


@dataclass(frozen=True)
class _Verdict:
    reason: str
    message: str
    nominated: str | None


class UserReporter:
    """The `Reporter` of a running scheduler; a service for `Runner`. `current`: the pod as last seen."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        metrics: SchedulerMetrics,
        monitor: Monitor,
        clock: Clock,
        current: Current,
        *,
        log_failures: bool = False,
    ) -> None:
        self.name = "reporter"
        self._client, self._events, self._metrics, self._monitor = client, events, metrics, monitor
        self._clock, self._current = clock, current
        self.log_failures = log_failures
        self.auditor: Auditor | None = None
        self._due: dict[str, _Verdict] = {}
        self._busy: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # -- the loop's side ---------------------------------------------------------------------------------------------

    def attempt(self, profile: str, result: str, seconds: float) -> None:
        self._metrics.attempts.labels(result, profile).inc()
        self._metrics.attempt_seconds.labels(result, profile).observe(seconds)
        if result == "scheduled":
            self._metrics.algorithm_seconds.observe(seconds)

    def scheduled(self, placement: Placement, seconds: float) -> None:
        pod = placement.pod
        self._monitor.complete(pod)
        if self.auditor is not None:
            self.auditor.scheduled(pod)
        self._metrics.pod_attempts.observe(pod.attempts)
        self._metrics.sli_seconds.labels(str(pod.attempts) if pod.attempts < 15 else "15+").observe(seconds)
        self._metrics.evaluated.observe(placement.evaluated)
        self._metrics.feasible.observe(placement.feasible)
        self._due.pop(pod.key, None)
        self._events.normal(pod.pod, "Scheduled", f"Successfully assigned {pod.key} to {placement.node}")

    def failed(self, pod: PodInfo, status: Status, message: str, nominated: str | None) -> None:
        self._monitor.complete(pod)
        if self.auditor is not None:
            self.auditor.failed(pod)
        if self.log_failures:
            log.info("Pod not scheduled", pod=pod.key, status=status.code_name, plugin=status.plugin, why=message)
        self._events.warning(pod.pod, "FailedScheduling", cut(message))
        reason = "Unschedulable" if status.rejected else "SchedulerError"
        self._due[pod.key] = _Verdict(reason, message, nominated)
        self._wake.set()

    # -- the API server's side ---------------------------------------------------------------------------------------

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
            verdict = self._due.pop(key)
            self._busy.add(key)
            try:
                await self._patch(key, verdict)
            except NotFound:
                pass  # deleted meanwhile: nobody reads its condition any more
            except KubeError as error:
                self._metrics.patch_failures.inc()
                log.warning("Cannot write a pod's condition", pod=key, err=error)
                if _passes(error):
                    await self._clock.sleep(RETRY_SECONDS)
                    self._due.setdefault(key, verdict)
            finally:
                self._busy.discard(key)
                self._wake.set()

    async def _patch(self, key: str, verdict: _Verdict) -> None:
        pod = self._current(key)
        if pod is None or pod.spec.node_name:
            return
        status: dict[str, Any] = {}
        known = pod.status.condition("PodScheduled")
        said = (known.status, known.reason, known.message) if known is not None else None
        if said != ("False", verdict.reason, verdict.message):
            now = str(Time.of(datetime.fromtimestamp(self._clock.now(), UTC)))
            changed = now if known is None or known.status != "False" else str(known.last_transition_time or now)
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": verdict.reason,
                    "message": verdict.message,
                    "lastTransitionTime": changed,
                    "lastProbeTime": None,
                }
            ]
        if verdict.nominated is not None and verdict.nominated != pod.status.nominated_node_name:
            status["nominatedNodeName"] = verdict.nominated or None
        if status:
            meta = pod.metadata
            await self._client.patch(
                Pod, meta.name, meta.namespace, body={"metadata": {"uid": meta.uid}, "status": status},
                kind=PatchKind.STRATEGIC, subresource="status",
            )  # fmt: skip
