"""Deleting preempted pods in the background (spec 05 §3.6-5).

Each victim gets the condition `DisruptionTarget=True` (`PreemptionByScheduler`), is deleted, and an Event reports it.
A victim that cannot be deleted is logged and counted, and the preemptor tries again at once. Otherwise it waits until
a victim is gone. Lesser pods that were nominated to the node lose their nomination.
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
from koordlet.app.tasks import end_tasks
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
        finished: Callable[[PodInfo, bool], None],
        on_evict: Callable[[PodInfo, Sequence[PodInfo]], object] | None = None,
    ) -> None:
        """`finished(preemptor, incomplete)` is called when all calls for it have returned; incomplete: a victim was
        gone already, or could not be deleted. `on_evict(preemptor, victims)` is called before they start."""
        self._client = client
        self._events = events
        self._clock = clock
        self._failures = failures
        self._finished = finished
        self._on_evict = on_evict
        self._running: dict[str, set[asyncio.Task[bool]]] = {}
        """Preemptor's uid -> the calls for it that have not returned."""
        self._incomplete: set[str] = set()
        """uids of preemptors in `_running` with a victim that was not deleted by this process."""
        self._clearing: set[asyncio.Task[None]] = set()

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
        tasks = [*(task for tasks in self._running.values() for task in tasks), *self._clearing]
        await end_tasks(*tasks)

    def clear_nominations(self, pods: Sequence[PodInfo]) -> None:
        """Remove the nominations from the pods' statuses in the background. Failures are logged."""
        for pod in pods:
            if pod.pod.status.nominated_node_name:
                task = asyncio.create_task(self._clear(pod), name=f"nomination:{pod.key}")
                self._clearing.add(task)
                task.add_done_callback(self._clearing.discard)

    def _done(self, by: PodInfo, task: asyncio.Task[bool]) -> None:
        tasks = self._running.get(by.uid, set())
        tasks.discard(task)
        if task.cancelled() or task.exception() is not None or not task.result():
            self._incomplete.add(by.uid)
        if not tasks:
            self._running.pop(by.uid, None)
            incomplete = by.uid in self._incomplete
            self._incomplete.discard(by.uid)
            self._finished(by, incomplete)

    async def _clear(self, pod: PodInfo) -> None:
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": None}}
        try:
            await self._client.patch(
                Pod, pod.name, pod.namespace, body=body, kind=PatchKind.STRATEGIC, subresource="status", repeatable=True
            )
        except NotFound:
            return
        except KubeError as error:
            log.warning("Cannot remove the nomination of a pod", pod=pod.key, err=error)

    async def _evict(self, victim: PodInfo, by: PodInfo, message: str) -> bool:
        """Whether the victim was deleted by this call."""
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
            return False
        except KubeError as error:
            self._failures.inc()
            log.warning("Cannot preempt pod", victim=victim.key, preemptor=by.key, err=error)
            return False
        message = f"Preempted by pod {by.uid} on node {victim.pod.spec.node_name}"
        self._events.normal(victim.pod, "Preempted", message, "Preempting")
        return True
