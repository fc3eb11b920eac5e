"""What fields of NodeSLO mean on this kernel: a file of the vendor, a substitute on a stock one, or nothing. Pure.

For `/enforcement` and `koordctl status`; the strategies decide by the same probes. docs/enforcement.md has the table.
"""

from __future__ import annotations

from koordlet.api.pages.enforcement import Equivalent
from koordlet.qosmanager.engine.strategy import Supports

VENDOR, STOCK, NONE = "vendor", "stock", "none"
Way = tuple[str, str, str]
"""(probed file, kernel, what it means): the first whose file is there holds; an empty file always is."""

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
        ("", NONE, "cgroup v1 of stock kernels has no protection; memory.soft_limit_in_bytes is none and stays unused"),
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
    """`directory` is that of all pods, where files of this kernel are looked for."""
    found = []
    for field, ways in WAYS.items():
        _, kernel, means = next(way for way in ways if not way[0] or supports(way[0], directory))
        found.append(Equivalent(field=field, kernel=kernel, means=means))
    return found
