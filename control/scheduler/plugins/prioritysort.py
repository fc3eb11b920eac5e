"""PrioritySort: higher `spec.priority` (default 0) first; among equal pods the longest waiting (spec 05 §3.3)."""

from __future__ import annotations

from control.scheduler.framework.plugin import Plugin
from control.scheduler.state.pods import PodInfo


class PrioritySort(Plugin):
    """See the module text."""

    name = "PrioritySort"

    def sort_key(self, pod: PodInfo, timestamp: float) -> tuple[int, float]:
        return (-pod.shape.priority, timestamp)
