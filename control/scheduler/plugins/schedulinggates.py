"""SchedulingGates: pods with `spec.schedulingGates` are not queued until all gates are removed (spec 05 §4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from control.boundedpods import is_too_long
from control.scheduler.framework.plugin import EventInterest, Plugin
from control.scheduler.framework.status import SUCCESS, PluginStatus, unresolvable
from control.scheduler.state.pods import PodInfo


class SchedulingGates(Plugin):
    """See the module text."""

    name = "SchedulingGates"

    def interests(self) -> Sequence[EventInterest]:
        return (EventInterest("UnscheduledPod", frozenset(("GatesEliminated",)), _itself),)

    def pre_enqueue(self, pod: PodInfo) -> PluginStatus:
        gates = pod.pod.spec.scheduling_gates
        if not gates or is_too_long(pod.pod):  # the cycle rejects a pod that is too long, so that its user is told why
            return SUCCESS
        return unresolvable(f"waiting for scheduling gates: [{' '.join(gate.name for gate in gates)}]")


def _itself(pod: PodInfo, old: Any, new: Any) -> bool:
    return isinstance(new, PodInfo) and new.uid == pod.uid
