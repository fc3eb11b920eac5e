"""CPU eviction (spec 03 §3.3): best-effort pods that starve, requests beyond allocatable, a node too busy. Pure.

Three features, each a task of one round, in the order of the specification's table. All amounts are milli-cores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from koordlet.api.names import RESOURCE_BATCH_CPU
from koordlet.api.sloconfig.threshold import EVICT_BY_ALLOCATABLE, ResourceThresholdStrategy
from koordlet.qosmanager.engine.eviction import CPU, REQUESTED, USED, Task, best_effort_victim, by_priority, evictable
from koordlet.qosmanager.engine.strategy import Decision, Strategy
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.rules import requested

BE, ALLOCATABLE, USAGE = "BECPUEvict", "CPUAllocatableEvict", "CPUEvict"
FEATURES = (BE, ALLOCATABLE, USAGE)
COOL_SECONDS = 20.0
USAGE_PERCENT = 90
"""Best-effort use of its limit, in percent, that its eviction demands by default."""
LOWER_MAX = 60


def satisfaction_valid(lower: int | None, upper: int | None) -> bool:
    """Whether BE satisfaction is configured: 0 < lower <= 60, lower <= upper < 100."""
    return lower is not None and upper is not None and 0 < lower <= LOWER_MAX and lower <= upper < 100


def busy(usage: float, limit: float, threshold: int) -> bool:
    """Whether best-effort pods use what they have."""
    if limit <= 0:
        return False
    return limit < 1000 or usage / limit >= threshold / 100


def short(request: float, limit: float, lower: int, upper: int) -> int:
    """Milli-cores of requests to let go so that the rest is satisfied up to `upper`; 0 while it is above `lower`."""
    if request <= 0:
        return 0
    satisfied = limit / request
    if satisfied > lower / 100 or satisfied >= upper / 100:
        return 0
    return int(request * (upper / 100 - satisfied))


class CPUEvict(Strategy):
    """`features`: those whose gates are on. `cool_seconds` between two rounds that evicted, and after the start."""

    name = "cpuevict"
    gate = ""

    def __init__(
        self, features: Collection[str], *, interval: float, started: float, cool_seconds: float = COOL_SECONDS
    ) -> None:
        self._features, self._interval, self._cool = features, interval, cool_seconds
        self._evicted_at = started

    def evicted(self, now: float) -> None:
        """A round evicted somebody."""
        self._evicted_at = now

    def decide(self, view: NodeView) -> Decision | None:
        """Tasks of this round."""
        strategy = view.slo.resource_used_threshold_with_be
        if strategy is None or not strategy.enable or view.now - self._evicted_at < self._cool:
            return Decision()
        return Decision(evictions=tuple(self._tasks(view, strategy)))

    def _tasks(self, view: NodeView, strategy: ResourceThresholdStrategy) -> Iterator[Task]:
        window = max(self._interval, float(strategy.cpu_evict_time_window_seconds or 0))
        if BE in self._features and (release := self._best_effort(view, strategy, window)) > 0:
            yield best_effort_task(view, release)
        if ALLOCATABLE in self._features:
            yield from requested.tasks(
                view, ALLOCATABLE, CPU,
                threshold=strategy.cpu_allocatable_evict_threshold_percent,
                lower=strategy.cpu_allocatable_evict_lower_percent,
                priority_threshold=strategy.allocatable_evict_priority_threshold,
            )  # fmt: skip
        if USAGE in self._features and (release := usage_release(view, strategy, window)) > 0:
            yield usage_task(view, release, strategy.evict_enabled_priority_threshold or 0)

    def _best_effort(self, view: NodeView, strategy: ResourceThresholdStrategy, window: float) -> int:
        lower = strategy.cpu_evict_be_satisfaction_lower_percent
        upper = strategy.cpu_evict_be_satisfaction_upper_percent
        if lower is None or upper is None or not satisfaction_valid(lower, upper):
            return 0
        threshold = strategy.cpu_evict_be_usage_threshold_percent
        threshold = USAGE_PERCENT if threshold is None else threshold
        found = {name: view.average("node_be", ("cpu", name), window) for name in ("usage", "request", "real-limit")}
        if any(one is None or one.count * self._interval < window // 3 for one in found.values()):
            return 0
        usage, request, limit = (one for one in found.values() if one is not None)
        by_allocatable = strategy.cpu_evict_policy == EVICT_BY_ALLOCATABLE
        allocatable = best_effort_allocatable(view) if by_allocatable else None
        answers = []
        for used, asked, bound in (
            (usage.mean, request.mean, limit.mean),
            (usage.last, request.last, limit.last),
        ):
            bound = bound if allocatable is None else float(allocatable)
            if not busy(used, bound, threshold):
                return 0
            answers.append(short(asked, bound, lower, upper))
            if answers[0] <= 0:
                return 0
        unchanged = (request.mean, limit.mean) == (request.last, limit.last)
        return answers[0] if unchanged else min(answers)


def best_effort_allocatable(view: NodeView) -> int:
    """The node's batch-cpu; 1 for none left, -1 when it is not there."""
    amounts = {} if view.node is None else view.node.status.allocatable
    found = amounts.get(RESOURCE_BATCH_CPU)
    if found is None or found.value() < 0:
        return -1
    return found.value() or 1


def best_effort_task(view: NodeView, release: int) -> Task:
    """BE pods: spec.priority ascending, then who uses most of what it asked for."""
    victims = [pod for pod in view.pods if best_effort_victim(pod, BE)]
    asked = {pod.meta.uid: requested.batch(pod, CPU) for pod in view.pods}

    def order(pod: PodView) -> tuple[int, float]:
        request = asked[pod.meta.uid]
        share = (pod.cpu or 0) / request if request > 0 else float(pod.cpu or 0)
        return requested.spec_priority(pod), -share

    victims.sort(key=order)
    contributes = {uid: {RESOURCE_BATCH_CPU: amount} for uid, amount in asked.items()}
    return Task(BE, REQUESTED, {RESOURCE_BATCH_CPU: release}, tuple(victims), contributes)


def usage_release(view: NodeView, strategy: ResourceThresholdStrategy, window: float) -> int:
    """Milli-cores above the lower threshold once the node is above the upper one (spec 03 §3.3.3)."""
    threshold, capacity = strategy.cpu_evict_threshold_percent, view.capacity(CPU)
    if threshold is None or strategy.evict_enabled_priority_threshold is None or capacity <= 0:
        return 0
    lower = strategy.cpu_evict_lower_percent
    lower = threshold - 2 if lower is None else lower
    used = view.average("node_cpu_usage", (), window)
    if threshold < 0 or lower >= threshold or used is None:
        return 0
    percent = int(used.mean * 1000) * 100 // capacity
    return capacity * (percent - lower) // 100 if percent >= threshold else 0


def usage_task(view: NodeView, release: int, priority_threshold: int) -> Task:
    """Pods up to a priority: lowest first, then who uses most."""
    victims = [pod for pod in view.pods if pod.cpu is not None and evictable(pod, USAGE, priority_threshold)]
    victims.sort(key=lambda pod: (*by_priority(pod), -(pod.cpu or 0)))
    contributes = {pod.meta.uid: {CPU: pod.cpu or 0} for pod in view.pods}
    return Task(USAGE, USED, {CPU: release}, tuple(victims), contributes)
