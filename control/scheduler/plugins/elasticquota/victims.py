"""Preemption inside a quota: which pods may go, and whether the quota admits the preemptor then (spec 06 §5.9)."""

from __future__ import annotations

from collections.abc import Callable, Collection

from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import PluginStatus, unresolvable
from control.scheduler.framework.victimpolicy import VictimPolicy
from control.scheduler.plugins.elasticquota.book import QuotaBook
from control.scheduler.state.pods import PodInfo
from koordlet.api import names
from koordlet.api.annotations.scheduling import quota_preemptible


class QuotaVictims(VictimPolicy):
    """Pods of the same quota with a lower priority that may be preempted."""

    message = "preempting to accommodate a higher priority pod of the same quota"

    def __init__(self, book: QuotaBook, admits: Callable[[PodInfo], PluginStatus], *, spare_default: bool) -> None:
        """`admits(pod)`: whether the quota admits the pod now. `spare_default`: pods of the default quota are never
        victims."""
        self._book = book
        self._admits = admits
        self._spare_default = spare_default

    def eligible(self, victim: PodInfo, preemptor: PodInfo) -> bool:
        if not super().eligible(victim, preemptor) or not quota_preemptible(victim.shape.labels):
            return False
        quota = self._book.quota_of(preemptor)
        if quota is None or quota is not self._book.quota_of(victim):
            return False
        return quota.name != names.DEFAULT_QUOTA or not self._spare_default

    def rows(self, preemptor: PodInfo) -> Collection[int]:
        quota = self._book.quota_of(preemptor)
        if quota is None:
            return ()
        return {info.row for _, info in self._book.assigned(quota) if self.eligible(info, preemptor)}

    def admits(self, state: CycleState, preemptor: PodInfo) -> PluginStatus:
        return self._admits(preemptor)

    def none_on(self, node: str, preemptor: PodInfo) -> PluginStatus:
        quota = self._book.quota_of(preemptor)
        return unresolvable(f"No victims found in quota {quota.name if quota is not None else ''}")
