"""Default strategies of manager and koordlet, and neutral values for disabled parts (spec 01 §6.5, spec 02 §3.6)."""

from __future__ import annotations

import pytest

from koordlet.api.encoding.wire import decode, encode
from koordlet.api.sloconfig import (
    CPUBurstStrategy,
    ResctrlQOS,
    ResourceQOS,
    ResourceQOSStrategy,
    ResourceThresholdStrategy,
    SystemStrategy,
    defaults,
)

NEUTRAL_CPU = '{"enable":false,"groupIdentity":0,"schedIdle":0,"coreExpeller":false}'
NEUTRAL_RESCTRL = '{"enable":false,"catRangeStartPercent":0,"catRangeEndPercent":100,"mbaPercent":100}'


@pytest.mark.parametrize(
    ("strategy", "wire"),
    [
        (
            defaults.THRESHOLD,
            '{"enable":false,"cpuSuppressThresholdPercent":65,"cpuSuppressPolicy":"cpuset",'
            '"memoryEvictThresholdPercent":70,"cpuEvictPolicy":"evictByRealLimit"}',
        ),
        (
            defaults.CPU_BURST,
            '{"policy":"none","cpuBurstPercent":1000,"cfsQuotaBurstPercent":300,'
            '"cfsQuotaBurstPeriodSeconds":-1,"sharePoolThresholdPercent":50}',
        ),
        (defaults.SYSTEM, '{"totalNetworkBandwidth":"0"}'),
        (defaults.MANAGER_QOS, "{}"),
        (defaults.NEUTRAL_CPU, NEUTRAL_CPU),
        (defaults.NEUTRAL_RESCTRL, NEUTRAL_RESCTRL),
    ],
    ids=["threshold", "burst", "system", "qos", "neutral cpu", "neutral resctrl"],
)
def test_defaults_on_the_wire(strategy: object, wire: str) -> None:
    assert encode(strategy).decode() == wire


@pytest.mark.parametrize(
    ("name", "cpu", "cache", "memory"),
    [
        ("lsr_class", (2, 0, True), (0, 100, 100), (95, 20, -25)),
        ("ls_class", (2, 0, True), (0, 100, 100), (95, 20, -25)),
        ("be_class", (-1, 0, False), (0, 30, 100), (95, 20, 50)),
        ("system_class", (0, 0, False), (0, 100, 100), (0, 50, 0)),
    ],
)
def test_koordlet_defaults_per_class(
    name: str, cpu: tuple[int, int, bool], cache: tuple[int, int, int], memory: tuple[int, int, int]
) -> None:
    qos: ResourceQOS = getattr(defaults.KOORDLET_QOS, name)
    assert qos.cpu_qos and qos.resctrl_qos and qos.memory_qos and qos.blkio_qos and qos.network_qos
    assert (qos.cpu_qos.group_identity, qos.cpu_qos.sched_idle, qos.cpu_qos.core_expeller) == cpu
    resctrl = qos.resctrl_qos
    assert (resctrl.cat_range_start_percent, resctrl.cat_range_end_percent, resctrl.mba_percent) == cache
    m = qos.memory_qos
    assert (m.wmark_ratio, m.wmark_scale_permill, m.wmark_min_adj) == memory
    zeros = (m.min_limit_percent, m.low_limit_percent, m.throttling_percent, m.priority_enable, m.priority)
    assert {*zeros, m.oom_kill_group} == {0}
    n = qos.network_qos
    assert [n.ingress_request, n.ingress_limit, n.egress_request, n.egress_limit] == [0, 0, 0, 0]
    blocks = (qos.cpu_qos, resctrl, m, qos.blkio_qos, n)
    assert [block.enable for block in blocks] == [False] * 5 and qos.blkio_qos.blocks == []


def test_root_and_policies() -> None:
    assert encode(defaults.KOORDLET_QOS.cgroup_root) == b'{"blkioQOS":{"enable":false}}'
    assert encode(defaults.KOORDLET_QOS.policies) == b'{"cpuPolicy":"groupIdentity","netQOSPolicy":"tc"}'


def test_an_incomplete_object_is_merged_over_the_defaults() -> None:
    """Spec 02 §3.6, the checked example."""
    threshold = defaults.effective_threshold(ResourceThresholdStrategy(enable=True, cpu_suppress_threshold_percent=80))
    assert encode(threshold).decode() == (
        '{"enable":true,"cpuSuppressThresholdPercent":80,"cpuSuppressPolicy":"cpuset",'
        '"memoryEvictThresholdPercent":70,"cpuEvictPolicy":"evictByRealLimit"}'
    )
    strategy = ResourceQOSStrategy(
        be_class=ResourceQOS(resctrl_qos=ResctrlQOS(enable=True, cat_range_start_percent=0, cat_range_end_percent=20))
    )
    qos = defaults.effective_qos(strategy)
    assert qos.be_class and qos.ls_class and qos.lsr_class
    assert qos.be_class.resctrl_qos == ResctrlQOS(
        enable=True, cat_range_start_percent=0, cat_range_end_percent=20, mba_percent=100
    )
    for off in (qos.ls_class, qos.lsr_class):
        assert encode(off.cpu_qos).decode() == NEUTRAL_CPU
        assert encode(off.resctrl_qos).decode() == NEUTRAL_RESCTRL
        assert off.memory_qos == defaults.NEUTRAL_MEMORY


def test_disabled_blocks_get_neutral_values() -> None:
    """Spec 01 §6.7, the QoS example."""
    strategy: ResourceQOSStrategy = decode(
        '{"beClass":{"cpuQOS":{"enable":true},"memoryQOS":{"wmarkRatio":90,"pageCacheEnable":true}}}',
        ResourceQOSStrategy,
    )
    qos = defaults.effective_qos(strategy)
    assert qos.be_class and qos.ls_class
    cpu = encode(qos.be_class.cpu_qos).decode()
    assert cpu == '{"enable":true,"groupIdentity":-1,"schedIdle":0,"coreExpeller":false}'
    assert qos.be_class.memory_qos == defaults.NEUTRAL_MEMORY
    assert encode(qos.ls_class.cpu_qos).decode() == NEUTRAL_CPU


def test_system_class_is_not_neutralised() -> None:
    strategy: ResourceQOSStrategy = decode('{"systemClass":{"memoryQOS":{"wmarkRatio":90}}}', ResourceQOSStrategy)
    qos = defaults.effective_qos(strategy)
    assert qos.system_class and qos.system_class.memory_qos and qos.system_class.memory_qos.wmark_ratio == 90


def test_no_strategy_means_the_defaults() -> None:
    assert defaults.effective_threshold(None) == defaults.THRESHOLD
    assert defaults.effective_cpu_burst(CPUBurstStrategy()) == defaults.CPU_BURST
    assert defaults.effective_system(SystemStrategy()) == defaults.SYSTEM
    assert defaults.effective_qos(None) == defaults.effective_qos(ResourceQOSStrategy())
