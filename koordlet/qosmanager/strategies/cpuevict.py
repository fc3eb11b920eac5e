"""CPU eviction (spec 03 §3.3): best-effort pods that get too little CPU, requests beyond allocatable, a node that is
too busy. Pure.

Three features, each one task per round, in the order of the specification's table. All amounts are milli-cores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from koordlet.api.names import RESOURCE_BATCH_CPU
from koordlet.api.sloconfig.threshold import EVICT_BY_ALLOCATABLE, ResourceThresholdStrategy
from koordlet.qosmanager.engine.eviction import CPU, REQUESTED, EvictionTask, best_effort_victim, prefers_to_stay
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.rules import requested, used
from koordlet.qosmanager.strategies.cooling import CoolingEviction

BE, ALLOCATABLE, USAGE = "BECPUEvict", "CPUAllocatableEvict", "CPUEvict"
FEATURES = (BE, ALLOCATABLE, USAGE)
COOL_SECONDS = 20.0
DEFAULT_USAGE_PERCENT = 90
"""Best-effort use in percent of its limit that its eviction requires by default."""
MAX_SATISFACTION_LOWER = 60


def satisfaction_valid(lower: int | None, upper: int | None) -> bool:
    """Whether BE satisfaction is configured: 0 < lower <= 60, lower <= upper < 100."""
    return lower is not None and upper is not None and 0 < lower <= MAX_SATISFACTION_LOWER and lower <= upper < 100


def busy(usage: float, limit: float, threshold: int) -> bool:
    """Whether best-effort pods use their limit."""
    if limit <= 0:
        return False
    return limit < 1000 or usage / limit >= threshold / 100


def shortage(request: float, limit: float, lower: int, upper: int) -> int:
    """Milli-cores of requests to release so that the rest is satisfied up to `upper`; 0 above `lower`."""
    if request <= 0:
        return 0
    satisfied = limit / request
    if satisfied > lower / 100 or satisfied >= upper / 100:
        return 0
    return int(request * (upper / 100 - satisfied))


class CPUEvict(CoolingEviction):
    """The strategy. `interval`: seconds between two readings; it also cools down after `started`."""

    name = "cpuevict"

    def __init__(
        self, features: Collection[str], *, interval: float, started: float, cool_seconds: float = COOL_SECONDS
    ) -> None:
        super().__init__(features, cool_seconds=cool_seconds, evicted_at=started)
        self._interval = interval

    def _tasks(self, view: NodeView, strategy: ResourceThresholdStrategy) -> Iterator[EvictionTask]:
        window = max(self._interval, float(strategy.cpu_evict_time_window_seconds or 0))
        if BE in self._features and (release := self._best_effort_release(view, strategy, window)) > 0:
            yield best_effort_task(view, release)
        if ALLOCATABLE in self._features:
            yield from requested.tasks(
                view,
                ALLOCATABLE,
                CPU,
                threshold=strategy.cpu_allocatable_evict_threshold_percent,
                lower=strategy.cpu_allocatable_evict_lower_percent,
                priority_threshold=strategy.allocatable_evict_priority_threshold,
            )
        if USAGE in self._features and strategy.evict_enabled_priority_threshold is not None:
            release = usage_release(view, strategy, window)
            if release > 0:
                yield used.task(view, USAGE, CPU, release, strategy.evict_enabled_priority_threshold)

    def _best_effort_release(self, view: NodeView, strategy: ResourceThresholdStrategy, window: float) -> int:
        lower = strategy.cpu_evict_be_satisfaction_lower_percent
        upper = strategy.cpu_evict_be_satisfaction_upper_percent
        if lower is None or upper is None or not satisfaction_valid(lower, upper):
            return 0
        threshold = strategy.cpu_evict_be_usage_threshold_percent
        threshold = DEFAULT_USAGE_PERCENT if threshold is None else threshold
        usage, request, limit = (
            view.average("node_be", ("cpu", name), window) for name in ("usage", "request", "real-limit")
        )
        if usage is None or request is None or limit is None:
            return 0
        if min(usage.count, request.count, limit.count) * self._interval < window // 3:
            return 0
        by_allocatable = strategy.cpu_evict_policy == EVICT_BY_ALLOCATABLE
        allocatable = best_effort_allocatable(view) if by_allocatable else None
        releases = []
        for used_cpu, requested_cpu, limit_cpu in (
            (usage.mean, request.mean, limit.mean),
            (usage.last, request.last, limit.last),
        ):
            bound = limit_cpu if allocatable is None else float(allocatable)
            if not busy(used_cpu, bound, threshold):
                return 0
            releases.append(shortage(requested_cpu, bound, lower, upper))
            if releases[0] <= 0:
                return 0
        unchanged = (request.mean, limit.mean) == (request.last, limit.last)
        return releases[0] if unchanged else min(releases)


def best_effort_allocatable(view: NodeView) -> int:
    """The node's batch-cpu; 1 if it is 0, -1 if it is absent."""
    amounts = {} if view.node is None else view.node.status.allocatable
    amount = amounts.get(RESOURCE_BATCH_CPU)
    if amount is None or amount.value() < 0:
        return -1
    return amount.value() or 1


def best_effort_task(view: NodeView, release: int) -> EvictionTask:
    """BE pods: those that prefer to stay last, spec.priority ascending, then largest use relative to the request."""
    victims = [pod for pod in view.pods if best_effort_victim(pod)]
    requests = {pod.meta.uid: requested.batch(pod, CPU) for pod in view.pods}

    def order(pod: PodView) -> tuple[bool, int, float]:
        request = requests[pod.meta.uid]
        share = (pod.cpu or 0) / request if request > 0 else float(pod.cpu or 0)
        return prefers_to_stay(pod, BE), requested.spec_priority(pod), -share

    victims.sort(key=order)
    contributes = {uid: {RESOURCE_BATCH_CPU: amount} for uid, amount in requests.items()}
    return EvictionTask(BE, REQUESTED, {RESOURCE_BATCH_CPU: release}, tuple(victims), contributes)


def usage_release(view: NodeView, strategy: ResourceThresholdStrategy, window: float) -> int:
    """See `rules.used.excess`; the node's use is its mean over the window."""
    if strategy.cpu_evict_threshold_percent is None:
        return 0
    node = view.average("node_cpu_usage", (), window)
    threshold, lower = strategy.cpu_evict_threshold_percent, strategy.cpu_evict_lower_percent
    return used.excess(None if node is None else int(node.mean * 1000), view.capacity(CPU), threshold, lower)
