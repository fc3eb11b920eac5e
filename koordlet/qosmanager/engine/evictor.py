"""Evictions through the API server's eviction subresource, so that disruption budgets hold (spec 03 §3.1).

A pod is asked to go once: its UID is a precondition (another pod of the same name is not it) and is remembered for two
minutes, within which it counts as released while it still winds down. A refusal (a budget, a webhook, an API server
that is away) costs only that victim; the next one is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from koordlet.api.core import Pod
from koordlet.app.logging import get_logger
from koordlet.audit import Auditor
from koordlet.audit import pod as about_pod
from koordlet.kube import Client, Conflict, EventRecorder, KubeError, NotFound
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.eviction import Progress, Task
from koordlet.qosmanager.engine.view import PodView

log = get_logger(__name__)

REMEMBERED_SECONDS = 120.0
SHOWN_SECONDS = 300.0
EVICTED = "evicted"
SUCCEEDED, FAILED = "evictPodSuccess", "evictPodFail"


class Evictor:
    """`clock` is monotonic."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        auditor: Auditor,
        registries: Registries,
        clock: Callable[[], float],
    ) -> None:
        self._client, self._events, self._auditor = client, events, auditor
        self._registries, self._clock = registries, clock
        self._gone: dict[str, float] = {}
        self._shown: dict[tuple[str, ...], tuple[float, float]] = {}
        """Labels of pod_eviction_detail -> count and time of the last one."""
        registries.view("pod_eviction_detail", self._details)

    async def work(self, tasks: Sequence[Task]) -> int:
        """Evict until every task is satisfied or out of victims; how many pods were newly evicted."""
        now = self._clock()
        self._gone = {uid: at for uid, at in self._gone.items() if now - at < REMEMBERED_SECONDS}
        progress, count = Progress(tasks, self._gone.keys()), 0
        for pod, task in progress.victims():
            if await self._evict(pod, task):
                self._gone[pod.meta.uid] = now
                progress.succeeded(pod)
                count += 1
        return count

    async def _evict(self, pod: PodView, task: Task) -> bool:
        meta = pod.meta
        try:
            await self._client.evict(meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict) as error:  # it went by itself; the kubelet's list will follow
            log.info("victim is gone already", pod=f"{meta.namespace}/{meta.name}", cause=str(error))
            return False
        except KubeError as error:
            self._say(meta.pod, FAILED, f"{task.reason}: {error}")
            log.warning("eviction refused", pod=f"{meta.namespace}/{meta.name}", reason=task.reason, error=str(error))
            return False
        self._registries.count("pod_eviction", EVICTED)
        labels = (meta.namespace, meta.name, EVICTED)
        self._shown[labels] = (self._shown.get(labels, (0.0, 0.0))[0] + 1, self._clock())
        self._auditor.record(
            0, about_pod(meta.namespace, meta.name), EVICTED, task.reason, details={"release": dict(task.release)}
        )
        text = f"evict Pod:{meta.namespace}/{meta.name}, reason: {EVICTED}, message: {task.reason}"
        self._say(meta.pod, SUCCEEDED, text)
        log.info("evicted", pod=f"{meta.namespace}/{meta.name}", reason=task.reason)
        return True

    def _say(self, pod: Pod | None, reason: str, message: str) -> None:
        if pod is not None:
            self._events.warning(pod, reason, message)

    def _details(self) -> list[tuple[tuple[str, ...], float]]:
        now = self._clock()
        self._shown = {labels: row for labels, row in self._shown.items() if now - row[1] < SHOWN_SECONDS}
        return [(labels, count) for labels, (count, _) in self._shown.items()]
