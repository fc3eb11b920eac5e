"""The usage of a node's pods from its NodeMetric, if the report time is plausible. Pure.

The sample time is the report's own time. A report from the future would outweigh the later samples until that time, and
a stale report holds no new information. Clocks may differ by up to one minute.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from koordlet.api.crs.nodemetric import NodeMetric, containers_of

MAX_AGE_S = 900.0
MAX_AHEAD_S = 60.0
STALE = "stale"
FUTURE = "future"


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The usage of one node's pods as (cores, bytes)."""

    at: float
    """Unix time of the measurement"""
    pods: dict[str, tuple[float, float]]
    """`namespace/name` -> usage"""
    containers: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """`namespace/name` -> container -> usage, for pods with several containers if koordlet reports containers"""


def read_report(metric: NodeMetric, now: float) -> tuple[UsageReport | None, str]:
    """(report, ""), or (None, reason). Pods without CPU or memory usage, or with a negative usage, are left out."""
    updated = metric.status.update_time
    if updated is None or now - updated.unix > MAX_AGE_S:
        return None, STALE
    if updated.unix - now > MAX_AHEAD_S:
        return None, FUTURE
    pods: dict[str, tuple[float, float]] = {}
    containers: dict[str, dict[str, tuple[float, float]]] = {}
    for pod in metric.status.pods_metric:
        cpu, memory = pod.pod_usage.resources.get("cpu"), pod.pod_usage.resources.get("memory")
        if cpu is not None and memory is not None and cpu.nano >= 0 and memory.nano >= 0:
            pods[f"{pod.namespace}/{pod.name}"] = (float(cpu), float(memory))
            if pod.extensions and (container_usage := containers_of(pod)):
                containers[f"{pod.namespace}/{pod.name}"] = container_usage
    return UsageReport(updated.unix, pods, containers), ""
