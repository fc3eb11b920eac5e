"""Precedence of strategies that set the same kernel setting: the first owner of a rule has precedence."""

from __future__ import annotations

from koordlet.qosmanager.throttling.iolever import IO_SETTINGS
from koordlet.resourceexecutor.merge import OwnerRule

RULES = (
    OwnerRule(
        ("sched_group_identity_enabled",), ("groupidentity", "systemconfig"), "configured identities must be enabled"
    ),
    OwnerRule(
        ("cpuset.cpus",),
        ("cpusuppress", "cpusetallocator"),
        "best-effort pods must not use CPUs that services need, and no cgroup below their directory may have CPUs that "
        "the directory lacks",
    ),
    OwnerRule(
        ("cpu.cfs_quota_us",),
        ("cpusuppress", "interferenceactions", "cpusetallocator", "cpuburst", "cpunormalization", "batchresource"),
        "a bound on best effort comes first; pinned CPUs need no quota; a burst starts from the normalized quota",
    ),
    OwnerRule(
        ("memory.limit_in_bytes", "memory.high", *IO_SETTINGS),
        ("interferenceactions", "memoryqos", "batchresource", "blkio"),
        "a culprit has less than it may have, and never more",
    ),
)
