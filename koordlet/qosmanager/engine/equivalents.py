"""How fields of NodeSLO are applied on this kernel: by a vendor's file, by a substitute on a stock kernel, or not at
all. Pure.

For `/enforcement` and `koordctl status`; the strategies probe the same files. docs/enforcement.md has the table.
"""

from __future__ import annotations

from koordlet.api.pages.enforcement import Equivalent
from koordlet.qosmanager.engine.strategy import Supports

VENDOR, STOCK, NONE = "vendor", "stock", "none"
Way = tuple[str, str, str]
"""(probed file, kernel, meaning): the first way whose file exists applies; an empty file name always applies."""

WAYS: dict[str, tuple[Way, ...]] = {
    "cpuQOS.groupIdentity": (
        ("cpu.bvt_warp_ns", VENDOR, "cpu.bvt_warp_ns"),
        ("cpu.idle", STOCK, "cpu.idle for best effort; the others keep their weights"),
        ("", STOCK, "the least weight for best effort"),
    ),
    "cpuBurstPercent": (
        ("cpu.bvt_warp_ns", VENDOR, "cpu.cfs_burst_us of any size"),
        ("cpu.cfs_burst_us", STOCK, "CFS burst up to the quota"),
        ("", NONE, "this kernel has no CFS burst"),
    ),
    "memoryQOS.wmarkRatio": (
        ("memory.wmark_ratio", VENDOR, "memory.wmark_ratio, memory.wmark_scale_factor, memory.wmark_min_adj"),
        ("memory.reclaim", STOCK, "memory.reclaim in small steps while the container's own stalls allow it"),
        ("memory.high", STOCK, "memory.high at the mark, for best effort only"),
        ("", NONE, "cgroup v1 of stock kernels has neither watermarks nor memory.high"),
    ),
    "memoryQOS.priority": (
        ("memory.priority", VENDOR, "memory.use_priority_oom, memory.priority"),
        ("memory.low", STOCK, "memory.low: that many twelfths of the request"),
        ("", NONE, "cgroup v1 of stock kernels has no protection"),
    ),
    "memoryQOS.oomKillGroup": (
        ("memory.oom.group", STOCK, "memory.oom.group"),
        ("", NONE, "this kernel kills tasks, not groups"),
    ),
    "memoryQOS.minLimitPercent": (
        ("memory.min", STOCK, "memory.min, memory.low, memory.high"),
        ("", NONE, "cgroup v1 of stock kernels has no protection; memory.soft_limit_in_bytes gives none and is unused"),
    ),
    "memoryQOS.pageCacheLimitSize": (
        ("memory.pagecache_limit.size", VENDOR, "memory.pagecache_limit.*"),
        ("", NONE, "stock kernels have no limit of the page cache alone"),
    ),
    "interferenceStrategy.actions.memory": (
        ("memory.high", STOCK, "memory.high of the culprit pod"),
        ("", STOCK, "memory.limit_in_bytes of the culprit pod: bounds growth"),
    ),
}


def equivalents(supports: Supports, directory: str) -> list[Equivalent]:
    """`directory` is the cgroup of all pods, where this kernel's files are probed."""
    pages = []
    for field, ways in WAYS.items():
        _, kernel, means = next(way for way in ways if not way[0] or supports(way[0], directory))
        pages.append(Equivalent(field=field, kernel=kernel, means=means))
    return pages
