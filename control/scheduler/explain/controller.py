"""The controller of ScheduleExplanation: it writes the explanation for the named pods into the status (spec 05 §7.2,
06 §6).

    apiVersion: scheduling.koordinator.sh/v1alpha1
    kind: ScheduleExplanation
    metadata: {name: why, namespace: default}
    spec: {questionObjectKey: default/my-pod, ttl: 1h}

Only the leader runs it. Each object is evaluated every ten seconds at most, a few objects per sweep. The status is
written when it changed, and once a minute. An object is deleted after its `ttl`. In a cluster without the kind
the controller does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from control.scheduler.explain.jobreport import explain_job
from control.scheduler.framework.profile import Framework
from control.scheduler.state.pods import PodInfo
from koordlet.api.crs.explanation import ScheduleExplanation, ScheduleExplanationStatus
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet, counter
from koordlet.app.periodic import Periodic
from koordlet.kube import Client, Informer, KubeError, NotFound

log = get_logger(__name__)

SWEEP_PERIOD_S: Final = 2.0
MAX_PER_SWEEP: Final = 10
"""Objects that are evaluated in one sweep, longest waiting first."""
MIN_INTERVAL_S: Final = 10.0
"""Between two evaluations of one object."""
REFRESH_S: Final = 60.0
DEFAULT_TTL_S: Final = 24 * 3600.0

FindPods = Callable[[str], "tuple[Framework, Sequence[PodInfo]] | None"]
"""`spec.questionObjectKey` -> the profile and the pods that it names; None when there are none."""


class ExplanationMetrics(MetricSet):
    """`result`: written, expired, failed."""

    writes = counter("scheduler_schedule_explanations_total", "Writes and deletions of ScheduleExplanations.", "result")


class ExplanationController:
    """A service of the leader."""

    def __init__(self, client: Client, find: FindPods, informer: Informer[ScheduleExplanation] | None = None) -> None:
        self.name = "explanations"
        self._client = client
        self._find = find
        self._informer = informer or Informer(client, ScheduleExplanation)
        self._evaluated: dict[str, float] = {}
        """uid -> monotonic time of the last evaluation."""
        self._metrics = ExplanationMetrics.of(client.registry)
        self._sweep = Periodic(
            "schedule-explanations",
            SWEEP_PERIOD_S,
            self.sweep,
            immediate=False,
            clock=client.clock,
            registry=client.registry,
        )

    async def start(self) -> None:
        await self._informer.start()
        await self._sweep.start()

    async def stop(self) -> None:
        await self._sweep.stop()
        await self._informer.stop()

    async def sweep(self) -> None:
        """Evaluate the objects that are due, and delete expired ones."""
        explanations = self._informer.list()
        now = self._client.clock.monotonic()
        known = {explanation.metadata.uid for explanation in explanations}
        self._evaluated = {uid: when for uid, when in self._evaluated.items() if uid in known}
        due = [
            explanation
            for explanation in explanations
            if now - self._evaluated.get(explanation.metadata.uid, -MIN_INTERVAL_S) >= MIN_INTERVAL_S
        ]
        due.sort(key=lambda explanation: self._evaluated.get(explanation.metadata.uid, 0.0))
        for explanation in due[:MAX_PER_SWEEP]:
            self._evaluated[explanation.metadata.uid] = now
            try:
                await self._reconcile(explanation)
            except NotFound:
                continue  # the object was deleted in the meantime
            except KubeError as error:
                self._metrics.writes.labels("failed").inc()
                key = explanation.metadata.key
                log.warning("Failed to write a ScheduleExplanation", explanation=key, err=error)
            await asyncio.sleep(0)

    async def _reconcile(self, explanation: ScheduleExplanation) -> None:
        meta, now = explanation.metadata, self._client.clock.now()
        if expired(explanation, now):
            await self._client.delete(ScheduleExplanation, meta.name, meta.namespace, uid=meta.uid)
            self._metrics.writes.labels("expired").inc()
            return
        status = self._status(explanation.spec.question_object_key)
        before = explanation.status
        age = now - before.last_update_time.timestamp() if before.last_update_time is not None else REFRESH_S
        if age < REFRESH_S and msgspec.structs.replace(before, last_update_time=None) == status:
            return
        status.last_update_time = Time.of(datetime.fromtimestamp(now, UTC))
        await self._client.patch(
            ScheduleExplanation,
            meta.name,
            meta.namespace,
            body={"metadata": {"uid": meta.uid}, "status": status_body(status)},
            subresource="status",
        )
        self._metrics.writes.labels("written").inc()

    def _status(self, key: str) -> ScheduleExplanationStatus:
        named = self._find(key) if key else None
        if named is None:
            text = f'no pod, gang or job "{key}" is scheduled here' if key else "spec.questionObjectKey is empty"
            return ScheduleExplanationStatus(failed_message=text)
        return explain_job(*named)


def expired(explanation: ScheduleExplanation, now: float) -> bool:
    """Whether the `ttl` has passed (default 24 h; 0: no limit). `now`: Unix seconds."""
    ttl = explanation.spec.ttl.seconds if explanation.spec.ttl is not None else DEFAULT_TTL_S
    created = explanation.metadata.creation_timestamp
    return ttl > 0 and created is not None and now - created.timestamp() >= ttl


def status_body(status: ScheduleExplanationStatus) -> dict[str, Any]:
    """The status with every field, so that a merge patch replaces the previous status completely."""
    return {
        "schedulable": status.schedulable,
        "schedulableAfterPreemption": status.schedulable_after_preemption,
        "failedMessage": status.failed_message,
        "lastUpdateTime": str(status.last_update_time),
        "detailedExplanation": wire.to_builtins(status.detailed_explanation),
    }
