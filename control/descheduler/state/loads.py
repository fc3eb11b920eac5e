"""NodeMetrics reduced to amounts: the load of a node and of its pods (spec 07 §6.3).

The informer of NodeMetric stores `ReportedLoad`. Amounts are integers: cpu in milli-cores, others in whole units.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Final

import msgspec

from control.component.amounts import MAX_AMOUNT, amounts
from control.descheduler.state.delays import Delay, delays_of
from koordlet.api.crs.nodemetric import NodeMetric
from koordlet.api.meta import ObjectMeta

MAX_SKEW_S: Final = 60.0
"""By how much a node's clock may be ahead."""


class ReportedLoad(msgspec.Struct):
    """One NodeMetric. `metadata` has name, uid and resourceVersion only."""

    metadata: ObjectMeta
    updated: float | None
    """Unix time of `status.updateTime`; None if it is absent."""
    complete: bool
    """Whether `status.nodeMetric` is present."""
    usage: dict[str, int]
    """System usage plus the usage of all listed pods."""
    pods: dict[str, dict[str, int]]
    """Usage of each pod, by `namespace/name`."""
    delays: list[Delay] = msgspec.field(default_factory=list)
    """The services that co-located pods delay."""

    def fresh(self, now: float, max_age_s: float) -> bool:
        """Whether it is complete and younger than `max_age_s`. A time in the future is the node's wrong clock."""
        return self.complete and self.updated is not None and -MAX_SKEW_S < now - self.updated < max_age_s


def load_of(metric: NodeMetric) -> ReportedLoad:
    """What the descheduler keeps of a NodeMetric; a pod that is listed twice counts with its last entry."""
    status, meta = metric.status, metric.metadata
    pods = {
        intern(f"{pod.namespace}/{pod.name}"): _interned(amounts(pod.pod_usage.resources)) for pod in status.pods_metric
    }
    usage = _interned(amounts(status.node_metric.system_usage.resources)) if status.node_metric is not None else {}
    for pod_usage in pods.values():
        for name, amount in pod_usage.items():
            usage[name] = min(usage.get(name, 0) + amount, MAX_AMOUNT)
    return ReportedLoad(
        ObjectMeta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version),
        status.update_time.timestamp() if status.update_time is not None else None,
        status.node_metric is not None,
        usage,
        pods,
        delays_of(metric),
    )


def _interned(values: Mapping[str, int]) -> dict[str, int]:
    return {intern(name): amount for name, amount in values.items()}
