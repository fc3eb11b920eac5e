"""Kernel parameters of the node (spec 03 §3.8). Pure. Values that NodeSLO leaves unset are not modified, or
restored."""

from __future__ import annotations

from collections.abc import Iterator

from koordlet.api.sloconfig.node import SystemStrategy
from koordlet.qosmanager.engine.strategy import QoSDecision, Strategy
from koordlet.qosmanager.engine.view import NodeView
from koordlet.resourceexecutor import DesiredSetting, Setting

REASON = "systemConfig reconcile"
PLAIN = {
    "watermark_scale_factor": "watermark_scale_factor",
    "reap_background": "memcg_reap_back_ground",
    "sched_group_identity_enabled": "sched_group_identity_enabled",
    "sched_idle_saver_wmark": "sched_idle_saver_wmark",
    "enabled": "page_cache_limit_enabled",
}
"""File of the node -> field whose value it takes unchanged."""


def min_free_kbytes(capacity: int, factor: int) -> int:
    """KiB of `factor` ten-thousandths of `capacity` bytes."""
    return capacity // 1024 * factor // 10_000


class SystemConfigStrategy(Strategy):
    """The strategy. The executor refuses a value outside the file's range and reports it."""

    name = "systemconfig"

    def decide(self, view: NodeView) -> QoSDecision | None:
        """See the module."""
        strategy, capacity = view.slo.system_strategy, view.capacity("memory")
        if strategy is None or capacity <= 0:
            return None
        return QoSDecision(tuple(self._updates(strategy, capacity)))

    def _updates(self, strategy: SystemStrategy, capacity: int) -> Iterator[DesiredSetting]:
        factor = strategy.min_free_kbytes_factor
        if factor is not None:
            yield DesiredSetting(Setting("min_free_kbytes"), min_free_kbytes(capacity, factor), REASON)
        for file, name in PLAIN.items():
            value = getattr(strategy, name)
            if value is not None:
                yield DesiredSetting(Setting(file), value, REASON)
        for feature, on in strategy.sched_features.items():
            yield DesiredSetting(Setting("sched_features", device=feature), int(on), REASON)
