"""Eviction by requests: batch and mid pods that request more than the node has overcommitted (spec 03 §3.3.4). Pure.

Native cpu and memory are the scheduler's responsibility and not considered. Only pods whose request reduces the excess
are evicted.
"""

from __future__ import annotations

from collections.abc import Iterator

from koordlet.api import priority
from koordlet.qosmanager.engine.eviction import (
    CLASS_RESOURCES,
    REQUESTED,
    EvictionTask,
    by_priority,
    evictable,
    request,
    sum_requests,
)
from koordlet.qosmanager.engine.view import NodeView, PodView

MAX_PRIORITY = 7999
"""Prod pods are never evicted for their requests."""


def batch(pod: PodView, resource: str) -> int:
    """The pod's request under the batch name."""
    spec = pod.meta.pod
    return 0 if spec is None else sum_requests(spec, CLASS_RESOURCES[priority.BATCH][resource])


def spec_priority(pod: PodView) -> int:
    """`spec.priority`, 0 without one."""
    spec = pod.meta.pod
    return 0 if spec is None else spec.spec.priority or 0


def tasks(
    view: NodeView,
    feature: str,
    resource: str,
    *,
    threshold: int | None,
    lower: int | None,
    priority_threshold: int | None,
) -> Iterator[EvictionTask]:
    """At most one task, over the batch and mid names of `resource`."""
    if threshold is None or lower is None or priority_threshold is None:
        return
    if threshold < 0 or lower >= threshold or priority_threshold > MAX_PRIORITY:
        return
    requesting = [
        pod
        for pod in view.pods
        if pod.active and pod.meta.pod is not None and priority.priority_value(pod.meta.pod) <= priority_threshold
    ]
    sums: dict[str, int] = {}
    for pod in requesting:
        name, amount = request(pod, resource)
        if name != resource:
            sums[name] = sums.get(name, 0) + amount
    release = {
        name: excess for name, amount in sums.items() if (excess := _excess(view, name, amount, threshold, lower))
    }
    if not release:
        return
    victims = [
        pod
        for pod in requesting
        if (pod.cpu if resource == "cpu" else pod.memory) is not None and evictable(pod, feature, priority_threshold)
    ]
    victims.sort(key=lambda pod: (*by_priority(pod), -request(pod, resource)[1]))
    contributes = {pod.meta.uid: dict([request(pod, resource)]) for pod in view.pods}
    yield EvictionTask(feature, REQUESTED, release, tuple(victims), contributes)


def _excess(view: NodeView, name: str, requested: int, threshold: int, lower: int) -> int:
    allocatable = view.allocatable(name)
    if allocatable <= 0:
        return requested
    return int(requested - lower / 100 * allocatable) if requested / allocatable > threshold / 100 else 0
