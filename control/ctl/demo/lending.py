"""Does what the node lends follow its load? The formula once more, from NodeMetric and pods alone; pure checks.

Independent of the manager's code on purpose: plain sums over what `kubectl get` says, by policy `usage`.
"""

from __future__ import annotations

from collections.abc import Iterable

from control.ctl.demo.colocation import RECLAIM_PERCENT
from control.ctl.demo.judge import Verdict
from koordlet.api import names, priority
from koordlet.api.core import Node, Pod, pod_requests
from koordlet.api.lending import LENDING
from koordlet.api.nodemetric import NodeMetric, ResourceMap
from koordlet.api.quantity import ZERO

THRESHOLD = 0.1
"""resourceDiffThreshold: smaller changes are not written."""
LENT = (priority.BATCH, priority.FREE)


def expected(node: Node, metric: NodeMetric, pods: Iterable[Pod]) -> int:
    """batch-cpu by the last report, milli-cores."""
    info = metric.status.node_metric
    assert info is not None
    capacity = node.status.capacity["cpu"].milli_value()
    reserved = max(capacity - node.status.allocatable["cpu"].milli_value(), 0)
    apps = (app for app in metric.status.host_application_metric if app.priority in (priority.PROD, priority.MID))
    system = max(_cpu(info.system_usage) + sum(_cpu(app.usage) for app in apps), reserved)
    measured = {f"{one.namespace}/{one.name}": one for one in metric.status.pods_metric}
    taken = 0
    for pod in pods:
        known = measured.pop(pod.metadata.key, None)
        if pod.status.phase not in ("Running", "Pending") or priority.priority_class(pod) in LENT:
            continue
        taken += _cpu(known.pod_usage) if known is not None else pod_requests(pod).get("cpu", ZERO).milli_value()
    taken += sum(_cpu(gone.pod_usage) for gone in measured.values() if gone.priority not in LENT)
    free = max(capacity * RECLAIM_PERCENT // 100 - system - taken, 0)
    lending = LENDING.get(node.metadata.annotations)
    hold = lending.hold.get("cpu") if lending is not None else None
    return free * (hold.percent if hold is not None else 100) // 100


def follows(node: Node, metric: NodeMetric, pods: Iterable[Pod]) -> Verdict:
    """Is batch-cpu what the last report and the pods allow, but for what is too little to be written?"""
    wanted = expected(node, metric, pods)
    have = node.status.allocatable.get(names.RESOURCE_BATCH_CPU, ZERO).value()
    said = f"batch-cpu {have}; by the report of {metric.status.update_time} and the pods there are {wanted} milli-cores"
    return Verdict(abs(have - wanted) <= THRESHOLD * have + 1, said)


def reports(metric: NodeMetric, pod: str) -> bool:
    """Whether a pod of the demo is measured."""
    return any(one.name == pod for one in metric.status.pods_metric)


def _cpu(usage: ResourceMap) -> int:
    return usage.resources.get("cpu", ZERO).milli_value()
