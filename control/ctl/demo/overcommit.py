"""Checks that overcommitted resources follow the node's load, with the formula computed from NodeMetric and pods. Pure.

Deliberately independent of the manager's code: sums over `kubectl get` output, for policy `usage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from control.ctl.demo.colocation import RECLAIM_PERCENT
from control.ctl.demo.judge import DemoResult
from koordlet.api import names, priority
from koordlet.api.core import Node, Pod, pod_requests
from koordlet.api.crs.nodemetric import NodeMetric, ResourceMap
from koordlet.api.encoding.quantity import ZERO, Quantity
from koordlet.api.pages.overcommit import OVERCOMMIT

CPU, MEMORY = "cpu", "memory"
RECLAIM_PERCENTS = {CPU: RECLAIM_PERCENT, MEMORY: 65}
"""The memory value is Koordinator's default."""
DIFF_THRESHOLD_RATIO = 0.1
"""resourceDiffThreshold: smaller changes are not written."""
OVERCOMMITTED_CLASSES = (priority.BATCH, priority.FREE)


def expected(node: Node, metric: NodeMetric, pods: Iterable[Pod], resource: str = CPU) -> int:
    """The expected overcommitted amount according to the last report: milli-cores of `cpu`, bytes of `memory`."""
    info = metric.status.node_metric
    assert info is not None
    capacity = _amount(node.status.capacity, resource)
    reserved = max(capacity - _amount(node.status.allocatable, resource), 0)
    apps = (app for app in metric.status.host_application_metric if app.priority in (priority.PROD, priority.MID))
    system = max(_used(info.system_usage, resource) + sum(_used(app.usage, resource) for app in apps), reserved)
    measured = {f"{pod.namespace}/{pod.name}": pod for pod in metric.status.pods_metric}
    taken = 0
    for pod in pods:
        known = measured.pop(pod.metadata.key, None)
        if pod.status.phase not in ("Running", "Pending") or priority.priority_class(pod) in OVERCOMMITTED_CLASSES:
            continue
        taken += _used(known.pod_usage, resource) if known is not None else _amount(pod_requests(pod), resource)
    taken += sum(
        _used(gone.pod_usage, resource) for gone in measured.values() if gone.priority not in OVERCOMMITTED_CLASSES
    )
    free = max(capacity * RECLAIM_PERCENTS[resource] // 100 - system - taken, 0)
    lending = OVERCOMMIT.get(node.metadata.annotations)
    hold = lending.hold.get(resource) if lending is not None else None
    return free * (hold.percent if hold is not None else 100) // 100


def matches_load(node: Node, metric: NodeMetric, pods: Sequence[Pod]) -> DemoResult:
    """Whether batch-cpu and batch-memory match the last report and the pods, except for differences too small to be
    written."""
    texts, good = [], True
    for resource, name in ((CPU, names.RESOURCE_BATCH_CPU), (MEMORY, names.RESOURCE_BATCH_MEMORY)):
        desired = expected(node, metric, pods, resource)
        current = node.status.allocatable.get(name, ZERO).value()
        good &= abs(current - desired) <= DIFF_THRESHOLD_RATIO * current + 1
        texts.append(f"{name.rpartition('/')[2]} {current}, should be {desired}")
    return DemoResult(good, f"{'; '.join(texts)} by the report of {metric.status.update_time} and the present pods")


def reports(metric: NodeMetric, pod: str) -> bool:
    """Whether NodeMetric reports the pod."""
    return any(entry.name == pod for entry in metric.status.pods_metric)


def _used(usage: ResourceMap, resource: str) -> int:
    return _amount(usage.resources, resource)


def _amount(amounts: Mapping[str, Quantity], resource: str) -> int:
    amount = amounts.get(resource, ZERO)
    return amount.milli_value() if resource == CPU else amount.value()
