"""Which pods may be removed for which, and whether their removal suffices: one policy per kind of preemption.

DefaultPreemption, the preemption of gangs and preemption inside a quota differ only in their policies. A policy decides
about single pods and reads the table as it is, so it also holds in trials.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from control.scheduler.framework.status import SUCCESS, PluginStatus, unresolvable
from control.scheduler.state.pods import POD, PodInfo
from koordlet.api.annotations.scheduling import is_preemptible, quota_preemptible

if TYPE_CHECKING:
    from control.scheduler.framework.plugin import CycleState

BY_SCHEDULER: Final = "PreemptionByScheduler"
"""Reason of the condition DisruptionTarget of a victim."""


class VictimPolicy:
    """Pods of lower priority, as in kube-scheduler."""

    message: str = "preempting to accommodate a higher priority pod"
    """For the condition of the victims, after the profile's name."""

    def eligible(self, victim: PodInfo, preemptor: PodInfo) -> bool:
        """Whether `victim` may be removed for `preemptor`. Only pods can be deleted."""
        return victim.priority < preemptor.priority and victim.subject == POD

    def yields(self, nominated: PodInfo, preemptor: PodInfo) -> bool:
        """Whether a pod that waits for the node that `preemptor` is nominated to loses its own nomination."""
        return nominated.priority < preemptor.priority

    def rows(self, preemptor: PodInfo) -> Collection[int] | None:
        """The rows that may have eligible pods; None: any row."""
        return None

    def admits(self, state: CycleState, preemptor: PodInfo) -> PluginStatus:
        """Whether the pod may be scheduled at all, with the pods that the table counts now. Evaluated beside the
        filters, which evaluate nodes only."""
        return SUCCESS

    def none_on(self, node: str, preemptor: PodInfo) -> PluginStatus:
        """The status of a node without eligible pods."""
        return NO_VICTIMS

    def leaving(self, victim: PodInfo, preemptor: PodInfo) -> bool:
        """Whether a scheduler preempts the pod, and `preemptor` may be the reason."""
        condition = victim.pod.status.condition("DisruptionTarget")
        return (
            victim.terminating
            and condition is not None
            and condition.status == "True"
            and condition.reason == BY_SCHEDULER
            and self.eligible(victim, preemptor)
        )


class ReservationVictims(VictimPolicy):
    """Pods of lower priority that no label protects: the victims of preemption by the plugin Reservation."""

    def eligible(self, victim: PodInfo, preemptor: PodInfo) -> bool:
        return super().eligible(victim, preemptor) and is_preemptible(victim.shape.labels)


class JobVictims(VictimPolicy):
    """Pods of lower priority that no label protects: the victims of a gang (spec 05 §11)."""

    message = "preempting to accommodate higher priority pods"

    def eligible(self, victim: PodInfo, preemptor: PodInfo) -> bool:
        labels = victim.shape.labels
        return super().eligible(victim, preemptor) and is_preemptible(labels) and quota_preemptible(labels)


NO_VICTIMS: Final = unresolvable("No preemption victims found for incoming pod")
