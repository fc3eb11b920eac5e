"""`resource-threshold-config`: how much of a node best-effort pods may use, and when pods are evicted.

Part of NodeSLO as `resourceUsedThresholdWithBE` (spec 01 §6.5.2). Every number is nullable: absent means the reader's
default, or that the feature is inactive.
"""

from typing import Annotated, Final

import msgspec

from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import Int32, doc

CPU_SET_POLICY: Final = "cpuset"
CFS_QUOTA_POLICY: Final = "cfsQuota"
EVICT_BY_REAL_LIMIT: Final = "evictByRealLimit"
EVICT_BY_ALLOCATABLE: Final = "evictByAllocatable"


class ResourceThresholdStrategy(Frozen):
    """Suppression and eviction thresholds of one node; percentages are of the node's capacity."""

    enable: Annotated[bool | None, doc("Master switch of cpu suppression and of all evictions, default false.")] = None
    cpu_suppress_threshold_percent: Annotated[
        int | None, doc("Node cpu usage that best-effort pods are suppressed to, default 65.", minimum=0, maximum=100)
    ] = None
    cpu_suppress_min_percent: Annotated[
        int | None, doc("Minimum share of the node's cpu for best-effort pods.", minimum=0, maximum=100)
    ] = None
    cpu_suppress_policy: Annotated[str, doc("How best-effort cpu is suppressed: cpuset (default) or cfsQuota.")] = ""
    memory_evict_threshold_percent: Annotated[
        int | None, doc("Memory usage at which eviction starts, default 70.", minimum=0, maximum=100)
    ] = None
    memory_evict_lower_percent: Annotated[
        int | None,
        doc("Memory usage at which eviction stops, default two below the threshold.", minimum=0, maximum=100),
    ] = None
    memory_allocatable_evict_threshold_percent: Annotated[
        int | None, doc("Requested share of allocatable memory at which eviction starts.", minimum=0)
    ] = None
    memory_allocatable_evict_lower_percent: Annotated[
        int | None, doc("Requested share of allocatable memory at which eviction stops.", minimum=0)
    ] = None
    cpu_evict_be_satisfaction_upper_percent: Annotated[
        int | None, doc("Best-effort cpu limit over request, in percent, at which eviction stops.")
    ] = msgspec.field(default=None, name="cpuEvictBESatisfactionUpperPercent")
    cpu_evict_be_satisfaction_lower_percent: Annotated[
        int | None, doc("Best-effort cpu limit over request, in percent, below which eviction starts.")
    ] = msgspec.field(default=None, name="cpuEvictBESatisfactionLowerPercent")
    cpu_evict_be_usage_threshold_percent: Annotated[
        int | None, doc("Best-effort cpu usage over limit, in percent, required for eviction, default 90.")
    ] = msgspec.field(default=None, name="cpuEvictBEUsageThresholdPercent")
    cpu_evict_time_window_seconds: Annotated[
        int | None, doc("Seconds over which cpu usage is averaged before an eviction.")
    ] = None
    cpu_evict_threshold_percent: Annotated[
        int | None, doc("Node cpu usage at which eviction starts.", minimum=0, maximum=100)
    ] = None
    cpu_evict_lower_percent: Annotated[
        int | None,
        doc("Node cpu usage at which eviction stops, default two below the threshold.", minimum=0, maximum=100),
    ] = None
    cpu_allocatable_evict_threshold_percent: Annotated[
        int | None, doc("Requested share of allocatable cpu at which eviction starts.", minimum=0)
    ] = None
    cpu_allocatable_evict_lower_percent: Annotated[
        int | None, doc("Requested share of allocatable cpu at which eviction stops.", minimum=0)
    ] = None
    cpu_evict_policy: Annotated[
        str, doc("What best-effort cpu usage is compared with: evictByRealLimit (default) or evictByAllocatable.")
    ] = ""
    evict_enabled_priority_threshold: Annotated[
        Int32 | None, doc("Highest pod priority that usage-based eviction may evict; absent disables it.")
    ] = None
    allocatable_evict_priority_threshold: Annotated[
        Int32 | None, doc("Highest pod priority that request-based eviction may evict; absent disables it.")
    ] = None
