"""A placeholder for a plugin that this build lacks: it rejects the pods that would need it.

Without it such pods would be bound as if they had no resource claims.
"""

from __future__ import annotations

from typing import ClassVar, Final

from control.scheduler.cycle.failures import FitError
from control.scheduler.framework.plugin import (
    CycleState,
    Plugin,
    PostFilterResult,
    PreFilterResult,
)
from control.scheduler.framework.status import unresolvable, unschedulable
from control.scheduler.plugins.results import SKIP_FILTER
from control.scheduler.state.pods import PodInfo

CLAIMS_UNSUPPORTED: Final = "pod has resource claims, which this scheduler does not allocate"
NO_CLAIMS: Final = "no new claims to deallocate"


class UnsupportedResourceClaims(Plugin):
    """Rejects pods with `spec.resourceClaims`."""

    name: ClassVar[str] = "DynamicResources"

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        return PreFilterResult(unresolvable(CLAIMS_UNSUPPORTED)) if pod.pod.spec.resource_claims else SKIP_FILTER

    def post_filter(self, state: CycleState, pod: PodInfo, failure: FitError) -> PostFilterResult:
        """The words of kube-scheduler's plugin for a pod without claims; they are part of every failure message."""
        return PostFilterResult(unschedulable(*(() if pod.pod.spec.resource_claims else (NO_CLAIMS,))))
