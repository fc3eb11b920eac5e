"""NodeMetric.status: the worked examples of spec 02 §7.3 and §13."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from koordlet.api.crs.nodemetric import CollectPolicy, NodeAggregatePolicy, PredictPolicy
from koordlet.api.encoding.wire import Duration, Time, to_builtins
from koordlet.metriccache import Batch, MetricCache
from koordlet.metriccache.facts import FACT_COLD_MEMORY, FACT_GPU, GpuInfo
from koordlet.statesinformer.nodemetric.forecast import Amount, Forecast
from koordlet.statesinformer.nodemetric.status import Extensions, ReportPolicy, build_status, retain, status_patch
from koordlet.statesinformer.nodemetric.usage import amounts
from koordlet.statesinformer.pods.model import ContainerMeta, PodMeta, Subject, SubjectKind, Workloads
from tests.present import present

NOW = 10_000.0
UPDATED = Time.parse("2026-07-01T00:00:00Z")


def pod(uid: str, namespace: str = "default", qos: str = "LS", priority: str = "koord-prod") -> PodMeta:
    return PodMeta(uid, f"pod-{uid}", namespace, qos, priority, "Burstable", f"kubepods/pod{uid}", ())


def workloads(*pods: PodMeta, subjects: tuple[Subject, ...] = ()) -> Workloads:
    return Workloads(1, MappingProxyType({p.uid: p for p in pods}), subjects)


def record(cache: MetricCache, at: float, **samples: float) -> None:
    """`kind__label=value` as one batch."""
    batch = Batch(at)
    for name, value in samples.items():
        kind, *labels = name.split("__")
        batch.add(kind, value, *labels)
    cache.commit(batch)


def status(
    cache: MetricCache,
    *pods: PodMeta,
    policy: ReportPolicy | None = None,
    subjects: tuple[Subject, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    built = build_status(
        cache, workloads(*pods, subjects=subjects), policy or ReportPolicy(), now=NOW, update_time=UPDATED, **more
    )
    result: dict[str, Any] = to_builtins(built)
    return result


AMOUNTS = {
    "whole cores lose their suffix": (3.0, 3 << 30, {"cpu": "3", "memory": "3Gi"}),
    "milli is truncated": (1.5009, 1024, {"cpu": "1500m", "memory": "1Ki"}),
    "small bytes are decimal": (0.5, 512, {"cpu": "500m", "memory": "512"}),
    "nothing": (0.0, 0.9, {"cpu": "0", "memory": "0"}),
}


@pytest.mark.parametrize(("cores", "used", "expected"), AMOUNTS.values(), ids=AMOUNTS)
def test_amounts_on_the_wire(cores: float, used: float, expected: dict[str, str]) -> None:
    assert to_builtins(amounts(cores, used)) == {"resources": expected}


def test_everything_a_short_history_can_fill() -> None:
    cache = MetricCache()
    for tick in range(11):
        record(
            cache, NOW - 10 + tick,
            node_cpu_usage=3, node_memory_usage=3 << 30, sys_cpu_usage=2, sys_memory_usage=2 << 30,
            node_numa_cpu_usage__0=1.5, node_numa_memory_usage__0=1024,
            sys_numa_cpu_usage__0=0.5, sys_numa_memory_usage__0=512,
            pod_cpu_usage__b=1, pod_memory_usage__b=1 << 30, pod_cpu_usage__a=0.25, pod_memory_usage__a=1 << 20,
            host_application_cpu_usage__nginx=0.1, host_application_memory_usage__nginx=128,
        )  # fmt: skip
    app = Subject(SubjectKind.HOST_APP, "nginx", "host/nginx", "nginx", qos="LS", priority_class="koord-prod")
    reported = status(cache, pod("b"), pod("a", namespace="batch", qos="BE", priority="koord-batch"), subjects=(app,))
    empty = {key: {} for key in ("avg", "p50", "p90", "p95", "p99")}  # type: ignore[var-annotated]
    cold = [{"usage": empty, "duration": duration} for duration in ("5m0s", "10m0s", "30m0s")]
    assert reported == {
        "updateTime": "2026-07-01T00:00:00Z",
        "nodeMetric": {
            "nodeUsage": {"resources": {"cpu": "3", "memory": "3Gi"}},
            "aggregatedNodeUsages": cold,
            "systemUsage": {"resources": {"cpu": "2", "memory": "2Gi"}},
            "aggregatedSystemUsages": cold,
            "numaUsages": [
                {
                    "numaNodeID": 0,
                    "nodeUsage": {"resources": {"cpu": "1500m", "memory": "1Ki"}},
                    "systemUsage": {"resources": {"cpu": "500m", "memory": "512"}},
                }
            ],
        },
        "podsMetric": [
            {
                "name": "pod-a", "namespace": "batch", "priority": "koord-batch", "qos": "BE",
                "podUsage": {"resources": {"cpu": "250m", "memory": "1Mi"}},
            },
            {
                "name": "pod-b", "namespace": "default", "priority": "koord-prod", "qos": "LS",
                "podUsage": {"resources": {"cpu": "1", "memory": "1Gi"}},
            },
        ],
        "hostApplicationMetric": [
            {"name": "nginx", "usage": {"resources": {"cpu": "100m", "memory": "128"}},
             "priority": "koord-prod", "qos": "LS"},
        ],
        "prodReclaimableMetric": {"resource": {}},
    }  # fmt: skip


def test_percentiles_of_300_seconds() -> None:
    cache = MetricCache()
    for second in range(1, 301):
        record(cache, NOW - 300 + second, node_cpu_usage=second, node_memory_usage=second * 1024)
    aggregated = status(cache)["nodeMetric"]["aggregatedNodeUsages"][0]
    cores = {key: usage["resources"]["cpu"] for key, usage in aggregated["usage"].items()}
    assert cores == {"avg": "150500m", "p50": "150", "p90": "270", "p95": "285", "p99": "297"}


@pytest.mark.parametrize(("covered", "filled"), [(149, False), (150, True)])
def test_an_entry_is_empty_until_half_its_window_is_covered(covered: int, filled: bool) -> None:
    cache = MetricCache()
    for at in (NOW - covered, NOW):
        record(cache, at, node_cpu_usage=1, node_memory_usage=1024)
    entries = status(cache)["nodeMetric"]["aggregatedNodeUsages"]
    assert [bool(entry["usage"]["p99"]) for entry in entries] == [filled, False, False]


def test_samples_outside_the_window_do_not_count() -> None:
    cache = MetricCache()
    record(cache, NOW - 301, node_cpu_usage=100, node_memory_usage=1, pod_cpu_usage__a=100, pod_memory_usage__a=1)
    record(cache, NOW, node_cpu_usage=1, node_memory_usage=1024)
    reported = status(cache, pod("a"))
    assert reported["nodeMetric"]["nodeUsage"]["resources"]["cpu"] == "1"
    assert "podsMetric" not in reported


def test_a_pod_without_memory_samples_is_left_out() -> None:
    cache = MetricCache()
    record(cache, NOW, pod_cpu_usage__a=1)
    assert "podsMetric" not in status(cache, pod("a"))


def test_memory_policy_picks_the_series_and_falls_back_when_its_collector_is_off() -> None:
    policy = ReportPolicy(memory="usageWithPageCache")
    cache = MetricCache()
    record(cache, NOW, node_cpu_usage=1, node_memory_usage=1024)
    assert status(cache, policy=policy)["nodeMetric"]["nodeUsage"]["resources"]["memory"] == "1Ki"
    record(cache, NOW, node_memory_usage_with_page_cache=2048)
    assert status(cache, policy=policy)["nodeMetric"]["nodeUsage"]["resources"]["memory"] == "2Ki"


HOT = {
    "collector runs": (NOW - 5, NOW - 5, "4Ki"),
    "collector stopped long ago": (NOW - 400, NOW - 5, "2Ki"),
    "collector never ran": (None, NOW - 5, "2Ki"),
    "collector runs and has written nothing lately": (NOW - 5, NOW - 400, "2Ki"),
}


@pytest.mark.parametrize(("started", "written", "expected"), HOT.values(), ids=HOT)
def test_memory_with_hot_pages_needs_its_collector(started: float | None, written: float, expected: str) -> None:
    """At node, pod and host application alike."""
    cache = MetricCache()
    if started is not None:
        cache.facts.set(FACT_COLD_MEMORY, "kidled", started)
    record(
        cache, written, node_memory_with_hot_page_usage=4096, pod_memory_with_hot_page_usage__a=4096,
        host_application_memory_with_hot_page_usage__nginx=4096,
    )  # fmt: skip
    record(
        cache, NOW, node_cpu_usage=1, node_memory_usage=2048, pod_cpu_usage__a=1, pod_memory_usage__a=2048,
        host_application_cpu_usage__nginx=1, host_application_memory_usage__nginx=2048,
    )  # fmt: skip
    app = Subject(SubjectKind.HOST_APP, "nginx", "host/nginx", "nginx")
    reported = status(cache, pod("a"), policy=ReportPolicy(memory="usageWithHotPageCache"), subjects=(app,))
    used = (
        reported["nodeMetric"]["nodeUsage"],
        reported["podsMetric"][0]["podUsage"],
        reported["hostApplicationMetric"][0]["usage"],
    )
    assert [usage["resources"]["memory"] for usage in used] == [expected] * 3


GPUS = {"plain": (100, 30, 80, (80, 30, 30)), "ratio": (200, 50, 0, (0, 50, 25)), "big": (8000, 800, 1, (1, 800, 10))}


@pytest.mark.parametrize(("total", "used", "busy", "expected"), GPUS.values(), ids=GPUS)
def test_gpus(total: int, used: int, busy: int, expected: tuple[int, int, int]) -> None:
    cache = MetricCache()
    cache.facts.set(FACT_GPU, (GpuInfo(0, "uuid-0", total), GpuInfo(1, "uuid-1", total)), NOW)
    for at in (NOW - 200, NOW):
        record(cache, at, node_cpu_usage=1, node_memory_usage=1024, pod_cpu_usage__a=1, pod_memory_usage__a=1024)
        batch = Batch(at)
        for kind, value in (("gpu_core_usage", busy), ("gpu_memory_usage", used)):
            batch.add(f"node_{kind}", value, "0", "uuid-0")
            batch.add(f"pod_{kind}", value, "a", "0", "uuid-0")
        cache.commit(batch)
    reported = status(cache, pod("a"))
    resources = {
        f"koordinator.sh/{name}": str(value)
        for name, value in zip(("gpu-core", "gpu-memory", "gpu-memory-ratio"), expected, strict=True)
    }
    device = {"type": "gpu", "id": "uuid-0", "minor": 0, "health": False, "resources": resources}
    node = reported["nodeMetric"]
    assert node["nodeUsage"]["devices"] == [device]
    assert node["aggregatedNodeUsages"][0]["usage"]["p99"]["devices"] == [device]
    assert reported["podsMetric"][0]["podUsage"]["devices"] == [device]
    assert "devices" not in node["systemUsage"]


def test_gpu_figures_must_be_recent() -> None:
    cache = MetricCache()
    cache.facts.set(FACT_GPU, (GpuInfo(0, "uuid-0", 100),), NOW - 301)
    batch = Batch(NOW)
    batch.add("node_gpu_core_usage", 1, "0", "uuid-0")
    batch.add("node_gpu_memory_usage", 1, "0", "uuid-0")
    batch.add("node_cpu_usage", 1)
    batch.add("node_memory_usage", 1)
    cache.commit(batch)
    assert "devices" not in status(cache)["nodeMetric"]["nodeUsage"]


def test_predictions_and_extensions() -> None:
    cache = MetricCache()
    record(cache, NOW, pod_cpu_usage__a=1, pod_memory_usage__a=1 << 30)
    queries = []

    def forecast(pods: list[PodMeta], cold_start: int) -> Forecast:
        queries.append(([pod.uid for pod in pods], cold_start))
        return Forecast(Amount(1450, 1261646644), Amount(2050, 2496449740))

    reported = status(
        cache, pod("a"), pod("no figures"), policy=ReportPolicy(cold_start_seconds=7), forecast=forecast,
        extensions=Extensions(of_pod=lambda uid: {"about": uid}, of_node=lambda: {"calm": True}),
    )  # fmt: skip
    assert queries == [(["a"], 7)], "only pods that have figures"
    assert reported["prodReclaimableMetric"] == {"resource": {"resources": {"cpu": "1450m", "memory": "1261646644"}}}
    assert reported["prodPeakMetric"] == {"resource": {"resources": {"cpu": "2050m", "memory": "2496449740"}}}
    assert reported["podsMetric"][0]["extensions"] == {"about": "a"}
    assert reported["extensions"] == {"calm": True}


def test_containers_are_reported_if_a_pod_runs_more_than_one() -> None:
    cache = MetricCache()
    record(
        cache, NOW,
        pod_cpu_usage__a=1, pod_memory_usage__a=3 << 20, pod_cpu_usage__b=1, pod_memory_usage__b=1,
        container_cpu_usage__web=0.75, container_memory_usage__web=2 << 20,
        container_cpu_usage__log=0.25, container_memory_usage__log=1 << 20, container_cpu_usage__new=1,
        container_cpu_usage__once=1, container_memory_usage__once=1,
    )  # fmt: skip
    names = ("web", "log", "new", "once")
    web, log, new, once = (ContainerMeta(name, f"of-{name}", f"dir/{name}", name != "once") for name in names)
    reported = status(
        cache, replace(pod("a"), containers=(web, log, new, once)), replace(pod("b"), containers=(log,)),
        extensions=Extensions(of_pod=lambda uid: {"interference": uid} if uid == "a" else None),
    )["podsMetric"]  # fmt: skip
    assert reported[0]["extensions"] == {
        "interference": "a",
        "containers": {"of-web": {"cpu": "750m", "memory": "2Mi"}, "of-log": {"cpu": "250m", "memory": "1Mi"}},
    }
    assert "extensions" not in reported[1], "the pod says it all"


def test_a_failed_prediction_is_present_but_empty_and_without_peak() -> None:
    reported = status(MetricCache(), forecast=lambda *_: Forecast.none("no node"))
    assert reported["prodReclaimableMetric"] == {"resource": {}}
    assert "prodPeakMetric" not in reported


def test_each_series_of_the_node_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = MetricCache()
    record(cache, NOW, node_cpu_usage=1, node_memory_usage=1, sys_cpu_usage=1, sys_memory_usage=1)
    read, query = [], MetricCache.query
    monkeypatch.setattr(
        MetricCache,
        "query",
        lambda self, kind, *a, **k: (read.append(kind), query(self, kind, *a, **k))[1],  # type: ignore[func-returns-value]
    )
    status(cache)
    assert sorted(read) == ["node_cpu_usage", "node_memory_usage", "sys_cpu_usage", "sys_memory_usage"]


def test_the_cache_keeps_longer_windows_once_they_are_requested() -> None:
    """Two hours of one sample in ten seconds: half an hour is all that was kept before, more afterwards."""
    policy = ReportPolicy(durations=(Duration("2h"),))
    filled = {}
    for longer_windows in (False, True):
        cache = MetricCache(tick=10.0)
        if longer_windows:
            assert retain(cache, policy) == 7200
        for back in range(4000, -1, -10):
            record(cache, NOW - back, node_cpu_usage=1, node_memory_usage=1024)
        entry = status(cache, policy=policy)["nodeMetric"]["aggregatedNodeUsages"][0]
        filled[longer_windows] = bool(entry["usage"]["avg"])
    assert filled == {False: False, True: True}


def test_a_window_that_exceeds_the_memory_limit_is_logged() -> None:
    cache = MetricCache(max_seconds=3600)
    record(cache, NOW, node_cpu_usage=1)
    assert retain(cache, ReportPolicy(durations=(Duration("5m"), Duration("2h")))) == 3600


POLICIES = {
    "absent": (None, (300, 60, 3)),
    "empty": (CollectPolicy(), (300, 60, 3)),
    "below the floors": (CollectPolicy(report_interval_seconds=10, aggregate_duration_seconds=10), (60, 30, 3)),
    "given": (
        CollectPolicy(
            report_interval_seconds=90,
            aggregate_duration_seconds=120,
            node_aggregate_policy=NodeAggregatePolicy(durations=[Duration("1m")]),
        ),
        (120, 90, 1),
    ),
}


@pytest.mark.parametrize(("spec", "expected"), POLICIES.values(), ids=POLICIES)
def test_policy_defaults_and_floors(spec: CollectPolicy | None, expected: tuple[int, int, int]) -> None:
    policy = ReportPolicy.of(spec)
    assert (policy.aggregate_seconds, policy.report_seconds, len(policy.durations)) == expected


def test_the_floor_of_the_report_interval_can_be_set() -> None:
    spec = CollectPolicy(report_interval_seconds=10)
    assert [ReportPolicy.of(spec, min_report_seconds=floor).report_seconds for floor in (5, 15)] == [10, 15]


def test_policy_of_predictions() -> None:
    assert (ReportPolicy.of(None).diff_percent, ReportPolicy.of(None).cold_start_seconds) == (5, None)
    policy = ReportPolicy.of(None, PredictPolicy(resource_diff_threshold_percent=0, cold_start_period_seconds=60))
    assert (policy.diff_percent, policy.cold_start_seconds) == (0, 60)


def test_the_patch_sets_absent_fields_to_null() -> None:
    patch = status_patch(build_status(MetricCache(), workloads(), ReportPolicy(), now=NOW, update_time=UPDATED))[
        "status"
    ]
    assert patch["podsMetric"] is None  # type: ignore[index]
    assert patch["hostApplicationMetric"] is None, "an empty list is dropped on the wire (spec 01 §2), NodeSLO or not"  # type: ignore[index]
    assert patch["prodPeakMetric"] is None  # type: ignore[index]
    assert patch["nodeMetric"]["numaUsages"] is None  # type: ignore[index]
    assert patch["nodeMetric"]["nodeUsage"] == {"resources": None, "devices": None}  # type: ignore[index]


@pytest.mark.parametrize("milli", [1, 57, 290, 699, 700, 900, 1100, 12_345, 255_999])
def test_float32_storage_costs_no_milli(milli: int) -> None:
    cache = MetricCache()
    for tick in range(60):
        record(cache, NOW - 60 + tick, node_cpu_usage=milli / 1000, node_memory_usage=1)
    usage = present(
        build_status(cache, workloads(), ReportPolicy(), now=NOW, update_time=UPDATED).node_metric
    ).node_usage
    assert usage.resources["cpu"].milli_value() == milli


def test_float32_storage_stays_within_a_millionth() -> None:
    cache = MetricCache()
    values = np.random.default_rng(7).uniform(0, 64 << 30, 60)
    for tick, value in enumerate(values):
        record(cache, NOW - 60 + tick, node_cpu_usage=1, node_memory_usage=float(value))
    built = build_status(cache, workloads(), ReportPolicy(), now=NOW, update_time=UPDATED)
    assert built.node_metric is not None
    reported = built.node_metric.node_usage.resources["memory"].value()
    assert reported == pytest.approx(values.mean(), rel=1e-6)
