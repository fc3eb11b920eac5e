"""Eviction by use, for CPU and memory alike: what to release once the node is too full, and which pods (spec 03
§3.3.3). Pure. Milli-cores or bytes."""

from __future__ import annotations

from koordlet.qosmanager.engine.eviction import CPU, USED, EvictionTask, by_priority, evictable
from koordlet.qosmanager.engine.view import NodeView, PodView

LOWER_BELOW_THRESHOLD = 2
"""Default of the lower threshold: this many percentage points below the upper one."""


def excess(used: int | None, capacity: int, threshold: int | None, lower: int | None) -> int:
    """Amount above the lower threshold once use has reached the upper one (percent of capacity); otherwise 0."""
    if threshold is None or threshold < 0 or capacity <= 0 or used is None:
        return 0
    lower = threshold - LOWER_BELOW_THRESHOLD if lower is None else lower
    if lower >= threshold:
        return 0
    percent = used * 100 // capacity
    return capacity * (percent - lower) // 100 if percent >= threshold else 0


def use_of(pod: PodView, resource: str) -> int | None:
    """None for a pod that was not measured yet."""
    return pod.cpu if resource == CPU else pod.memory


def contributions(view: NodeView, resource: str) -> dict[str, dict[str, int]]:
    """What the eviction of each pod releases, by UID."""
    return {pod.meta.uid: {resource: use_of(pod, resource) or 0} for pod in view.pods}


def task(view: NodeView, feature: str, resource: str, release: int, priority_threshold: int) -> EvictionTask:
    """Pods up to a priority: lowest priority first, then largest use."""
    victims = [
        pod for pod in view.pods if use_of(pod, resource) is not None and evictable(pod, feature, priority_threshold)
    ]
    victims.sort(key=lambda pod: (*by_priority(pod), -(use_of(pod, resource) or 0)))
    return EvictionTask(feature, USED, {resource: release}, tuple(victims), contributions(view, resource))
