"""Deleting preempted pods in the background (spec 05 §3.6-5).

Each victim gets the condition `DisruptionTarget=True` (`PreemptionByScheduler`), is deleted, and an Event reports it.
A victim that cannot be deleted is logged and counted; the preemptor returns to the queue and tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from prometheus_client import Counter

from control.scheduler.framework.victimpolicy import BY_SCHEDULER
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from koordlet.api.encoding.wire import Time
from koordlet.app.clock import Clock
from koordlet.app.logging import get_logger
from koordlet.kube import Client, EventRecorder, KubeError, NotFound
from koordlet.kube.patch import PatchKind

log = get_logger(__name__)


class BackgroundEvictor:
    """The `VictimEvictor` of a running scheduler."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        clock: Clock,
        failures: Counter,
        finished: Callable[[PodInfo], None],
        on_evict: Callable[[PodInfo, Sequence[PodInfo]], object] | None = None,
    ) -> None:
        """`finished(preemptor)` is called when all deletion calls for it have returned; `on_evict(preemptor, victims)`
        before they start."""
        self._client = client
        self._events = events
        self._clock = clock
        self._failures = failures
        self._finished = finished
        self._on_evict = on_evict
        self._running: dict[str, set[asyncio.Task[None]]] = {}

    def evicting_for(self, uid: str) -> bool:
        return uid in self._running

    def evict(self, victims: Sequence[PodInfo], *, by: PodInfo, message: str) -> None:
        if self._on_evict is not None:
            self._on_evict(by, victims)
        for victim in victims:
            if victim.terminating:
                continue
            task = asyncio.create_task(self._evict(victim, by, message), name=f"preempt:{victim.key}")
            self._running.setdefault(by.uid, set()).add(task)
            task.add_done_callback(partial(self._done, by))

    async def stop(self) -> None:
        """Cancel the deletion calls in progress: the next leader decides again."""
        tasks = [task for tasks in self._running.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, by: PodInfo, task: asyncio.Task[None]) -> None:
        tasks = self._running.get(by.uid, set())
        tasks.discard(task)
        if not tasks:
            self._running.pop(by.uid, None)
            self._finished(by)

    async def _evict(self, victim: PodInfo, by: PodInfo, message: str) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": BY_SCHEDULER,
            "message": message,
            "lastTransitionTime": str(Time.of(datetime.fromtimestamp(self._clock.now(), UTC))),
        }
        try:
            await self._client.patch(
                Pod,
                victim.name,
                victim.namespace,
                body={"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}},
                kind=PatchKind.STRATEGIC,
                subresource="status",
                repeatable=True,
            )
            await self._client.delete(Pod, victim.name, victim.namespace, uid=victim.uid, repeatable=True)
        except NotFound:
            return
        except KubeError as error:
            self._failures.inc()
            log.warning("Cannot preempt pod", victim=victim.key, preemptor=by.key, err=error)
            return
        where = victim.pod.spec.node_name
        self._events.event(victim.pod, "Normal", "Preempted", f"Preempted by pod {by.uid} on node {where}")
