"""The facts from a NodeMetric that the calculation needs, extracted once per report of koordlet. Pure.

Only interference caused by co-located pods counts. `Victim.culprit` is the main culprit, so that the policy can check
whether it runs on overcommitted resources. An extension of an unknown shape is ignored: third parties may use the key.
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

ACTIVE_STATES = ("interfered", "recovering")
NEIGHBOUR = "neighbour"


class InterferenceVictim(NamedTuple):
    """A container that a co-located pod delays in one resource."""

    victim: str
    """`namespace/name` of its pod"""
    resource: str
    culprit: str
    """`namespace/name` of the main culprit; empty when that is not a pod"""
    confidence: float


class NodeReport(NamedTuple):
    """The status of a NodeMetric."""

    at: float
    """Unix time of the report"""
    node_usage: Amounts
    complete: bool
    """whether `nodeUsage` holds both cpu and memory; otherwise nothing counts as unused (spec 04 §6.5)"""
    system: Amounts
    host_high: Amounts
    """host applications of priority classes prod and mid"""
    host_prod: Amounts
    pods: dict[str, tuple[Amounts, str]]
    """`namespace/name` -> usage, priority class as reported"""
    reclaimable: Amounts
    victims: tuple[InterferenceVictim, ...] = ()
    interfered: Mapping[str, int] = MappingProxyType({})
    """resource -> number of containers delayed by co-located pods, counted by koordlet for the node"""

    @property
    def has_interference(self) -> bool:
        """Whether any interference is reported."""
        return bool(self.victims) or any(self.interfered.values())


def read_report(metric: NodeMetric | None) -> NodeReport | None:
    """None without a usable report: no object, no `updateTime` or no `nodeMetric`."""
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
    return NodeReport(
        at=status.update_time.unix,
        node_usage=amounts(usage),
        complete="cpu" in usage and "memory" in usage,
        system=amounts(status.node_metric.system_usage.resources),
        host_high=high,
        host_prod=prod,
        pods={
            f"{pod.namespace}/{pod.name}": (amounts(pod.pod_usage.resources), pod.priority)
            for pod in status.pods_metric
        },
        reclaimable=amounts(predicted.resource.resources) if predicted is not None else ZERO,
        victims=tuple(_suffering(metric)) if metric is not None else (),
        interfered=_node_summary((status.extensions or {}).get(EXTENSION_KEY)).interfered,
    )


def _suffering(metric: NodeMetric) -> list[InterferenceVictim]:
    victims = []
    for pod in metric.status.pods_metric:
        for brief in _briefs((pod.extensions or {}).get(EXTENSION_KEY)):
            if brief.cause == NEIGHBOUR and brief.state in ACTIVE_STATES:
                culprit = "/".join(brief.culprit.split("/")[:2]) if brief.culprit.count("/") else ""
                victims.append(
                    InterferenceVictim(f"{pod.namespace}/{pod.name}", brief.resource, culprit, brief.confidence)
                )
    return victims


def _node_summary(extension: Any) -> NodeInterference:
    if extension is None:
        return NodeInterference()
    try:
        summary: NodeInterference = convert(extension, NodeInterference)
    except WireError:
        return NodeInterference()
    return summary


def _briefs(extension: Any) -> list[Brief]:
    if extension is None:
        return []
    try:
        briefs: list[Brief] = convert(extension, list[Brief])
    except WireError:
        return []
    return briefs
