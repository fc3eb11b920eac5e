"""The estimated usage of a pod before it is measured, and how long the estimate counts (`defaultEstimator`, spec 05
§8.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from control.scheduler.config.args import LoadAwareSchedulingArgs
from control.scheduler.plugins.loadaware.vectors import Tracked, Vector, amount
from koordlet.api.annotations import node as node_annotations
from koordlet.api.annotations import scheduling
from koordlet.api.core import Node, Pod
from koordlet.api.core.podresources import pod_limits, pod_requests
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.api.priority import BATCH, FREE, MID, PROD, priority_class

DEFAULT_MILLI_CPU: Final = 250
DEFAULT_MEMORY_BYTES: Final = 200 << 20
_REAL: Final[dict[str, dict[str, str]]] = {
    BATCH: {"cpu": "kubernetes.io/batch-cpu", "memory": "kubernetes.io/batch-memory"},
    MID: {"cpu": "kubernetes.io/mid-cpu", "memory": "kubernetes.io/mid-memory"},
    FREE: {},
}
"""Priority class -> the resource that its pods request instead. Classes that are missing use the native resource."""
_WITHOUT_REQUEST: Final = {
    "cpu": DEFAULT_MILLI_CPU,
    "kubernetes.io/batch-cpu": DEFAULT_MILLI_CPU,
    "memory": DEFAULT_MEMORY_BYTES,
    "kubernetes.io/batch-memory": DEFAULT_MEMORY_BYTES,
}


@dataclass(frozen=True, slots=True)
class PodLoad:
    """The load data shared by equal pods. `after_scheduled`, `after_initialized`: seconds, None if unset."""

    estimate: Vector
    prod: bool
    after_scheduled: int | None
    after_initialized: int | None

    @property
    def known(self) -> Vector | None:
        """The estimate; None if it is zero."""
        return self.estimate if any(self.estimate) else None

    def deadline(self, pod: Pod, timestamp: float) -> float | None:
        """Unix seconds until which the estimate counts even if the pod is measured (spec 05 §8.3)."""
        if self.after_initialized and self.after_initialized > 0:
            initialized = _since(pod, "Initialized")
            if initialized is not None:
                return initialized + self.after_initialized
        if self.after_scheduled and self.after_scheduled > 0:
            return timestamp + self.after_scheduled
        return None


def pod_load(pod: Pod, args: LoadAwareSchedulingArgs, tracked: Tracked) -> PodLoad:
    """Compute the load data from the pod's spec, labels and annotations."""
    kind = priority_class(pod)
    after_scheduled = args.estimated_seconds_after_pod_scheduled
    after_initialized = args.estimated_seconds_after_initialized
    if args.allow_customize_estimation:
        scheduled, initialized = scheduling.load_estimated_seconds(pod.metadata.annotations)
        if scheduled is not None and scheduled >= 0:
            after_scheduled = scheduled
        if initialized is not None and initialized >= 0:
            after_initialized = initialized
    requests, limits, factors = pod_requests(pod), pod_limits(pod), _factors(pod, args)
    estimate = tuple(
        _estimated(name, kind, factors[name], requests, limits) if name in factors else 0 for name in tracked.names
    )
    return PodLoad(estimate, kind == PROD, after_scheduled, after_initialized)


def scheduled_at(pod: Pod) -> float | None:
    """Unix seconds at which the pod was scheduled, by its condition."""
    return _since(pod, "PodScheduled")


def capacity(node: Node, tracked: Tracked) -> Vector:
    """Allocatable amounts, before amplification."""
    allocatable, raw = node.status.allocatable, _before_amplification(node.metadata.annotations)
    return tracked.amounts({**allocatable, **raw} if raw else allocatable)


def _before_amplification(annotations: Mapping[str, str]) -> Mapping[str, Quantity]:
    try:
        return node_annotations.RAW_ALLOCATABLE.get(annotations) or {}
    except WireError:
        return {}  # a malformed annotation is ignored (spec 05 §8.2)


def _since(pod: Pod, condition: str) -> float | None:
    condition_status = pod.status.condition(condition)
    if condition_status is None or condition_status.status != "True" or condition_status.last_transition_time is None:
        return None
    return condition_status.last_transition_time.unix


def _factors(pod: Pod, args: LoadAwareSchedulingArgs) -> Mapping[str, int]:
    if args.allow_customize_estimation:
        own = scheduling.load_scaling_factors(pod.metadata.annotations)
        if own:
            return args.estimated_scaling_factors | {name: max(factor, 0) for name, factor in own.items()}
    return args.estimated_scaling_factors


def _estimated(
    name: str, kind: str, factor: int, requests: Mapping[str, Quantity], limits: Mapping[str, Quantity]
) -> int:
    real = _REAL[kind].get(name) if kind in _REAL else name
    if real is None:
        return 0
    limit = amount(real, limits.get(real))
    declared_amount = max(limit, amount(real, requests.get(real)))
    if declared_amount == 0:
        return _WITHOUT_REQUEST.get(real, 0)
    estimated = (2 * declared_amount * factor + 100) // 200  # rounds half away from zero
    return min(estimated, limit) if limit else estimated
