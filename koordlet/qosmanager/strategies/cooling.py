"""What both eviction strategies share: they are off without a threshold strategy, and cool down after an eviction."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from koordlet.api.sloconfig.threshold import ResourceThresholdStrategy
from koordlet.qosmanager.engine.eviction import EvictionTask
from koordlet.qosmanager.engine.strategy import QoSDecision, Strategy
from koordlet.qosmanager.engine.view import NodeView


class CoolingEviction(Strategy):
    """`features`: those whose gates are on. No tasks for `cool_seconds` after `evicted_at`."""

    def __init__(self, features: Collection[str], *, cool_seconds: float, evicted_at: float) -> None:
        self._features = features
        self._cool_seconds = cool_seconds
        self._evicted_at = evicted_at

    def evicted(self, now: float) -> None:
        """See `Strategy`."""
        self._evicted_at = now

    def decide(self, view: NodeView) -> QoSDecision | None:
        """The tasks of this round."""
        strategy = view.slo.resource_used_threshold_with_be
        if strategy is None or not strategy.enable or view.now - self._evicted_at < self._cool_seconds:
            return QoSDecision()
        return QoSDecision(evictions=tuple(self._tasks(view, strategy)))

    def _tasks(self, view: NodeView, strategy: ResourceThresholdStrategy) -> Iterator[EvictionTask]:
        raise NotImplementedError
