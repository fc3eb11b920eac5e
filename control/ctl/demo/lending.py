"""Does what the node lends follow its load? The formula once more, from NodeMetric and pods alone; pure checks.

Independent of the manager's code on purpose: plain sums over what `kubectl get` says, by policy `usage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from control.ctl.demo.colocation import RECLAIM_PERCENT
from control.ctl.demo.judge import Verdict
from koordlet.api import names, priority
from koordlet.api.core import Node, Pod, pod_requests
from koordlet.api.crs.nodemetric import NodeMetric, ResourceMap
from koordlet.api.encoding.quantity import ZERO, Quantity
from koordlet.api.pages.overcommit import OVERCOMMIT

CPU, MEMORY = "cpu", "memory"
RECLAIM_PERCENTS = {CPU: RECLAIM_PERCENT, MEMORY: 65}
"""Of the second Koordinator's default."""
THRESHOLD = 0.1
"""resourceDiffThreshold: smaller changes are not written."""
LENT = (priority.BATCH, priority.FREE)


def expected(node: Node, metric: NodeMetric, pods: Iterable[Pod], resource: str = CPU) -> int:
    """What is to be lent by the last report: milli-cores of `cpu`, bytes of `memory`."""
    info = metric.status.node_metric
    assert info is not None
    capacity = _amount(node.status.capacity, resource)
    reserved = max(capacity - _amount(node.status.allocatable, resource), 0)
    apps = (app for app in metric.status.host_application_metric if app.priority in (priority.PROD, priority.MID))
    system = max(_used(info.system_usage, resource) + sum(_used(app.usage, resource) for app in apps), reserved)
    measured = {f"{one.namespace}/{one.name}": one for one in metric.status.pods_metric}
    taken = 0
    for pod in pods:
        known = measured.pop(pod.metadata.key, None)
        if pod.status.phase not in ("Running", "Pending") or priority.priority_class(pod) in LENT:
            continue
        taken += _used(known.pod_usage, resource) if known is not None else _amount(pod_requests(pod), resource)
    taken += sum(_used(gone.pod_usage, resource) for gone in measured.values() if gone.priority not in LENT)
    free = max(capacity * RECLAIM_PERCENTS[resource] // 100 - system - taken, 0)
    lending = OVERCOMMIT.get(node.metadata.annotations)
    hold = lending.hold.get(resource) if lending is not None else None
    return free * (hold.percent if hold is not None else 100) // 100


def follows(node: Node, metric: NodeMetric, pods: Sequence[Pod]) -> Verdict:
    """Are batch-cpu and batch-memory what the last report and the pods allow, but for what is too little to be
    written?"""
    said, good = [], True
    for resource, name in ((CPU, names.RESOURCE_BATCH_CPU), (MEMORY, names.RESOURCE_BATCH_MEMORY)):
        wanted = expected(node, metric, pods, resource)
        have = node.status.allocatable.get(name, ZERO).value()
        good &= abs(have - wanted) <= THRESHOLD * have + 1
        said.append(f"{name.rpartition('/')[2]} {have}, should be {wanted}")
    return Verdict(good, f"{'; '.join(said)} by the report of {metric.status.update_time} and the pods there are")


def reports(metric: NodeMetric, pod: str) -> bool:
    """Whether a pod of the demo is measured."""
    return any(one.name == pod for one in metric.status.pods_metric)


def _used(usage: ResourceMap, resource: str) -> int:
    return _amount(usage.resources, resource)


def _amount(amounts: Mapping[str, Quantity], resource: str) -> int:
    amount = amounts.get(resource, ZERO)
    return amount.milli_value() if resource == CPU else amount.value()
