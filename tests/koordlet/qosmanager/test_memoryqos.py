"""Memory QoS: the worked examples and tables of spec 03 §3.5."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.sloconfig.resourceqos import MemoryQOS
from koordlet.qosmanager.engine.view import PodView
from koordlet.qosmanager.strategies.memoryqos import MemoryAmounts, MemoryQOSReconcile, high, page_cache, protection
from koordlet.system.cgroup.validators import INT64_MAX
from tests.koordlet.qosmanager.conftest import make_node, make_pod, make_view
from tests.present import present

GIB = 1 << 30
DIRS = {"Guaranteed": "kubepods", "Burstable": "kubepods/burstable", "BestEffort": "kubepods/besteffort"}
ALL_ON = {name: {"memoryQOS": {"enable": True}} for name in ("lsrClass", "lsClass", "beClass", "systemClass")}
STATIC = ("memory.wmark_ratio", "memory.wmark_scale_factor", "memory.wmark_min_adj")


def pod_of(
    qos: str = "LS", kube: str = "Burstable", request: str = "1Gi", limit: str = "2Gi", name: str = "p", **fields: Any
) -> PodView:
    key = "kubernetes.io/batch-memory" if qos == "BE" else "memory"
    resources = {"requests": {key: request} if request else {}, "limits": {key: limit} if limit else {}}
    return make_pod(name, qos=qos, kube=kube, spec={"containers": [{"name": "c0", "resources": resources}]}, **fields)


def decided(*pods: PodView, classes: dict[str, Any] | None = None) -> dict[str, dict[str, int]]:
    view = make_view(pods=pods, qos_dirs=DIRS, node=make_node(memory="4Gi"), slo={"resourceQOSStrategy": classes or {}})
    by_directory: dict[str, Any] = {}
    for update in present(MemoryQOSReconcile().decide(view)).updates:
        assert update.setting.cgroup_dir is not None
        by_directory.setdefault(update.setting.cgroup_dir, {})[update.setting.resource] = update.value
    return by_directory


@pytest.mark.parametrize(
    ("requested", "limit", "percent", "expected"),
    [
        (GIB, 2 * GIB, 80, 1_932_734_464),
        (GIB, -1, 50, 2_684_354_560),
        (0, 3 * GIB, 80, 2_576_977_920),
        (GIB, 2 * GIB, 0, INT64_MAX),
    ],
)
def test_memory_high_follows_the_worked_examples(requested: int, limit: int, percent: int, expected: int) -> None:
    assert high(MemoryAmounts(requested, limit), MemoryQOS(throttling_percent=percent), 4 * GIB, 0) == expected


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 100), st.integers(0, 100), st.integers(0, 100))
def test_high_is_never_below_min_and_low_never_below_min_unless_off(
    requested: int, more: int, percent: int, least: int, low: int
) -> None:
    config = MemoryQOS(throttling_percent=percent, min_limit_percent=least, low_limit_percent=low)
    amounts = MemoryAmounts(requested, requested + more)
    values = protection(amounts, config)
    top = high(amounts, config, 1 << 40, values["memory.min"])
    assert top == 0 or top >= present(present(present(values["memory.min"])))  # type: ignore[operator]
    assert values["memory.low"] == 0 or values["memory.low"] >= values["memory.min"]


@pytest.mark.parametrize(
    ("qos", "kube", "expected"),
    [
        ("LSE", "Guaranteed", (95, 20, -25)),
        ("LSR", "Guaranteed", (95, 20, -25)),
        ("LS", "Burstable", (95, 20, -25)),
        ("BE", "BestEffort", (95, 20, 50)),
        ("SYSTEM", "Burstable", (0, 50, 0)),
        ("", "Guaranteed", (95, 20, -25)),
        ("", "BestEffort", (95, 20, 50)),
    ],
)
def test_each_class_gets_its_defaults_when_enabled(qos: str, kube: str, expected: tuple[int, int, int]) -> None:
    pod = pod_of(qos, kube)
    settings = decided(pod, classes=ALL_ON)
    for directory in (pod.meta.cgroup_dir, pod.meta.containers[0].cgroup_dir):
        values = settings[directory]
        assert tuple(values[file] for file in STATIC) == expected
        rest = ("memory.min", "memory.low", "memory.use_priority_oom", "memory.priority", "memory.oom.group")
        assert {values[file] for file in rest} == {0}
    assert settings[pod.meta.containers[0].cgroup_dir]["memory.high"] == INT64_MAX
    assert "memory.high" not in settings[pod.meta.cgroup_dir]


@pytest.mark.parametrize("annotation", [None, '{"policy":"none"}', '{"policy":"default"}', "{", "{}"])
def test_disabled_pods_keep_the_kubelets_values(annotation: str | None) -> None:
    annotations = {} if annotation is None else {"koordinator.sh/memoryQOS": annotation}
    assert decided(pod_of(annotations=annotations)) == {}


def test_policy_none_overrides_an_enabled_class() -> None:
    pod = pod_of(annotations={"koordinator.sh/memoryQOS": '{"policy":"none"}'})
    assert pod.meta.cgroup_dir not in decided(pod, classes=ALL_ON)


def test_policy_auto_has_the_defaults_of_the_class_overridden_by_fields() -> None:
    pod = pod_of(annotations={"koordinator.sh/memoryQOS": '{"policy":"auto","minLimitPercent":50,"wmarkRatio":80}'})
    settings = decided(pod)[pod.meta.cgroup_dir]
    assert (settings["memory.min"], settings["memory.wmark_ratio"], settings["memory.wmark_min_adj"]) == (
        GIB // 2,
        80,
        -25,
    )


def test_protection_adds_up_to_the_directory_of_all_pods() -> None:
    classes = {name: {"memoryQOS": {"enable": True, "minLimitPercent": 50, "lowLimitPercent": 25}}
               for name in ("lsrClass", "lsClass", "beClass")}  # fmt: skip
    pods = (
        pod_of("LSR", "Guaranteed", "2Gi", "2Gi", "a"),
        pod_of("LS", "Burstable", "1Gi", "2Gi", "b"),
        pod_of("BE", "BestEffort", "1Gi", "1Gi", "c"),
        pod_of("LS", "Burstable", "8Gi", "8Gi", "gone", phase="Succeeded"),
    )
    settings = decided(*pods, classes=classes)
    assert {directory: settings[directory]["memory.min"] for directory in DIRS.values()} == {
        "kubepods": 2 * GIB,
        "kubepods/burstable": GIB // 2,
        "kubepods/besteffort": GIB // 2,
    }
    assert settings[pods[1].meta.cgroup_dir]["memory.low"] == GIB // 2, "raised to min"


def test_a_best_effort_pod_with_one_container_that_asks_for_nothing() -> None:
    containers = [
        {"name": "c0", "resources": {kind: {"kubernetes.io/batch-memory": "1Gi"} for kind in ("requests", "limits")}},
        {"name": "c1"},
    ]
    pod = make_pod("be", qos="BE", kube="BestEffort", containers=2, spec={"containers": containers})
    settings = decided(pod, classes={"beClass": {"memoryQOS": {"enable": True, "minLimitPercent": 100}}})
    first, second = (container.cgroup_dir for container in pod.meta.containers)
    assert [settings[path]["memory.min"] for path in (pod.meta.cgroup_dir, first, second)] == [GIB, GIB, 0]


@pytest.mark.parametrize(
    ("config", "limit", "expected"),
    [
        (MemoryQOS(), GIB, {}),
        (MemoryQOS(page_cache_limit_size=2 * GIB), GIB, {"size": GIB, "enable": 1, "sync": 0}),
        (MemoryQOS(page_cache_limit_size=GIB), -1, {"size": GIB, "enable": 1, "sync": 0}),
        (MemoryQOS(page_cache_limit_percent=50, page_cache_reclaim_sync=True), GIB,
         {"size": GIB // 2, "enable": 1, "sync": 1}),
        (MemoryQOS(page_cache_limit_percent=50), -1, {}),
        (MemoryQOS(page_cache_limit_size=0), GIB, {"size": 0, "enable": 0}),
        (MemoryQOS(page_cache_limit_size=GIB, page_cache_enable=False), GIB, {"size": GIB, "enable": 0, "sync": 0}),
    ],
)  # fmt: skip
def test_page_cache(config: MemoryQOS, limit: int, expected: dict[str, int]) -> None:
    assert page_cache(config, limit) == {f"memory.pagecache_limit.{name}": value for name, value in expected.items()}
