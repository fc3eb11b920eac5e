"""The contents of a NodeMetric as vectors (spec 05 §8.4). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from control.scheduler.plugins.loadaware.vectors import Tracked, Vector
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.priority import PROD

DEFAULT_INTERVAL_S: Final = 60
LONGEST: Final = 0
"""Duration that stands for the longest reported window."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The last NodeMetric of a node. Times are Unix seconds."""

    update_time: float | None
    interval: float
    complete: bool
    """Whether `status.nodeMetric` is present."""
    usage: Vector | None
    aggregated: Mapping[tuple[str, int], Vector]
    """(avg, p50 …; nanoseconds or LONGEST) -> usage of the node"""
    system: Vector
    pods: Mapping[str, Vector]
    """`namespace/name` -> usage"""
    prod: frozenset[str]
    """Keys of the pods that are reported as prod."""

    def window(self, key: tuple[str, int]) -> Vector | None:
        """Usage by percentile and window; None if the window is not reported."""
        usage = self.aggregated.get(key)
        return self.usage if usage is None and key[1] == LONGEST else usage


def read(metric: NodeMetric, tracked: Tracked, previous: LoadReport | None = None) -> LoadReport:
    """Read a NodeMetric. `previous`: the report before, whose time applies if this one has none."""
    status, info, policy = metric.status, metric.status.node_metric, metric.spec.metric_collect_policy
    aggregated: dict[tuple[str, int], Vector] = {}
    longest: dict[str, int] = {}
    for window in info.aggregated_node_usages if info is not None else ():
        duration = window.duration.nanoseconds
        for kind, usage in window.usage.items():
            if usage.resources:
                vector = aggregated[(kind, duration)] = tracked.amounts(usage.resources)
                if duration > longest.get(kind, -1):
                    longest[kind] = duration
                    aggregated[(kind, LONGEST)] = vector
    measured = [pod_metric for pod_metric in status.pods_metric if pod_metric.pod_usage.resources]
    time = status.update_time.unix if status.update_time is not None else None
    return LoadReport(
        update_time=time if time is not None or previous is None else previous.update_time,
        interval=float((policy.report_interval_seconds if policy is not None else None) or DEFAULT_INTERVAL_S),
        complete=info is not None,
        usage=tracked.amounts(info.node_usage.resources) if info is not None else None,
        aggregated=aggregated,
        system=tracked.amounts(info.system_usage.resources) if info is not None else tracked.zero,
        pods={
            f"{pod_metric.namespace}/{pod_metric.name}": tracked.amounts(pod_metric.pod_usage.resources)
            for pod_metric in measured
        },
        prod=frozenset(
            f"{pod_metric.namespace}/{pod_metric.name}" for pod_metric in measured if pod_metric.priority == PROD
        ),
    )
