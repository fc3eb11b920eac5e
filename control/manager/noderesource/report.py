"""What the calculation needs of a NodeMetric, read once when koordlet reports. Pure.

Of interference only what neighbours do counts; `Suffering.culprit` tells who is most to blame, so that the policy can
look up whether it runs on lent resources. An extension of another shape says nothing: third parties may use the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from control.manager.noderesource.units import ZERO, Amounts, amounts, plus
from koordlet.api import priority
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.encoding.wire import WireError, convert
from koordlet.api.pages.interference import EXTENSION_KEY, Brief, NodeInterference

ON = ("interfered", "recovering")
NEIGHBOUR = "neighbour"


class Suffering(NamedTuple):
    """A container that a neighbour hurts in one resource."""

    victim: str
    """`namespace/name` of the pod"""
    resource: str
    culprit: str
    """`namespace/name` of the pod that is most to blame; empty when it is no pod"""
    confidence: float


class Report(NamedTuple):
    """A NodeMetric's status."""

    at: float
    """Unix time of the report"""
    node_usage: Amounts
    complete: bool
    """whether `nodeUsage` holds both cpu and memory; else nothing of the node counts as unused (spec 04 §6.5)"""
    system: Amounts
    host_high: Amounts
    """host applications of classes prod and mid"""
    host_prod: Amounts
    pods: dict[str, tuple[Amounts, str]]
    """`namespace/name` -> usage, priority class as reported"""
    reclaimable: Amounts
    suffering: tuple[Suffering, ...] = ()
    interfered: Mapping[str, int] = MappingProxyType({})
    """resource -> containers that a neighbour hurts, as koordlet counts them for the node"""

    @property
    def troubled(self) -> bool:
        """Whether anything is said of interference."""
        return bool(self.suffering) or any(self.interfered.values())


def read_report(metric: NodeMetric | None) -> Report | None:
    """None when nothing usable was reported: no object, no `updateTime`, no `nodeMetric`."""
    status = metric.status if metric is not None else None
    if status is None or status.update_time is None or status.node_metric is None:
        return None
    usage = status.node_metric.node_usage.resources
    high, prod = ZERO, ZERO
    for app in status.host_application_metric:
        value, used = priority.default_value(app.priority), amounts(app.usage.resources)
        if value > priority.BANDS[priority.BATCH].default:
            high = plus(high, used)
        if value > priority.BANDS[priority.MID].default:
            prod = plus(prod, used)
    predicted = status.prod_reclaimable_metric
    return Report(
        at=status.update_time.unix,
        node_usage=amounts(usage),
        complete="cpu" in usage and "memory" in usage,
        system=amounts(status.node_metric.system_usage.resources),
        host_high=high,
        host_prod=prod,
        pods={
            f"{one.namespace}/{one.name}": (amounts(one.pod_usage.resources), one.priority)
            for one in status.pods_metric
        },
        reclaimable=amounts(predicted.resource.resources) if predicted is not None else ZERO,
        suffering=tuple(_suffering(metric)) if metric is not None else (),
        interfered=_node_summary((status.extensions or {}).get(EXTENSION_KEY)).interfered,
    )


def _suffering(metric: NodeMetric) -> list[Suffering]:
    found = []
    for pod in metric.status.pods_metric:
        for brief in _briefs((pod.extensions or {}).get(EXTENSION_KEY)):
            if brief.cause == NEIGHBOUR and brief.state in ON:
                culprit = "/".join(brief.culprit.split("/")[:2]) if brief.culprit.count("/") else ""
                found.append(Suffering(f"{pod.namespace}/{pod.name}", brief.resource, culprit, brief.confidence))
    return found


def _node_summary(said: Any) -> NodeInterference:
    if said is None:
        return NodeInterference()
    try:
        summary: NodeInterference = convert(said, NodeInterference)
    except WireError:
        return NodeInterference()
    return summary


def _briefs(said: Any) -> list[Brief]:
    if said is None:
        return []
    try:
        briefs: list[Brief] = convert(said, list[Brief])
    except WireError:
        return []
    return briefs
