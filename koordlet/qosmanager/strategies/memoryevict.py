"""Memory eviction (spec 03 §3.3): a node that is nearly full, requests beyond allocatable. Pure. Bytes throughout."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from koordlet.api.sloconfig.threshold import ResourceThresholdStrategy
from koordlet.qosmanager.engine.eviction import MEMORY, USED, Task, best_effort_victim, by_priority, evictable
from koordlet.qosmanager.engine.strategy import Decision, Strategy
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.rules import requested

BE, ALLOCATABLE, USAGE = "BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict"
FEATURES = (BE, ALLOCATABLE, USAGE)
COOL_SECONDS = 4.0


class MemoryEvict(Strategy):
    """`features`: those whose gates are on. `cool_seconds` after a round that evicted."""

    name = "memoryevict"
    gate = ""

    def __init__(self, features: Collection[str], *, cool_seconds: float = COOL_SECONDS) -> None:
        self._features, self._cool = features, cool_seconds
        self._evicted_at = float("-inf")

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
        release = usage_release(view, strategy)
        if BE in self._features and release > 0:
            yield best_effort_task(view, release)
        if ALLOCATABLE in self._features:
            yield from requested.tasks(
                view, ALLOCATABLE, MEMORY,
                threshold=strategy.memory_allocatable_evict_threshold_percent,
                lower=strategy.memory_allocatable_evict_lower_percent,
                priority_threshold=strategy.allocatable_evict_priority_threshold,
            )  # fmt: skip
        if USAGE in self._features and release > 0 and strategy.evict_enabled_priority_threshold is not None:
            yield usage_task(view, release, strategy.evict_enabled_priority_threshold)


def usage_release(view: NodeView, strategy: ResourceThresholdStrategy) -> int:
    """Bytes above the lower threshold once the node is above the upper one; 0 else."""
    threshold, capacity = strategy.memory_evict_threshold_percent, view.capacity(MEMORY)
    if threshold is None or threshold < 0 or capacity <= 0 or view.memory is None:
        return 0
    lower = strategy.memory_evict_lower_percent
    lower = threshold - 2 if lower is None else lower
    if lower >= threshold:
        return 0
    percent = view.memory * 100 // capacity
    return capacity * (percent - lower) // 100 if percent >= threshold else 0


def best_effort_task(view: NodeView, release: int) -> Task:
    """BE pods: spec.priority ascending, those measured first and of these the biggest, then name descending."""

    def order(pod: PodView) -> tuple[int, bool, int]:
        return requested.spec_priority(pod), pod.memory is None, -(pod.memory or 0)

    victims = [pod for pod in view.pods if best_effort_victim(pod, BE)]
    victims.sort(key=lambda pod: pod.meta.name, reverse=True)
    victims.sort(key=order)
    contributes = {pod.meta.uid: {MEMORY: pod.memory or 0} for pod in view.pods}
    return Task(BE, USED, {MEMORY: release}, tuple(victims), contributes)


def usage_task(view: NodeView, release: int, priority_threshold: int) -> Task:
    """Pods up to a priority: lowest first, then the biggest."""
    victims = [pod for pod in view.pods if pod.memory is not None and evictable(pod, USAGE, priority_threshold)]
    victims.sort(key=lambda pod: (*by_priority(pod), -(pod.memory or 0)))
    contributes = {pod.meta.uid: {MEMORY: pod.memory or 0} for pod in view.pods}
    return Task(USAGE, USED, {MEMORY: release}, tuple(victims), contributes)
