"""CPU burst: the worked examples of spec 03 §3.4, and bounds for any load."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.sloconfig.node import CPUBurstConfig, CPUBurstStrategy
from koordlet.qosmanager.engine.view import ContainerView, NodeView, PodView, SeriesAverage
from koordlet.qosmanager.strategies.cpuburst import (
    CPUBurst,
    Limiter,
    SharedCpuLoad,
    Tokens,
    next_quota,
    node_state,
    pod_config,
)
from koordlet.resourceexecutor import Setting
from koordlet.system.cpu.cpuset import CPUSet
from tests.koordlet.qosmanager.conftest import flat, make_pod, make_view
from tests.present import present

AUTO = CPUBurstConfig(policy="auto", cpu_burst_percent=1000, cfs_quota_burst_percent=300)
POD_DIR = "kubepods/burstable/poduid-web"
IDLE = {"node_cpu_usage": SeriesAverage(1.0, 1.0, 5)}


def web(
    limits: tuple[str, ...] = ("2",), *, throttled: float | None = None, cpu: Any = None, qos: str = "LS", **fields: Any
) -> PodView:
    specs = [
        {"name": f"c{number}", **({"resources": {"limits": {"cpu": limit}}} if limit else {})}
        for number, limit in enumerate(limits)
    ]
    pod = make_pod("web", qos=qos, containers=len(limits), spec={"containers": specs}, **fields)
    containers = tuple(ContainerView(meta, cpu, throttled) for meta in pod.meta.containers)
    return PodView.of(pod.meta, 1_000, None, containers)


def burst_view(
    pod: PodView,
    *,
    series: dict[str, SeriesAverage] = IDLE,
    held: tuple[Any, ...] | dict[Setting, int] = (),
    burst: dict[str, str] | None = None,
    **fields: Any,
) -> NodeView:
    strategy = {"policy": "auto", **(burst or {})}
    return make_view(
        pods=(pod,), slo={"cpuBurstStrategy": strategy}, held=dict(held),
        average=lambda kind, labels, seconds: series.get(kind), **fields,
    )  # fmt: skip


def decided(view: NodeView, **options: Any) -> dict[tuple[str, str], int]:
    strategy = CPUBurst(interval=1.0, random=Random(1), **options)
    return {
        (update.setting.resource, update.setting.cgroup_dir): update.value  # type: ignore[misc]
        for update in present(strategy.decide(view)).updates
    }


def test_a_throttled_containers_quota_grows_to_its_ceiling() -> None:
    quota, quotas = 200_000, []
    for _ in range(7):
        quota = next_quota(quota, 200_000, AUTO, SharedCpuLoad.IDLE, 0.1, allowed=True)
        quotas.append(quota)
    assert quotas == [240_000, 288_000, 345_600, 414_720, 497_664, 597_196, 600_000]


@pytest.mark.parametrize(
    ("state", "throttled", "allowed", "expected"),
    [
        (SharedCpuLoad.IDLE, 0.1, True, 480_000),
        (SharedCpuLoad.IDLE, 0.0, True, 400_000),
        (SharedCpuLoad.IDLE, None, True, 400_000),
        (SharedCpuLoad.IDLE, 0.1, False, 320_000),
        (SharedCpuLoad.COOLING, 0.1, True, 400_000),
        (SharedCpuLoad.UNKNOWN, 0.1, True, 400_000),
        (SharedCpuLoad.COOLING, 0.1, False, 320_000),
        (SharedCpuLoad.OVERLOAD, 0.1, True, 320_000),
        (SharedCpuLoad.OVERLOAD, 0.0, True, 320_000),
    ],
)
def test_next_quota_from_400000(state: SharedCpuLoad, throttled: float | None, allowed: bool, expected: int) -> None:
    assert next_quota(400_000, 200_000, AUTO, state, throttled, allowed) == expected


def test_a_shrinking_quota_ends_at_the_limit_and_other_policies_reset_it() -> None:
    assert next_quota(202_000, 200_000, AUTO, SharedCpuLoad.OVERLOAD, 0.0, True) == 200_000
    only = CPUBurstConfig(policy="cpuBurstOnly", cfs_quota_burst_percent=300)
    assert next_quota(400_000, 200_000, only, SharedCpuLoad.IDLE, 0.1, True) == 200_000


@given(
    st.integers(1_000, 10**7), st.integers(1_000, 10**6), st.integers(0, 1000), st.sampled_from(list(SharedCpuLoad)),
    st.one_of(st.none(), st.floats(0, 1)), st.booleans(),
)  # fmt: skip
def test_a_quota_is_never_below_the_limit_nor_above_the_ceiling(
    current: int, base: int, percent: int, state: SharedCpuLoad, throttled: float | None, ok: bool
) -> None:
    config = CPUBurstConfig(policy="auto", cfs_quota_burst_percent=percent)
    quota = next_quota(current, base, config, state, throttled, ok)
    assert base <= quota <= max(base, base * percent // 100)


@pytest.mark.parametrize(
    ("capacity", "amount", "percent", "expected"),
    [(5000, 5000, 150, 4500), (5000, 50, 200, -950), (500, 50, 200, -500), (5000, 500, 40, 1100),
     (5000, 4500, 40, 5000), (5000, 700, 60, 700), (5000, 700, 99, 700)],
)  # fmt: skip
def test_tokens_after_ten_seconds_of_use(capacity: int, amount: int, percent: int, expected: int) -> None:
    tokens = Tokens(capacity, amount, 0.0)
    assert tokens.spend(10.0, percent) is (expected > 0)
    assert tokens.amount == expected


def test_fractions_of_a_second_are_not_lost() -> None:
    tokens = Tokens(5000, 1000, 0.0)
    for tenth in range(1, 101):
        tokens.spend(tenth / 10, 150)
    assert tokens.amount == 500


@pytest.mark.parametrize(
    ("period", "percent", "allowed"), [(-1, 300, True), (None, 300, True), (100, 99, False), (0, 300, False)]
)
def test_the_period_and_percentage_decide_which_container_is_limited(
    period: int | None, percent: int, allowed: bool
) -> None:
    config = CPUBurstConfig(cfs_quota_burst_period_seconds=period, cfs_quota_burst_percent=percent)
    assert Limiter(Random(1)).allows("c", config, 0.0, 100) is allowed


def test_tokens_of_a_removed_container_are_dropped() -> None:
    limiter = Limiter(Random(1))
    config = CPUBurstConfig(cfs_quota_burst_period_seconds=100, cfs_quota_burst_percent=150)
    limiter.allows("c", config, 0.0, 100)
    limiter.forget(200.0)
    assert limiter._tokens
    limiter.forget(201.0)
    assert not limiter._tokens and not limiter._kept_until


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (3.5, SharedCpuLoad.IDLE),
        (3.6, SharedCpuLoad.COOLING),
        (4.0, SharedCpuLoad.OVERLOAD),
        (None, SharedCpuLoad.UNKNOWN),
    ],
)
def test_shared_cpu_load_of_eight_cores_at_half(node: float | None, expected: SharedCpuLoad) -> None:
    series = {} if node is None else {"node_cpu_usage": SeriesAverage(node, node, 5)}
    assert node_state(burst_view(web(), series=series), 50, 5.0) is expected


def test_exclusive_and_best_effort_pods_are_not_in_the_share_pool() -> None:
    lsr = make_pod("lsr", qos="LSR", kube="Guaranteed", spec={
        "containers": [{"name": "c0", "resources": {"requests": {"cpu": "4"}}}],
    })  # fmt: skip
    used = {"node_cpu_usage": SeriesAverage(6.0, 6.0, 5), "pod_cpu_usage": SeriesAverage(3.0, 3.0, 5)}
    view = make_view(pods=(lsr,), average=lambda kind, labels, seconds: used.get(kind))
    assert node_state(view, 50, 5.0) is SharedCpuLoad.OVERLOAD  # (6 - 3) of (8 - 4)
    assert node_state(make_view(pods=(lsr,), topology=flat(4), average=view.average), 50, 5.0) is SharedCpuLoad.OVERLOAD


def test_the_pod_grows_with_its_container() -> None:
    view = burst_view(web(("2", "2"), throttled=0.5), held={Setting("cpu.cfs_quota_us", f"{POD_DIR}/web-c0"): 200_000})
    settings = decided(view)
    assert settings["cpu.cfs_quota_us", f"{POD_DIR}/web-c0"] == 240_000
    assert settings["cpu.cfs_quota_us", POD_DIR] == 480_000
    assert settings["cpu.cfs_burst_us", f"{POD_DIR}/web-c0"] == 200_000, "mainline takes no more than the quota"
    assert settings["cpu.cfs_burst_us", POD_DIR] == 400_000


def test_a_kernel_that_accepts_more_gets_the_whole_burst() -> None:
    settings = decided(burst_view(web(("2",))), beyond_quota=True)
    assert settings == {("cpu.cfs_burst_us", f"{POD_DIR}/web-c0"): 2_000_000, ("cpu.cfs_burst_us", POD_DIR): 2_000_000}


def test_a_pod_with_an_unlimited_container_has_no_quota_to_grow() -> None:
    settings = decided(burst_view(web(("2", ""), throttled=0.5)))
    assert ("cpu.cfs_quota_us", f"{POD_DIR}/web-c0") in settings
    assert ("cpu.cfs_quota_us", POD_DIR) not in settings and ("cpu.cfs_burst_us", POD_DIR) not in settings


@pytest.mark.parametrize(
    "pod",
    [
        web(qos="LSR", throttled=0.5),
        web(qos="LSE", throttled=0.5),
        web(qos="BE", throttled=0.5),
        web(throttled=0.5, phase="Succeeded"),
        web(throttled=0.5, annotations={"koordinator.sh/cpuBurst": '{"policy":"none"}'}),
    ],
    ids=["LSR", "LSE", "BE", "finished", "annotation"],
)
def test_pods_without_burst(pod: PodView) -> None:
    assert decided(burst_view(pod)) == {}


def test_policy_none_declares_nothing_so_that_everything_is_restored() -> None:
    assert decided(burst_view(web(throttled=0.5), burst={"policy": "none"})) == {}


def test_a_pinned_pod_keeps_its_quota() -> None:
    pinned = replace(web(throttled=0.5), cpuset=CPUSet({0, 1}))
    settings = decided(burst_view(pinned))
    assert not any(resource == "cpu.cfs_quota_us" for resource, _ in settings)


def test_normalization_sets_the_base() -> None:
    settings = decided(burst_view(web(throttled=0.5), normalization=1.25))
    assert settings["cpu.cfs_quota_us", f"{POD_DIR}/web-c0"] == 192_000  # 160000 * 1.2
    assert settings["cpu.cfs_burst_us", f"{POD_DIR}/web-c0"] == 160_000


def test_a_class_that_is_not_normalized_bursts_from_its_limit() -> None:
    settings = decided(burst_view(web(qos="SYSTEM", throttled=0.5), normalization=1.25))
    assert settings["cpu.cfs_quota_us", f"{POD_DIR}/web-c0"] == 240_000  # 200000 * 1.2


def test_the_annotation_overrides_the_nodes_configuration() -> None:
    strategy = CPUBurstStrategy(policy="auto", cpu_burst_percent=1000)
    own = web(annotations={"koordinator.sh/cpuBurst": '{"cpuBurstPercent":50}'})
    assert pod_config(own, strategy) == CPUBurstConfig(policy="auto", cpu_burst_percent=50)
    odd = web(annotations={"koordinator.sh/cpuBurst": "{"})
    assert pod_config(odd, strategy).cpu_burst_percent == 1000
