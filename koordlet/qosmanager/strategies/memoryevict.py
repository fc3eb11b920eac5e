"""Memory eviction (spec 03 §3.3): a node that is nearly full, requests beyond allocatable. Pure. All amounts in
bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from koordlet.api.sloconfig.threshold import ResourceThresholdStrategy
from koordlet.qosmanager.engine.eviction import MEMORY, USED, EvictionTask, best_effort_victim, prefers_to_stay
from koordlet.qosmanager.engine.view import NodeView, PodView
from koordlet.qosmanager.rules import requested, used
from koordlet.qosmanager.strategies.cooling import CoolingEviction

BE, ALLOCATABLE, USAGE = "BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict"
FEATURES = (BE, ALLOCATABLE, USAGE)
COOL_SECONDS = 4.0


class MemoryEvict(CoolingEviction):
    """The strategy."""

    name = "memoryevict"

    def __init__(self, features: Collection[str], *, cool_seconds: float = COOL_SECONDS) -> None:
        super().__init__(features, cool_seconds=cool_seconds, evicted_at=float("-inf"))

    def _tasks(self, view: NodeView, strategy: ResourceThresholdStrategy) -> Iterator[EvictionTask]:
        release = usage_release(view, strategy)
        if BE in self._features and release > 0:
            yield best_effort_task(view, release)
        if ALLOCATABLE in self._features:
            yield from requested.tasks(
                view,
                ALLOCATABLE,
                MEMORY,
                threshold=strategy.memory_allocatable_evict_threshold_percent,
                lower=strategy.memory_allocatable_evict_lower_percent,
                priority_threshold=strategy.allocatable_evict_priority_threshold,
            )
        if USAGE in self._features and release > 0 and strategy.evict_enabled_priority_threshold is not None:
            yield used.task(view, USAGE, MEMORY, release, strategy.evict_enabled_priority_threshold)


def usage_release(view: NodeView, strategy: ResourceThresholdStrategy) -> int:
    """See `rules.used.excess`."""
    threshold, lower = strategy.memory_evict_threshold_percent, strategy.memory_evict_lower_percent
    return used.excess(view.memory, view.capacity(MEMORY), threshold, lower)


def best_effort_task(view: NodeView, release: int) -> EvictionTask:
    """BE pods: those that prefer to stay last, spec.priority ascending, measured pods first and of these the largest,
    then name descending."""

    def order(pod: PodView) -> tuple[bool, int, bool, int]:
        return prefers_to_stay(pod, BE), requested.spec_priority(pod), pod.memory is None, -(pod.memory or 0)

    victims = [pod for pod in view.pods if best_effort_victim(pod)]
    victims.sort(key=lambda pod: pod.meta.name, reverse=True)
    victims.sort(key=order)
    return EvictionTask(BE, USED, {MEMORY: release}, tuple(victims), used.contributions(view, MEMORY))
