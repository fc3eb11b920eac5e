"""Requests of batch and mid pods against what the node has to lend (spec 03 §3.3.4). Pure.

Native cpu and memory are the scheduler's business and left out; only pods whose request lessens what is too much go.
"""

from __future__ import annotations

from collections.abc import Iterator

from koordlet.api import priority
from koordlet.qosmanager.engine.eviction import OF_CLASS, REQUESTED, Task, by_priority, evictable, request, sum_requests
from koordlet.qosmanager.engine.view import NodeView, PodView

HIGHEST_PRIORITY = 7999
"""Prod pods are never taken for their requests."""


def batch(pod: PodView, resource: str) -> int:
    """What the pod asks for under the batch names."""
    found = pod.meta.pod
    return 0 if found is None else sum_requests(found, OF_CLASS[priority.BATCH][resource])


def spec_priority(pod: PodView) -> int:
    """`spec.priority`, 0 without one."""
    found = pod.meta.pod
    return 0 if found is None else found.spec.priority or 0


def tasks(
    view: NodeView,
    feature: str,
    resource: str,
    *,
    threshold: int | None,
    lower: int | None,
    priority_threshold: int | None,
) -> Iterator[Task]:
    """At most one task, over the batch and mid names of `resource`."""
    if threshold is None or lower is None or priority_threshold is None:
        return
    if threshold < 0 or lower >= threshold or priority_threshold > HIGHEST_PRIORITY:
        return
    asking = [
        pod
        for pod in view.pods
        if pod.active and pod.meta.pod is not None and priority.priority_value(pod.meta.pod) <= priority_threshold
    ]
    sums: dict[str, int] = {}
    for pod in asking:
        name, amount = request(pod, resource)
        if name != resource:
            sums[name] = sums.get(name, 0) + amount
    release = {name: amount for name, asked in sums.items() if (amount := _beyond(view, name, asked, threshold, lower))}
    if not release:
        return
    victims = [
        pod
        for pod in asking
        if (pod.cpu if resource == "cpu" else pod.memory) is not None and evictable(pod, feature, priority_threshold)
    ]
    victims.sort(key=lambda pod: (*by_priority(pod), -request(pod, resource)[1]))
    contributes = {pod.meta.uid: dict([request(pod, resource)]) for pod in view.pods}
    yield Task(feature, REQUESTED, release, tuple(victims), contributes)


def _beyond(view: NodeView, name: str, asked: int, threshold: int, lower: int) -> int:
    allocatable = view.allocatable(name)
    if allocatable <= 0:
        return asked
    return int(asked - lower / 100 * allocatable) if asked / allocatable > threshold / 100 else 0
