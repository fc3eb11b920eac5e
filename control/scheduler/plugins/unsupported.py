"""Placeholders for plugins that this build lacks: they reject the pods that would need them.

Without them such pods would be bound as if they had no resource claims and shared CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import (
    CycleState,
    EventInterest,
    Plugin,
    PostFilterResult,
    PreFilterResult,
)
from control.scheduler.framework.status import unresolvable, unschedulable
from control.scheduler.plugins.results import SKIP_FILTER
from control.scheduler.state.pods import PodInfo
from koordlet.api.priority import PROD, priority_class
from koordlet.api.qos import LSE, LSR, raw_qos_class

CLAIMS_UNSUPPORTED: Final = "pod has resource claims, which this scheduler does not allocate"
CPU_SET_UNSUPPORTED: Final = "pod needs CPUs of its own (class LSE or LSR), which this scheduler does not allocate"
NO_CLAIMS: Final = "no new claims to deallocate"


class UnsupportedResourceClaims(Plugin):
    """Rejects pods with `spec.resourceClaims`."""

    name: ClassVar[str] = "DynamicResources"

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        return PreFilterResult(unresolvable(CLAIMS_UNSUPPORTED)) if pod.pod.spec.resource_claims else SKIP_FILTER

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        """The words of kube-scheduler's plugin for a pod without claims; they are part of every failure message."""
        return PostFilterResult(unschedulable(*(() if pod.pod.spec.resource_claims else (NO_CLAIMS,))))


class UnsupportedCPUSets(Plugin):
    """Rejects pods of class LSE or LSR and priority class koord-prod: they run on CPUs that the scheduler assigns."""

    name: ClassVar[str] = "NodeNUMAResource"

    def interests(self) -> Sequence[EventInterest]:
        return (EventInterest("UnscheduledPod", frozenset(("Label", "Update"))),)

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        bound = raw_qos_class(pod.pod) in (LSE, LSR) and priority_class(pod.pod) == PROD
        return PreFilterResult(unresolvable(CPU_SET_UNSUPPORTED)) if bound else SKIP_FILTER
