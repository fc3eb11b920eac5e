"""Which pods of a workload to replace because their requests are far off: update mode Auto. Pure.

Few at a time and never the last: of the pods under one controller a share may be missing, those that are missing
already count, a workload with fewer pods than the minimum (2) is left alone, and pods of Jobs are too, since their work
would be lost. Disruption budgets are the Eviction API's to keep, on top of that. A pod that came back unchanged after
an eviction shows that admission does not reach it (another webhook, an excluded namespace): then nothing is evicted for
a day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control.manager.recommender.estimate import Bounds, Estimate
from control.manager.recommender.groups import controller
from control.manager.recommender.requests import requested
from control.manager.recommender.settings import ANNOTATION_APPLIED, Settings
from koordlet.api.core import Pod
from koordlet.api.qos import LSE, LSR, qos_class

KEPT_KINDS = frozenset({"Job"})
RETRY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What to evict now, and why nothing can be (empty: it can)."""

    pods: tuple[Pod, ...] = ()
    blocked: str = ""


def alive(pod: Pod) -> bool:
    """Whether it runs or will."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed")


def ready(pod: Pod) -> bool:
    """Whether it serves."""
    condition = pod.status.condition("Ready")
    return alive(pod) and condition is not None and condition.status == "True"


def excluded(pod: Pod) -> bool:
    """Whether admission leaves the pod's requests alone: its CPUs are its own, in whole numbers."""
    return qos_class(pod) in (LSR, LSE)


def distance(pod: Pod, estimates: Mapping[str, Estimate]) -> float:
    """How far the worst request is outside of its bounds, as a factor; 0 when all are within."""
    worst = 0.0
    for container in pod.spec.containers:
        estimate = estimates.get(container.name)
        if estimate is not None:
            have = requested(container)
            worst = max(worst, _off(have.cpu or 0, estimate.cpu), _off(have.memory or 0, estimate.memory))
    return worst


def choose(
    pods: Sequence[Pod], estimates: Mapping[str, Estimate], settings: Settings, now: float, *, evicted_at: float
) -> Choice:
    """Of all pods under one controller; `evicted_at` is when one of this Recommendation's was evicted last."""
    far = {pod.metadata.uid: distance(pod, estimates) for pod in pods if _may_go(pod)}
    off = [pod for pod in pods if far.get(pod.metadata.uid, 0.0) > 0]
    for pod in off:
        if _created(pod) > evicted_at > now - RETRY_SECONDS and ANNOTATION_APPLIED not in pod.metadata.annotations:
            return Choice(
                blocked=f"pod {pod.metadata.name} was made after an eviction and does not have the recommended"
                " requests: the pod webhook does not reach it"
            )
    count = sum(pod.status.phase not in ("Succeeded", "Failed") for pod in pods)
    serving = sum(ready(pod) for pod in pods)
    if count < settings.eviction_minimum_replicas:
        return Choice()
    share = max(int(count * settings.eviction_share), 1) if settings.eviction_share > 0 else 0
    room = share - (count - serving)
    if settings.eviction_minimum_replicas > 1:
        room = min(room, serving - 1)
    old = [pod for pod in off if now - _created(pod) >= settings.eviction_minimum_age]
    old.sort(key=lambda pod: (-far[pod.metadata.uid], pod.metadata.name))
    broken = [pod for pod in old if not ready(pod)][:share]  # missing already: nothing is lost with them
    return Choice((*broken, *[pod for pod in old if ready(pod)][: max(room, 0)]))


def _may_go(pod: Pod) -> bool:
    owner = controller(pod.metadata)
    return alive(pod) and owner is not None and owner.kind not in KEPT_KINDS and not excluded(pod)


def _created(pod: Pod) -> float:
    made = pod.metadata.creation_timestamp
    return made.unix if made is not None else float("-inf")


def _off(request: int, bounds: Bounds) -> float:
    if not bounds.outside(request):
        return 0.0
    low, high = sorted((max(request, 1), max(bounds.target, 1)))
    return high / low
