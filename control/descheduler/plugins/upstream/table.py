"""The plugins of Kubernetes' descheduler."""

from __future__ import annotations

from typing import Final

from control.descheduler.framework.plugin import DeschedulerPlugin
from control.descheduler.plugins.upstream.antiaffinity import RemovePodsViolatingInterPodAntiAffinity
from control.descheduler.plugins.upstream.duplicates import RemoveDuplicates
from control.descheduler.plugins.upstream.lifecycle import (
    PodLifeTime,
    RemoveFailedPods,
    RemovePodsHavingTooManyRestarts,
)
from control.descheduler.plugins.upstream.placement import (
    RemovePodsViolatingNodeAffinity,
    RemovePodsViolatingNodeTaints,
)
from control.descheduler.plugins.upstream.topologyspread import RemovePodsViolatingTopologySpreadConstraint
from control.descheduler.plugins.upstream.utilization import HighNodeUtilization, LowNodeUtilization

UPSTREAM: Final[tuple[type[DeschedulerPlugin], ...]] = (
    HighNodeUtilization,
    LowNodeUtilization,
    PodLifeTime,
    RemoveDuplicates,
    RemoveFailedPods,
    RemovePodsHavingTooManyRestarts,
    RemovePodsViolatingInterPodAntiAffinity,
    RemovePodsViolatingNodeAffinity,
    RemovePodsViolatingNodeTaints,
    RemovePodsViolatingTopologySpreadConstraint,
)
