"""Evictions: the worked examples of spec 03 §3.1 and §3.3, the orders, and properties of any tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.core.node import Node
from koordlet.api.sloconfig.threshold import ResourceThresholdStrategy
from koordlet.qosmanager.engine.eviction import EvictionProgress, EvictionTask
from koordlet.qosmanager.engine.view import NodeView, PodView, SeriesAverage
from koordlet.qosmanager.rules import requested, used
from koordlet.qosmanager.strategies import cpuevict, memoryevict
from koordlet.qosmanager.strategies.cpuevict import CPUEvict, busy, shortage
from koordlet.qosmanager.strategies.memoryevict import MemoryEvict
from tests.koordlet.qosmanager.conftest import make_node, make_pod, make_view
from tests.present import present

GIB, MIB = 1 << 30, 1 << 20
ENABLED = {"koordinator.sh/eviction-enabled": "true"}


def batch(
    name: str,
    *,
    milli: int = 0,
    priority: int = 5500,
    memory: int | None = None,
    cpu: int | None = None,
    qos: str = "BE",
    **metadata: Any,
) -> PodView:
    requests = {"kubernetes.io/batch-cpu": str(milli), "kubernetes.io/batch-memory": "0"}
    containers = [{"name": "c0", "resources": {"requests": requests}}]
    return make_pod(
        name, qos=qos, kube="BestEffort", memory=memory, cpu=cpu,
        spec={"priority": priority, "containers": containers}, **metadata,
    )  # fmt: skip


def mid(name: str, *, milli: int, memory: int | None = None, **metadata: Any) -> PodView:
    containers = [{"name": "c0", "resources": {"requests": {"kubernetes.io/mid-cpu": str(milli)}}}]
    return make_pod(name, qos="LS", memory=memory, cpu=1, spec={"priority": 7500, "containers": containers}, **metadata)


def names(task: EvictionTask) -> list[str]:
    return [pod.meta.name for pod in task.victims]


def evicted(progress: EvictionProgress) -> list[str]:
    gone = []
    for pod, _ in progress.victims():
        gone.append(pod.meta.name)
        progress.succeeded(pod)
    return gone


def threshold(**fields: Any) -> ResourceThresholdStrategy:
    return ResourceThresholdStrategy(enable=True, **fields)


def averages(**series: Any) -> Callable[..., Any]:
    return lambda kind, labels, seconds: series.get("_".join((kind, *labels[1:])).replace("-", "_"))


def test_a_victim_counts_for_every_task_that_it_helps() -> None:
    """EvictionTask 1 needs 2 GiB of used memory, task 2 batch-cpu 1200 and mid-cpu 1500."""
    first, second = batch("one", milli=1000, memory=1536 * MIB), batch("two", milli=500, memory=768 * MIB)
    third = mid("third", milli=2000, memory=3 * GIB)
    memory = {pod.meta.uid: {"memory": pod.memory} for pod in (first, second, third)}
    requests = {first.meta.uid: {"b": 1000}, second.meta.uid: {"b": 500}, third.meta.uid: {"m": 2000}}
    progress = EvictionProgress([
        EvictionTask("BEMemoryEvict", "podUsed", {"memory": 2 * GIB}, (first, second), memory),  # type: ignore[arg-type]
        EvictionTask(
            "CPUAllocatableEvict", "podResourceRequest", {"b": 1200, "m": 1500}, (first, second, third), requests
        ),
    ])  # fmt: skip
    assert evicted(progress) == ["one", "two", "third"]
    assert progress.released == {
        "podUsed": {"memory": (1536 + 768 + 3072) * MIB},
        "podResourceRequest": {"b": 1500, "m": 2000},
    }


def test_a_pod_evicted_earlier_counts_and_is_not_evicted_again() -> None:
    first, second = batch("one", memory=2 * GIB), batch("two", memory=2 * GIB)
    memory = {pod.meta.uid: {"memory": pod.memory} for pod in (first, second)}
    progress = EvictionProgress(
        [EvictionTask("f", "podUsed", {"memory": 3 * GIB}, (first, second), memory)],  # type: ignore[arg-type]
        gone={first.meta.uid},
    )
    assert evicted(progress) == ["two"]


def test_a_failed_eviction_counts_for_nothing() -> None:
    pods = tuple(batch(name, memory=GIB) for name in ("one", "two", "three"))
    memory = {pod.meta.uid: {"memory": pod.memory} for pod in pods}
    progress = EvictionProgress([EvictionTask("f", "podUsed", {"memory": 2 * GIB}, pods, memory)])  # type: ignore[arg-type]
    tried = []
    for pod, _ in progress.victims():
        tried.append(pod.meta.name)
        if pod.meta.name != "one":
            progress.succeeded(pod)
    assert tried == ["one", "two", "three"]


def test_a_pod_that_does_not_help_is_not_evicted() -> None:
    useless, useful = mid("useless", milli=5000), batch("useful", milli=1000)
    requests = {useless.meta.uid: {"m": 5000}, useful.meta.uid: {"b": 1000}}
    progress = EvictionProgress([EvictionTask("f", "podResourceRequest", {"b": 500}, (useless, useful), requests)])
    assert evicted(progress) == ["useful"]


@given(st.lists(st.integers(0, 10), min_size=1, max_size=8), st.lists(st.integers(1, 30), min_size=1, max_size=3))
def test_no_pod_is_evicted_twice_or_without_need(amounts: list[int], needs: list[int]) -> None:
    pods = tuple(make_pod(f"p{number}") for number in range(len(amounts)))
    gives = {pod.meta.uid: {"cpu": amount} for pod, amount in zip(pods, amounts, strict=True)}
    gone = evicted(EvictionProgress([EvictionTask(str(need), "podUsed", {"cpu": need}, pods, gives) for need in needs]))
    assert len(gone) == len(set(gone))
    released = [gives[f"uid-{name}"]["cpu"] for name in gone]
    assert all(released)
    assert sum(released) >= min(max(needs), sum(amounts))
    assert sum(released[:-1]) < max(needs), "the last eviction was needed"


@pytest.mark.parametrize(
    ("usage", "limit", "threshold", "expected"),
    [(1, 0, 90, False), (0, 999, 90, True), (900, 1000, 90, True), (899, 1000, 90, False)],
)
def test_best_effort_is_busy_at_its_limit(usage: int, limit: int, threshold: int, expected: bool) -> None:
    assert busy(usage, limit, threshold) is expected


@pytest.mark.parametrize(
    ("requested", "limit", "expected"),
    [(50_000, 10_000, 10_000), (50_000, 14_000, 6_000), (50_000, 16_000, 0), (0, 10_000, 0), (50_000, 25_000, 0)],
)
def test_shortage_of_best_effort_cpu(requested: int, limit: int, expected: int) -> None:
    assert shortage(requested, limit, 30, 40) == pytest.approx(expected, abs=1)


def be_view(avg: int = 10_000, last: int = 14_000, usage: float = 1.0, count: int = 60) -> NodeView:
    def series(mean: float, now: float) -> SeriesAverage:
        return SeriesAverage(mean, now, count)

    return make_view(
        pods=(batch("low", milli=6_000, cpu=10, priority=5000), batch("big", milli=9_000, cpu=8_000)),
        average=averages(
            node_be_usage=series(avg * usage, last * usage),
            node_be_request=series(50_000, 50_000),
            node_be_real_limit=series(avg, last),
        ),
        slo={
            "resourceUsedThresholdWithBE": {
                "enable": True,
                "cpuEvictTimeWindowSeconds": 60,
                "cpuEvictBESatisfactionLowerPercent": 30,
                "cpuEvictBESatisfactionUpperPercent": 40,
            }
        },
    )


def cpu_tasks(
    view: NodeView, features: tuple[str, str, str] = cpuevict.FEATURES, started: float = 0.0
) -> tuple[EvictionTask, ...]:
    return present(CPUEvict(features, interval=1.0, started=started).decide(view)).evictions


def test_best_effort_cpu_eviction_follows_the_worked_example() -> None:
    (task,) = cpu_tasks(be_view())
    assert dict(task.release)["kubernetes.io/batch-cpu"] == pytest.approx(6_000, abs=1)
    assert names(task) == ["low", "big"]
    assert task.reason == "trigger by koordlet feature BECPUEvict"


@pytest.mark.parametrize("fields", [{"usage": 0.5}, {"count": 19}, {"last": 20_000}, {"avg": 20_000}])
def test_no_best_effort_cpu_eviction(fields: dict[str, Any]) -> None:
    assert cpu_tasks(be_view(**fields)) == ()


def test_cooling_starts_with_the_process_and_with_each_eviction() -> None:
    strategy = CPUEvict(cpuevict.FEATURES, interval=1.0, started=990.0)
    assert present(strategy.decide(be_view())).evictions == ()
    strategy = CPUEvict(cpuevict.FEATURES, interval=1.0, started=0.0)
    assert present(strategy.decide(be_view())).evictions
    strategy.evicted(999.0)
    assert present(strategy.decide(be_view())).evictions == ()


def test_cpu_usage_eviction_follows_the_worked_example() -> None:
    """100 cores, 85 % used, threshold 80, lower 78: 7 cores."""
    view = make_view(node=make_node("100"), average=averages(node_cpu_usage=SeriesAverage(85.0, 85.0, 1)))
    strategy = threshold(cpu_evict_threshold_percent=80, evict_enabled_priority_threshold=5999)
    assert cpuevict.usage_release(view, strategy, 1.0) == 7_000
    quiet = make_view(node=make_node("100"), average=averages(node_cpu_usage=SeriesAverage(79.9, 79.9, 1)))
    assert cpuevict.usage_release(quiet, strategy, 1.0) == 0
    assert cpuevict.usage_release(view, threshold(), 1.0) == 0


@pytest.mark.parametrize(
    ("upper", "lower", "expected"), [(80, None, 20_400_000_000), (82, 74, 25_200_000_000), (96, 90, 0), (80, 80, 0)]
)
def test_memory_usage_above_the_threshold_is_released(upper: int, lower: int | None, expected: int) -> None:
    """120 G, 115 G used: 95 %."""
    view = make_view(node=make_node(memory="120G"), memory=115_000_000_000)
    strategy = threshold(memory_evict_threshold_percent=upper, memory_evict_lower_percent=lower)
    assert memoryevict.usage_release(view, strategy) == expected


def test_best_effort_memory_victims_are_the_largest_of_the_lowest_priority() -> None:
    """B and A free 25 G of 25.2 G, so C is evicted too."""
    pods = (
        batch("a", priority=100, memory=5_000_000_000),
        batch("b", priority=100, memory=20_000_000_000),
        batch("c", priority=120, memory=10_000_000_000),
    )
    task = memoryevict.best_effort_task(make_view(pods=pods), 25_200_000_000)
    assert names(task) == ["b", "a", "c"] == evicted(EvictionProgress([task]))


def test_best_effort_victims_are_active_and_no_annotation_exempts_them() -> None:
    policy = "koordinator.sh/eviction-policy"
    pods = (
        batch("done", memory=1, phase="Succeeded"),
        batch("other", memory=1, annotations={policy: '["BECPUEvict"]'}),
        batch("odd", memory=1, annotations={policy: "["}),
        batch("unmeasured"),
        batch("yes", memory=1, annotations={policy: '["BEMemoryEvict"]'}),
        make_pod("unlabelled", kube="BestEffort", memory=9),
    )
    assert names(memoryevict.best_effort_task(make_view(pods=pods), 1)) == ["yes", "unmeasured", "other", "odd"]


def test_victims_of_usage_eviction_are_ordered_by_priority_and_use() -> None:
    first = {"koordinator.sh/eviction-priority": "-1"}
    pods = (
        batch("big", memory=9, labels=ENABLED),
        batch("small", memory=1, labels=ENABLED),
        batch("first", memory=1, labels=ENABLED, priority=5999, annotations=first),
        batch("lower", memory=1, labels=ENABLED, priority=5000),
        batch("label", memory=5, labels={**ENABLED, "koordinator.sh/priority": "100"}),
        batch("forbidden", memory=9),
        batch("high", memory=9, labels=ENABLED, priority=9000),
    )
    task = used.task(make_view(pods=pods), memoryevict.USAGE, "memory", 1, 5999)
    assert names(task) == ["first", "lower", "label", "big", "small"]


def allocatable_tasks(
    node: Node, pods: tuple[PodView, ...], resource: str = "cpu", upper: int = 80, lower: int = 70, highest: int = 7999
) -> list[EvictionTask]:
    view = make_view(node=node, pods=pods)
    return list(requested.tasks(view, "F", resource, threshold=upper, lower=lower, priority_threshold=highest))


def test_allocatable_eviction_follows_the_worked_example() -> None:
    node = make_node(**{"kubernetes.io/batch-cpu": "100000"})  # type: ignore[arg-type]
    pods = (batch("a", milli=60_000, cpu=1, labels=ENABLED), batch("b", milli=25_000, cpu=1, labels=ENABLED))
    (task,) = allocatable_tasks(node, pods)
    assert (dict(task.release), names(task)) == ({"kubernetes.io/batch-cpu": 15_000}, ["a", "b"])
    assert evicted(EvictionProgress([task])) == ["a"]


def test_native_requests_and_prod_pods_are_not_evicted() -> None:
    prod = make_pod("prod", qos="LS", cpu=1, labels=ENABLED, spec={
        "priority": 7000, "containers": [{"name": "c0", "resources": {"requests": {"cpu": "100"}}}],
    })  # fmt: skip
    plain = make_pod("plain", cpu=1, labels=ENABLED, spec={
        "priority": 100, "containers": [{"name": "c0", "resources": {"requests": {"cpu": "100"}}}],
    })  # fmt: skip
    assert allocatable_tasks(make_node("8"), (prod, plain)) == []
    assert allocatable_tasks(make_node("8"), (batch("a", milli=1, cpu=1),), highest=8000) == []


def test_requests_without_overcommit_are_released_entirely() -> None:
    (task,) = allocatable_tasks(make_node("8"), (batch("a", milli=700, cpu=1, labels=ENABLED),))
    assert dict(task.release) == {"kubernetes.io/batch-cpu": 700}


def test_memory_allocatable_eviction_is_in_bytes() -> None:
    node = make_node(**{"kubernetes.io/batch-memory": "100Gi"})  # type: ignore[arg-type]
    pod = make_pod("a", qos="BE", kube="BestEffort", memory=1, labels=ENABLED, spec={
        "priority": 5500,
        "containers": [{"name": "c0", "resources": {"requests": {"kubernetes.io/batch-memory": "85Gi"}}}],
    })  # fmt: skip
    (task,) = allocatable_tasks(node, (pod,), "memory")
    assert dict(task.release) == {"kubernetes.io/batch-memory": 16_106_127_360}


def test_only_enabled_features_evict() -> None:
    view = make_view(
        node=make_node(memory="120G"), memory=115_000_000_000, pods=(batch("a", memory=1, labels=ENABLED),),
        slo={"resourceUsedThresholdWithBE": {"enable": True, "evictEnabledPriorityThreshold": 5999}},
    )  # fmt: skip
    features_of = {features: [task.feature for task in present(MemoryEvict(features).decide(view)).evictions]
             for features in ((), ("BEMemoryEvict",), memoryevict.FEATURES)}  # fmt: skip
    assert features_of == {
        (): [],
        ("BEMemoryEvict",): ["BEMemoryEvict"],
        memoryevict.FEATURES: ["BEMemoryEvict", "MemoryEvict"],
    }
    off = make_view(node=make_node(memory="120G"), memory=115_000_000_000, pods=(batch("a", memory=1),))
    assert present(MemoryEvict(memoryevict.FEATURES).decide(off)).evictions == ()
