"""NodeMetric.status from the metric cache: pure, one read of each series (spec 02 §7.3).

CPU is `trunc(cores * 1000)` milli, memory `trunc(bytes)`. An aggregated entry is `{}` while its CPU samples span less
than half of its window, so that consumers do not take a fresh start for an idle node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from koordlet.api.nodemetric import (
    AVG,
    P50,
    P90,
    P95,
    P99,
    USAGE_WITH_HOT_PAGE_CACHE,
    USAGE_WITH_PAGE_CACHE,
    USAGE_WITHOUT_PAGE_CACHE,
    AggregatedUsage,
    CollectPolicy,
    HostApplicationMetricInfo,
    NodeMetricInfo,
    NodeMetricStatus,
    NUMAUsage,
    PodMetricInfo,
    ReclaimableMetric,
    ResourceMap,
)
from koordlet.api.quantity import BINARY_SI, Quantity
from koordlet.api.wire import Duration, Time, to_builtins
from koordlet.metriccache import Aggregation, MetricCache
from koordlet.metriccache.ring import Key
from koordlet.statesinformer.model import PodMeta, Subject, SubjectKind, Workloads

WIRE_KEYS = {
    AVG: Aggregation.AVG,
    P50: Aggregation.P50,
    P90: Aggregation.P90,
    P95: Aggregation.P95,
    P99: Aggregation.P99,
}
MIN_AGGREGATE_SECONDS = 60
MIN_REPORT_SECONDS = 30
COVERED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Policy:
    """`spec.metricCollectPolicy` over its defaults, with koordlet's floors applied (spec 02 §7.1)."""

    aggregate_seconds: int = 300
    report_seconds: int = 60
    durations: tuple[Duration, ...] = (Duration("5m"), Duration("10m"), Duration("30m"))
    memory: str = USAGE_WITHOUT_PAGE_CACHE

    @classmethod
    def of(cls, spec: CollectPolicy | None) -> Policy:
        """Absent fields take the default; a non-positive window counts as absent."""
        default = cls()
        if spec is None:
            return default
        given = spec.node_aggregate_policy.durations if spec.node_aggregate_policy else []
        return cls(
            aggregate_seconds=max(spec.aggregate_duration_seconds or default.aggregate_seconds, MIN_AGGREGATE_SECONDS),
            report_seconds=max(spec.report_interval_seconds or default.report_seconds, MIN_REPORT_SECONDS),
            durations=tuple(d for d in given if d.seconds > 0) or default.durations,
            memory=spec.node_memory_collect_policy or default.memory,
        )


def memory_kind(level: str, policy: str, available: Iterable[str]) -> str:
    """The memory series of `level` (node, pod, host_application) under a policy.

    A policy whose collector does not run falls back to plain usage: reporting nothing would hide the node.
    """
    kind = {
        USAGE_WITH_PAGE_CACHE: f"{level}_memory_usage_with_page_cache",
        USAGE_WITH_HOT_PAGE_CACHE: f"{level}_memory_with_hot_page_usage",
    }.get(policy, f"{level}_memory_usage")
    return kind if kind in available else f"{level}_memory_usage"


def amounts(cores: float, memory_bytes: float) -> ResourceMap:
    """cpu and memory as the wire has them."""
    return ResourceMap(
        resources={"cpu": Quantity.milli(int(cores * 1000)), "memory": Quantity.of(int(memory_bytes), BINARY_SI)}
    )


def build_status(
    cache: MetricCache, workloads: Workloads, policy: Policy, *, now: float, update_time: Time
) -> NodeMetricStatus:
    """The status for windows that end at `now` (the cache's clock)."""
    start = now - policy.aggregate_seconds
    memory = memory_kind("node", policy.memory, cache.rings)
    return NodeMetricStatus(
        update_time=update_time,
        node_metric=NodeMetricInfo(
            node_usage=_average(cache, "node_cpu_usage", memory, start, now),
            aggregated_node_usages=[_aggregated(cache, "node_cpu_usage", memory, d, now) for d in policy.durations],
            system_usage=_average(cache, "sys_cpu_usage", "sys_memory_usage", start, now),
            aggregated_system_usages=[
                _aggregated(cache, "sys_cpu_usage", "sys_memory_usage", d, now) for d in policy.durations
            ],
            numa_usages=_numa(cache, start, now),
        ),
        pods_metric=_pods(cache, workloads.pods, policy, start, now),
        host_application_metric=_host_apps(cache, workloads.subjects, policy, start, now),
        prod_reclaimable_metric=ReclaimableMetric(),
    )


