"""CPU of all BestEffort pods together, in milli-cores: used, requested, and the effective limit (spec 02 §5.5).
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from koordlet.api.core import Pod
from koordlet.api.names import RESOURCE_BATCH_CPU
from koordlet.api.qos import BE, raw_qos_class
from koordlet.metricsadvisor.usage.readings import BestEffortLimits
from koordlet.statesinformer.pods.model import PodMeta


@dataclass(frozen=True, slots=True)
class BestEffortUse:
    """Milli-cores; `usage` is None at first sight."""

    usage: int | None
    request: int
    real_limit: int | None


def real_limit(limits: BestEffortLimits) -> int:
    """The smaller of cpuset and quota, truncated to milli-cores."""
    by_set = limits.cpus * 1000
    if limits.quota_us < 0 or limits.period_us <= 0:
        return by_set
    return min(by_set, limits.quota_us * 1000 // limits.period_us)


def batch_request(pods: Iterable[PodMeta]) -> int:
    """Batch-cpu requests (milli-cores) of pods labelled BE, with sidecars; negative and absent requests count 0."""
    return sum(_batch_cpu(meta.pod) for meta in pods if meta.pod is not None and raw_qos_class(meta.pod) == BE)


def _batch_cpu(pod: Pod) -> int:
    sidecars = [container for container in pod.spec.init_containers if container.is_sidecar]
    amounts = (c.resources.requests.get(RESOURCE_BATCH_CPU) for c in [*pod.spec.containers, *sidecars])
    return sum(max(amount.value(), 0) for amount in amounts if amount is not None)


def best_effort_use(cores: float | None, requested: int, limits: BestEffortLimits | None) -> BestEffortUse:
    """All three figures of one tick. `requested`: `batch_request` of the node's pods."""
    return BestEffortUse(
        usage=None if cores is None else int(cores * 1000),
        request=requested,
        real_limit=None if limits is None else real_limit(limits),
    )
