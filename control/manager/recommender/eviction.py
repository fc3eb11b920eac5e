"""Selects the pods of a workload to evict because their requests are out of bounds: update mode Auto. Pure.

Limits: of the pods of one controller at most a share may be unavailable, including pods that are unavailable already.
Workloads with fewer replicas than the minimum (2) and pods of Jobs, whose work would be lost, are skipped. The Eviction
API enforces disruption budgets in addition. If a pod that was created after an eviction does not have the recommended
requests, admission does not reach it (another webhook, an excluded namespace); then nothing is evicted for a day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control.manager.recommender.estimate import Bounds, Estimate
from control.manager.recommender.requests import requested
from control.manager.recommender.settings import ANNOTATION_APPLIED, RecommenderSettings
from control.manager.recommender.targets import controller
from koordlet.api.core import Pod
from koordlet.api.qos import LSE, LSR, qos_class

SKIPPED_KINDS = frozenset({"Job"})
RETRY_DELAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The pods to evict now, and the reason why none can be evicted (empty: no such reason)."""

    pods: tuple[Pod, ...] = ()
    blocked: str = ""


def alive(pod: Pod) -> bool:
    """Whether the pod is not terminating and not terminated."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed")


def ready(pod: Pod) -> bool:
    """Whether the pod runs and has condition Ready."""
    condition = pod.status.condition("Ready")
    return alive(pod) and condition is not None and condition.status == "True"


def excluded(pod: Pod) -> bool:
    """Whether admission does not change the pod's requests: LSR and LSE pods have exclusive whole CPUs."""
    return qos_class(pod) in (LSR, LSE)


def distance(pod: Pod, estimates: Mapping[str, Estimate]) -> float:
    """The largest factor between a request outside of its bounds and its target; 0 when all are within."""
    worst = 0.0
    for container in pod.spec.containers:
        estimate = estimates.get(container.name)
        if estimate is not None:
            current = requested(container)
            worst = max(worst, _factor(current.cpu or 0, estimate.cpu), _factor(current.memory or 0, estimate.memory))
    return worst


def choose(
    pods: Sequence[Pod],
    estimates: Mapping[str, Estimate],
    settings: RecommenderSettings,
    now: float,
    *,
    evicted_at: float,
) -> Choice:
    """The choice for all pods of one controller; `evicted_at` is the time of this Recommendation's last eviction."""
    distances = {pod.metadata.uid: distance(pod, estimates) for pod in pods if _evictable(pod)}
    outside = [pod for pod in pods if distances.get(pod.metadata.uid, 0.0) > 0]
    for pod in outside:
        if _created(pod) > evicted_at > now - RETRY_DELAY_S and ANNOTATION_APPLIED not in pod.metadata.annotations:
            return Choice(
                blocked=f"pod {pod.metadata.name} was created after an eviction without the recommended requests: "
                "the pod webhook does not mutate it"
            )
    count = sum(pod.status.phase not in ("Succeeded", "Failed") for pod in pods)
    serving = sum(ready(pod) for pod in pods)
    if count < settings.eviction_minimum_replicas:
        return Choice()
    share = max(int(count * settings.eviction_share), 1) if settings.eviction_share > 0 else 0
    room = share - (count - serving)
    if settings.eviction_minimum_replicas > 1:
        room = min(room, serving - 1)
    old = [pod for pod in outside if now - _created(pod) >= settings.eviction_minimum_age]
    old.sort(key=lambda pod: (-distances[pod.metadata.uid], pod.metadata.name))
    unready = [pod for pod in old if not ready(pod)][:share]  # already unavailable: evicting them costs nothing
    return Choice((*unready, *[pod for pod in old if ready(pod)][: max(room, 0)]))


def _evictable(pod: Pod) -> bool:
    owner = controller(pod.metadata)
    return alive(pod) and owner is not None and owner.kind not in SKIPPED_KINDS and not excluded(pod)


def _created(pod: Pod) -> float:
    created = pod.metadata.creation_timestamp
    return created.unix if created is not None else float("-inf")


def _factor(request: int, bounds: Bounds) -> float:
    if not bounds.outside(request):
        return 0.0
    low, high = sorted((max(request, 1), max(bounds.target, 1)))
    return high / low
