"""ScheduleExplanation objects: who makes one with a question gets the answer in its status (spec 05 §7.2, 06 §6).

    apiVersion: scheduling.koordinator.sh/v1alpha1
    kind: ScheduleExplanation
    metadata: {name: why, namespace: default}
    spec: {questionObjectKey: default/my-pod, ttl: 1h}

The replica that leads answers. A question is looked at every ten seconds at most, a few in a row, and its status is
written when the answer changed and once a minute; it is deleted when its `ttl` is over. A cluster without the kind
has no questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, Counter

from control.scheduler.cycle.cycle import Cycle
from control.scheduler.explain.evaluate import answer
from control.scheduler.state.pods import PodInfo
from koordlet.api.crs.explanation import ScheduleExplanation, ScheduleExplanationStatus
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Time
from koordlet.app.logging import get_logger
from koordlet.app.metrics import MetricSet
from koordlet.app.periodic import Periodic
from koordlet.kube import Client, Informer, KubeError, NotFound

log = get_logger(__name__)

SWEEP_SECONDS: Final = 2.0
AT_ONCE: Final = 10
"""Questions that are answered in one sweep, those that have waited longest first."""
AGAIN_SECONDS: Final = 10.0
REFRESH_SECONDS: Final = 60.0
DEFAULT_TTL: Final = 24 * 3600.0

Find = Callable[[str], "tuple[Cycle, Sequence[PodInfo]] | None"]
"""The pods that a question is about, and the cycles of their profile; None when there are none."""


class ExplanationMetrics(MetricSet):
    """`result`: written, expired, failed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter(
            "scheduler_schedule_explanations_total", "ScheduleExplanations written or removed.", ["result"],
            registry=registry,
        )  # fmt: skip


class Explanations:
    """A service of the scheduler that leads."""

    def __init__(self, client: Client, find: Find, informer: Informer[ScheduleExplanation] | None = None) -> None:
        self.name = "explanations"
        self._client, self._find = client, find
        self._informer = informer or Informer(client, ScheduleExplanation)
        self._asked: dict[str, float] = {}
        """uid -> when the question was last looked at, monotonic."""
        self._metrics = ExplanationMetrics.of(client.registry)
        self._sweep = Periodic(
            "schedule-explanations", SWEEP_SECONDS, self.sweep, immediate=False, clock=client.clock,
            registry=client.registry,
        )  # fmt: skip

    async def start(self) -> None:
        await self._informer.start()
        await self._sweep.start()

    async def stop(self) -> None:
        await self._sweep.stop()
        await self._informer.stop()

    async def sweep(self) -> None:
        """Answer what is due, and remove what has lived long enough."""
        questions = self._informer.list()
        now = self._client.clock.monotonic()
        known = {one.metadata.uid for one in questions}
        self._asked = {uid: when for uid, when in self._asked.items() if uid in known}
        due = [one for one in questions if now - self._asked.get(one.metadata.uid, -AGAIN_SECONDS) >= AGAIN_SECONDS]
        due.sort(key=lambda one: self._asked.get(one.metadata.uid, 0.0))
        for one in due[:AT_ONCE]:
            self._asked[one.metadata.uid] = now
            try:
                await self._look_at(one)
            except NotFound:
                continue  # whoever asked has taken the question back
            except KubeError as error:
                self._metrics.writes.labels("failed").inc()
                log.warning("Cannot write a ScheduleExplanation", explanation=one.metadata.key, err=error)
            await asyncio.sleep(0)

    async def _look_at(self, question: ScheduleExplanation) -> None:
        meta, now = question.metadata, self._client.clock.now()
        if expired(question, now):
            await self._client.delete(ScheduleExplanation, meta.name, meta.namespace, uid=meta.uid)
            self._metrics.writes.labels("expired").inc()
            return
        status = self._answer(question.spec.question_object_key)
        before = question.status
        age = now - before.last_update_time.timestamp() if before.last_update_time is not None else REFRESH_SECONDS
        if age < REFRESH_SECONDS and msgspec.structs.replace(before, last_update_time=None) == status:
            return
        status.last_update_time = Time.of(datetime.fromtimestamp(now, UTC))
        await self._client.patch(
            ScheduleExplanation, meta.name, meta.namespace,
            body={"metadata": {"uid": meta.uid}, "status": body(status)}, subresource="status",
        )  # fmt: skip
        self._metrics.writes.labels("written").inc()

    def _answer(self, key: str) -> ScheduleExplanationStatus:
        found = self._find(key) if key else None
        if found is None:
            text = f'no pod, gang or job "{key}" is scheduled here' if key else "spec.questionObjectKey is empty"
            return ScheduleExplanationStatus(failed_message=text)
        return answer(*found)


def expired(question: ScheduleExplanation, now: float) -> bool:
    """Whether the object has outlived its `ttl` (24 h unless told, 0: for ever). `now`: Unix seconds."""
    ttl = question.spec.ttl.seconds if question.spec.ttl is not None else DEFAULT_TTL
    created = question.metadata.creation_timestamp
    return ttl > 0 and created is not None and now - created.timestamp() >= ttl


def body(status: ScheduleExplanationStatus) -> dict[str, Any]:
    """The status with every field, so that a merge leaves nothing of the last answer."""
    return {
        "schedulable": status.schedulable,
        "schedulableAfterPreemption": status.schedulable_after_preemption,
        "failedMessage": status.failed_message,
        "lastUpdateTime": str(status.last_update_time),
        "detailedExplanation": wire.to_builtins(status.detailed_explanation),
    }
