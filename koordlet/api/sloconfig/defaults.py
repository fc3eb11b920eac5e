"""Default strategies of the manager and of koordlet (spec 01 §6.5.1, §6.5.3; spec 02 §3.6).

The manager writes merged strategies into NodeSLO. koordlet merges NodeSLO over the same defaults again and adds the QoS
defaults per class, so that an incomplete or manually created NodeSLO works too. Disabled parts of a class are replaced
by neutral values, because "disabled" means the values that Kubernetes would set.
"""

from __future__ import annotations

from typing import Final

import msgspec

from koordlet.api.encoding.quantity import ZERO
from koordlet.api.encoding.wire import overlay
from koordlet.api.sloconfig.node import BURST_NONE, CPUBurstStrategy, SystemStrategy
from koordlet.api.sloconfig.resourceqos import (
    CPU_POLICY_GROUP_IDENTITY,
    CPUQOS,
    NET_POLICY_TC,
    BlkIOQOS,
    MemoryQOS,
    NetworkQOS,
    ResctrlQOS,
    ResourceQOS,
    ResourceQOSPolicies,
    ResourceQOSStrategy,
)
from koordlet.api.sloconfig.threshold import CPU_SET_POLICY, EVICT_BY_REAL_LIMIT, ResourceThresholdStrategy

THRESHOLD: Final = ResourceThresholdStrategy(
    enable=False,
    cpu_suppress_threshold_percent=65,
    cpu_suppress_policy=CPU_SET_POLICY,
    memory_evict_threshold_percent=70,
    cpu_evict_policy=EVICT_BY_REAL_LIMIT,
)
CPU_BURST: Final = CPUBurstStrategy(
    policy=BURST_NONE,
    cpu_burst_percent=1000,
    cfs_quota_burst_percent=300,
    cfs_quota_burst_period_seconds=-1,
    share_pool_threshold_percent=50,
)
SYSTEM: Final = SystemStrategy(total_network_bandwidth=ZERO)
MANAGER_QOS: Final = ResourceQOSStrategy()
"""The manager adds nothing to the configured QoS."""

NEUTRAL_CPU: Final = CPUQOS(enable=False, group_identity=0, sched_idle=0, core_expeller=False)
NEUTRAL_RESCTRL: Final = ResctrlQOS(enable=False, cat_range_start_percent=0, cat_range_end_percent=100, mba_percent=100)


def _memory(wmark_ratio: int, wmark_scale_permill: int, wmark_min_adj: int) -> MemoryQOS:
    return MemoryQOS(
        enable=False,
        min_limit_percent=0,
        low_limit_percent=0,
        throttling_percent=0,
        wmark_ratio=wmark_ratio,
        wmark_scale_permill=wmark_scale_permill,
        wmark_min_adj=wmark_min_adj,
        priority_enable=0,
        priority=0,
        oom_kill_group=0,
    )


NEUTRAL_MEMORY: Final = _memory(0, 50, 0)
_BLKIO: Final = BlkIOQOS(enable=False)
_NETWORK: Final = NetworkQOS(enable=False, ingress_request=0, ingress_limit=0, egress_request=0, egress_limit=0)

_LATENCY_SENSITIVE: Final = ResourceQOS(
    cpu_qos=CPUQOS(enable=False, group_identity=2, sched_idle=0, core_expeller=True),
    memory_qos=_memory(95, 20, -25),
    blkio_qos=_BLKIO,
    resctrl_qos=NEUTRAL_RESCTRL,
    network_qos=_NETWORK,
)
KOORDLET_QOS: Final = ResourceQOSStrategy(
    policies=ResourceQOSPolicies(cpu_policy=CPU_POLICY_GROUP_IDENTITY, net_qos_policy=NET_POLICY_TC),
    lsr_class=_LATENCY_SENSITIVE,
    ls_class=_LATENCY_SENSITIVE,
    be_class=ResourceQOS(
        cpu_qos=CPUQOS(enable=False, group_identity=-1, sched_idle=0, core_expeller=False),
        memory_qos=_memory(95, 20, 50),
        blkio_qos=_BLKIO,
        resctrl_qos=msgspec.structs.replace(NEUTRAL_RESCTRL, cat_range_end_percent=30),
        network_qos=_NETWORK,
    ),
    system_class=ResourceQOS(
        cpu_qos=NEUTRAL_CPU,
        memory_qos=NEUTRAL_MEMORY,
        blkio_qos=_BLKIO,
        resctrl_qos=NEUTRAL_RESCTRL,
        network_qos=_NETWORK,
    ),
    cgroup_root=ResourceQOS(blkio_qos=_BLKIO),
)


def effective_threshold(strategy: ResourceThresholdStrategy | None) -> ResourceThresholdStrategy:
    """`resourceUsedThresholdWithBE` with koordlet's defaults."""
    return overlay(THRESHOLD, strategy)


def effective_cpu_burst(strategy: CPUBurstStrategy | None) -> CPUBurstStrategy:
    """`cpuBurstStrategy` with koordlet's defaults."""
    return overlay(CPU_BURST, strategy)


def effective_system(strategy: SystemStrategy | None) -> SystemStrategy:
    """`systemStrategy` with koordlet's defaults."""
    return overlay(SYSTEM, strategy)


def effective_qos(strategy: ResourceQOSStrategy | None) -> ResourceQOSStrategy:
    """`resourceQOSStrategy` with koordlet's defaults, and neutral values for disabled parts of LSR, LS and BE."""
    merged = overlay(KOORDLET_QOS, strategy)
    return msgspec.structs.replace(
        merged,
        lsr_class=_neutralised(merged.lsr_class),
        ls_class=_neutralised(merged.ls_class),
        be_class=_neutralised(merged.be_class),
    )


def _neutralised(qos: ResourceQOS | None) -> ResourceQOS | None:
    if qos is None:
        return None
    return msgspec.structs.replace(
        qos,
        cpu_qos=qos.cpu_qos if qos.cpu_qos and qos.cpu_qos.enable else NEUTRAL_CPU,
        memory_qos=qos.memory_qos if qos.memory_qos and qos.memory_qos.enable else NEUTRAL_MEMORY,
        resctrl_qos=qos.resctrl_qos if qos.resctrl_qos and qos.resctrl_qos.enable else NEUTRAL_RESCTRL,
    )
