"""Evicts pods, by default through the API server's eviction subresource: disruption budgets hold (spec 03 §3.1).

A pod is evicted once: its UID is a precondition (another pod of the same name does not match), and it is remembered for
two minutes, during which it counts as released while it terminates. A refusal (a disruption budget, a webhook, an
unreachable API server) skips only that victim; the next one is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from koordlet.api.core import Pod
from koordlet.app.logging import get_logger
from koordlet.audit import Auditor
from koordlet.audit import pod as about_pod
from koordlet.kube import Client, Conflict, EventRecorder, KubeError, NotFound
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.eviction import EvictionProgress, EvictionTask
from koordlet.qosmanager.engine.view import PodView
from koordlet.statesinformer.pods.model import PodMeta

log = get_logger(__name__)

TERMINATING_SECONDS = 120.0
"""For this long after its eviction, a pod counts as released."""
DETAIL_SECONDS = 300.0
"""For this long, the metric pod_eviction_detail has a row for an evicted pod."""
EVICTED = "evicted"
SUCCEEDED, FAILED = "evictPodSuccess", "evictPodFail"


class VictimGone(Exception):
    """The victim no longer exists; the kubelet's list will follow."""


class EvictionRefused(Exception):
    """The victim was not evicted; the text is the reason."""


class EvictionMethod(Protocol):
    """How a pod is removed from the node."""

    remembers: bool
    """Whether an evicted pod counts as released while it terminates."""

    async def evict(self, pod: PodMeta) -> None:
        """Raises VictimGone and EvictionRefused."""


class EvictionRequests:
    """Evictions through the API server."""

    remembers = True

    def __init__(self, client: Client) -> None:
        self._client = client

    async def evict(self, pod: PodMeta) -> None:
        """See EvictionMethod."""
        try:
            await self._client.evict(pod.name, pod.namespace, uid=pod.uid)
        except (NotFound, Conflict) as error:
            raise VictimGone(str(error)) from error
        except KubeError as error:
            raise EvictionRefused(str(error)) from error


class PodEvictor:
    """`clock` is monotonic."""

    def __init__(
        self,
        method: EvictionMethod,
        events: EventRecorder,
        auditor: Auditor,
        registries: Registries,
        clock: Callable[[], float],
    ) -> None:
        self._method = method
        self._events = events
        self._auditor = auditor
        self._registries = registries
        self._clock = clock
        self._evicted_at: dict[str, float] = {}
        """Pod UID -> time of its eviction."""
        self._detail_rows: dict[tuple[str, ...], tuple[float, float]] = {}
        """Labels of pod_eviction_detail -> count and time of the last eviction."""
        registries.view("pod_eviction_detail", self._details)

    async def work(self, tasks: Sequence[EvictionTask]) -> int:
        """Evict until every task is satisfied or has no victims left; returns how many pods were newly evicted."""
        now = self._clock()
        self._evicted_at = {uid: at for uid, at in self._evicted_at.items() if now - at < TERMINATING_SECONDS}
        progress, count = EvictionProgress(tasks, self._evicted_at.keys()), 0
        for pod, task in progress.victims():
            if await self._evict(pod, task):
                if self._method.remembers:
                    self._evicted_at[pod.meta.uid] = now
                progress.succeeded(pod)
                count += 1
        return count

    async def _evict(self, pod: PodView, task: EvictionTask) -> bool:
        meta = pod.meta
        name = f"{meta.namespace}/{meta.name}"
        try:
            await self._method.evict(meta)
        except VictimGone as error:
            log.info("Victim no longer exists", pod=name, cause=str(error))
            return False
        except EvictionRefused as error:
            self._event(meta.pod, FAILED, f"{task.reason}: {error}")
            log.warning("Eviction refused", pod=name, reason=task.reason, error=str(error))
            return False
        self._registries.count("pod_eviction", EVICTED)
        labels = (meta.namespace, meta.name, EVICTED)
        self._detail_rows[labels] = (self._detail_rows.get(labels, (0.0, 0.0))[0] + 1, self._clock())
        about = about_pod(meta.namespace, meta.name)
        self._auditor.record(0, about, EVICTED, task.reason, details={"release": dict(task.release)})
        self._event(meta.pod, SUCCEEDED, f"evict Pod:{name}, reason: {EVICTED}, message: {task.reason}")
        log.info("Evicted a pod", pod=name, reason=task.reason)
        return True

    def _event(self, pod: Pod | None, reason: str, message: str) -> None:
        if pod is not None:
            self._events.warning(pod, reason, message)

    def _details(self) -> list[tuple[tuple[str, ...], float]]:
        now = self._clock()
        self._detail_rows = {labels: row for labels, row in self._detail_rows.items() if now - row[1] < DETAIL_SECONDS}
        return [(labels, count) for labels, (count, _) in self._detail_rows.items()]