def _average(cache: MetricCache, cpu: str, memory: str, start: float, end: float) -> ResourceMap:
    cores, used = (cache.query(kind, start, end).values for kind in (cpu, memory))
    if not len(cores) or not len(used):
        return ResourceMap()
    return amounts(float(cores.mean(dtype=float)), float(used.mean(dtype=float)))


def _aggregated(cache: MetricCache, cpu: str, memory: str, duration: Duration, end: float) -> AggregatedUsage:
    start = end - duration.seconds
    cores, used = cache.query(cpu, start, end), cache.query(memory, start, end)
    if cores.covered < COVERED_SHARE * duration.seconds or not len(used.values):
        return AggregatedUsage(usage={key: ResourceMap() for key in WIRE_KEYS}, duration=duration)
    usage = {key: amounts(cores.aggregate(kind), used.aggregate(kind)) for key, kind in WIRE_KEYS.items()}
    return AggregatedUsage(usage=usage, duration=duration)


def _numa(cache: MetricCache, start: float, end: float) -> list[NUMAUsage]:
    def means(kind: str) -> dict[Key, float]:
        return cache.window(kind, start, end).aggregate([Aggregation.AVG])[Aggregation.AVG]

    cpu, memory = means("node_numa_cpu_usage"), means("node_numa_memory_usage")
    system_cpu, system_memory = means("sys_numa_cpu_usage"), means("sys_numa_memory_usage")
    return [
        NUMAUsage(
            numa_node_id=int(key[0]),
            node_usage=amounts(cpu[key], memory[key]),
            system_usage=amounts(system_cpu[key], system_memory[key])
            if key in system_cpu and key in system_memory
            else ResourceMap(),
        )
        for key in sorted(cpu.keys() & memory.keys(), key=lambda key: int(key[0]))
    ]


def _pods(
    cache: MetricCache, pods: Mapping[str, PodMeta], policy: Policy, start: float, end: float
) -> list[PodMetricInfo]:
    keys: list[Key] = [(uid,) for uid in pods]
    cpu, memory = _means(cache, "pod", keys, policy, start, end)
    return [
        PodMetricInfo(
            name=pod.name,
            namespace=pod.namespace,
            pod_usage=amounts(cpu[key], memory[key]),
            priority=pod.priority_class,
            qos=pod.qos,
        )
        for pod in sorted(pods.values(), key=lambda pod: (pod.namespace, pod.name))
        if (key := (pod.uid,)) in cpu and key in memory
    ]


def _host_apps(
    cache: MetricCache, subjects: Iterable[Subject], policy: Policy, start: float, end: float
) -> list[HostApplicationMetricInfo]:
    apps = sorted((s for s in subjects if s.kind is SubjectKind.HOST_APP), key=lambda s: s.name)
    cpu, memory = _means(cache, "host_application", [(app.key,) for app in apps], policy, start, end)
    return [
        HostApplicationMetricInfo(
            name=app.name, usage=amounts(cpu[key], memory[key]), priority=app.priority_class, qos=app.qos
        )
        for app in apps
        if (key := (app.key,)) in cpu and key in memory
    ]


def _means(
    cache: MetricCache, level: str, keys: Sequence[Key], policy: Policy, start: float, end: float
) -> tuple[dict[Key, float], dict[Key, float]]:
    kinds = (f"{level}_cpu_usage", memory_kind(level, policy.memory, cache.rings))
    cpu, memory = (cache.window(kind, start, end, keys).aggregate([Aggregation.AVG])[Aggregation.AVG] for kind in kinds)
    return cpu, memory


def status_patch(status: NodeMetricStatus) -> dict[str, object]:
    """A JSON merge patch that makes the object's status equal to `status`.

    A merge patch keeps what it does not name, so fields that are absent now are named with null. Lists are replaced
    whole and need no such care.
    """
    return {"status": _with_nulls(status)}


def _with_nulls(struct: msgspec.Struct) -> dict[str, object]:
    written = to_builtins(struct)
    return {
        field.encode_name: _with_nulls(value)
        if isinstance(value := getattr(struct, field.name), msgspec.Struct)
        else written.get(field.encode_name)
        for field in msgspec.structs.fields(struct)
    }
