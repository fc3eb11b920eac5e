"""Builds NodeMetric.status from the metric cache with one read of each series (spec 02 §7.3). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from koordlet.api.crs.nodemetric import (
    CONTAINERS_KEY,
    USAGE_WITHOUT_PAGE_CACHE,
    CollectPolicy,
    HostApplicationMetricInfo,
    NodeMetricInfo,
    NodeMetricStatus,
    NUMAUsage,
    PodMetricInfo,
    PredictPolicy,
    ReclaimableMetric,
    ResourceMap,
)
from koordlet.api.encoding.quantity import BINARY_SI, Quantity
from koordlet.api.encoding.wire import Duration, Time, to_builtins
from koordlet.metriccache import Aggregation, MetricCache
from koordlet.metriccache.facts import FACT_GPU
from koordlet.metriccache.ring import Key
from koordlet.statesinformer.nodemetric.forecast import Amount, Forecast
from koordlet.statesinformer.nodemetric.usage import GpuSeries, WindowedUsage, amounts, memory_kind
from koordlet.statesinformer.pods.model import PodMeta, Subject, SubjectKind, Workloads

MIN_AGGREGATE_SECONDS = 60
MIN_REPORT_SECONDS = 30
AVG = Aggregation.AVG
GPU_MAX_AGE_S = 300.0


@dataclass(frozen=True, slots=True)
class ReportPolicy:
    """NodeMetric's spec over its defaults, with koordlet's floors applied (spec 02 §7.1, §11.4)."""

    aggregate_seconds: int = 300
    report_seconds: float = 60
    durations: tuple[Duration, ...] = (Duration("5m"), Duration("10m"), Duration("30m"))
    memory: str = USAGE_WITHOUT_PAGE_CACHE
    diff_percent: int = 5
    """A prediction that changed by more is reported early."""
    cold_start_seconds: int | None = None
    """None: the value of koordlet's flag."""

    @classmethod
    def of(
        cls,
        spec: CollectPolicy | None,
        predict: PredictPolicy | None = None,
        *,
        min_report_seconds: float = MIN_REPORT_SECONDS,
    ) -> ReportPolicy:
        """Absent fields take the default; a non-positive window counts as absent."""
        default = cls()
        spec = spec or CollectPolicy()
        predict = predict or PredictPolicy()
        durations = spec.node_aggregate_policy.durations if spec.node_aggregate_policy else []
        percent = predict.resource_diff_threshold_percent
        return cls(
            aggregate_seconds=max(spec.aggregate_duration_seconds or default.aggregate_seconds, MIN_AGGREGATE_SECONDS),
            report_seconds=max(spec.report_interval_seconds or default.report_seconds, min_report_seconds),
            durations=tuple(duration for duration in durations if duration.seconds > 0) or default.durations,
            memory=spec.node_memory_collect_policy or default.memory,
            diff_percent=default.diff_percent if percent is None else percent,
            cold_start_seconds=predict.cold_start_period_seconds,
        )

    @property
    def longest_window(self) -> float:
        """In seconds."""
        return max(float(self.aggregate_seconds), *(duration.seconds for duration in self.durations))


@dataclass(frozen=True, slots=True)
class Extensions:
    """Extensions that other components add to a report, for example the interference detector. None: nothing to add."""

    of_pod: Callable[[str], dict[str, Any] | None] = lambda _: None
    """Pod UID -> `status.podsMetric[].extensions`."""
    of_node: Callable[[], dict[str, Any] | None] = lambda: None
    """`status.extensions`."""


def retain(cache: MetricCache, policy: ReportPolicy) -> float:
    """Make the cache keep the history that the policy's windows need. Returns the seconds that it keeps for the longest
    window, which may be fewer."""
    for kind in _AVERAGED:
        cache.retain(kind, policy.aggregate_seconds)
    return min(cache.retain(kind, policy.longest_window) for kind in _AGGREGATED)


_AGGREGATED = (
    "node_cpu_usage",
    "node_memory_usage",
    "node_memory_usage_with_page_cache",
    "node_memory_with_hot_page_usage",
    "node_gpu_core_usage",
    "node_gpu_memory_usage",
    "sys_cpu_usage",
    "sys_memory_usage",
)
"""Series that are aggregated over each configured window."""
_AVERAGED = (
    *(f"{level}_numa_{name}_usage" for level in ("node", "sys") for name in ("cpu", "memory")),
    *(f"{level}_cpu_usage" for level in ("pod", "host_application")),
    *(f"{level}_memory_usage" for level in ("pod", "host_application")),
    *(f"{level}_memory_usage_with_page_cache" for level in ("pod", "host_application")),
    *(f"{level}_memory_with_hot_page_usage" for level in ("pod", "host_application")),
    *(f"pod_gpu_{name}_usage" for name in ("core", "memory")),
)
"""Series that are only averaged over `aggregateDurationSeconds`."""


def build_status(
    cache: MetricCache,
    workloads: Workloads,
    policy: ReportPolicy,
    *,
    now: float,
    update_time: Time,
    forecast: Callable[[Sequence[PodMeta], int | None], Forecast] = lambda *_: Forecast(),
    extensions: Extensions = Extensions(),
) -> NodeMetricStatus:
    """The status for windows that end at `now` (the cache's clock)."""
    start = now - policy.aggregate_seconds
    earliest = now - policy.longest_window
    gpus = cache.facts.get(FACT_GPU, newer_than=now - GPU_MAX_AGE_S) or ()
    node = WindowedUsage.read(
        cache,
        "node_cpu_usage",
        memory_kind(cache, "node", policy.memory, start),
        earliest,
        now,
        GpuSeries(cache, "node", gpus, earliest, now),
    )
    system = WindowedUsage.read(cache, "sys_cpu_usage", "sys_memory_usage", earliest, now)
    measured = measured_pods(cache, workloads.pods, policy, start, now)
    prediction = forecast([pod for pod, _ in measured], policy.cold_start_seconds)
    devices = GpuSeries(cache, "pod", gpus, start, now).by_owner(start, [AVG])[AVG]
    per_container = _containers(cache, [pod for pod, _ in measured], policy, start, now)
    return NodeMetricStatus(
        update_time=update_time,
        node_metric=NodeMetricInfo(
            node_usage=node.average(policy.aggregate_seconds),
            aggregated_node_usages=[node.aggregated(duration) for duration in policy.durations],
            system_usage=system.average(policy.aggregate_seconds),
            aggregated_system_usages=[system.aggregated(duration) for duration in policy.durations],
            numa_usages=_numa(cache, start, now),
        ),
        pods_metric=[
            PodMetricInfo(
                name=pod.name,
                namespace=pod.namespace,
                pod_usage=msgspec.structs.replace(usage, devices=devices.get((pod.uid,), [])),
                priority=pod.priority_class,
                qos=pod.qos,
                extensions={**(extensions.of_pod(pod.uid) or {}), **per_container.get(pod.uid, {})} or None,
            )
            for pod, usage in measured
        ],
        host_application_metric=_host_apps(cache, workloads.subjects, policy, start, now),
        prod_reclaimable_metric=ReclaimableMetric(resource=_predicted(prediction.reclaimable)),
        prod_peak_metric=None if prediction.peak is None else ReclaimableMetric(resource=_predicted(prediction.peak)),
        extensions=extensions.of_node(),
    )


def measured_pods(
    cache: MetricCache, pods: Mapping[str, PodMeta], policy: ReportPolicy, start: float, end: float
) -> list[tuple[PodMeta, ResourceMap]]:
    """Pods that have CPU and memory samples in the window, with their average use, sorted by namespace and name."""
    cpu, memory = _means(cache, "pod", [(uid,) for uid in pods], policy, start, end)
    return [
        (pod, amounts(cpu[key], memory[key]))
        for pod in sorted(pods.values(), key=lambda pod: (pod.namespace, pod.name))
        if (key := (pod.uid,)) in cpu and key in memory
    ]


def _containers(
    cache: MetricCache, pods: Iterable[PodMeta], policy: ReportPolicy, start: float, end: float
) -> dict[str, dict[str, Any]]:
    """Pod UID -> extension with the use of each container, for pods with more than one running container."""
    running = {pod.uid: [container for container in pod.containers if container.running] for pod in pods}
    running = {uid: containers for uid, containers in running.items() if len(containers) > 1}
    if not running:
        return {}
    keys = [(container.id,) for containers in running.values() for container in containers]
    cpu, memory = _means(cache, "container", keys, policy, start, end)
    return {
        uid: {
            CONTAINERS_KEY: {
                container.name: to_builtins(amounts(cpu[key], memory[key]))["resources"]
                for container in containers
                if (key := (container.id,)) in cpu and key in memory
            }
        }
        for uid, containers in running.items()
    }


def _predicted(amount: Amount | None) -> ResourceMap:
    if amount is None:
        return ResourceMap()
    return ResourceMap(resources={"cpu": Quantity.milli(amount.cpu), "memory": Quantity.of(amount.memory, BINARY_SI)})


def _numa(cache: MetricCache, start: float, end: float) -> list[NUMAUsage]:
    def means(kind: str) -> dict[Key, float]:
        return cache.window(kind, start, end).aggregate([AVG])[AVG]

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


def _host_apps(
    cache: MetricCache, subjects: Iterable[Subject], policy: ReportPolicy, start: float, end: float
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
    cache: MetricCache, level: str, keys: Sequence[Key], policy: ReportPolicy, start: float, end: float
) -> tuple[dict[Key, float], dict[Key, float]]:
    kinds = (f"{level}_cpu_usage", memory_kind(cache, level, policy.memory, start))
    cpu, memory = (cache.window(kind, start, end, keys).aggregate([AVG])[AVG] for kind in kinds)
    return cpu, memory


def status_patch(status: NodeMetricStatus) -> dict[str, object]:
    """A JSON merge patch that makes the object's status equal to `status`.

    A merge patch keeps fields that it does not name, so absent fields are set to null. Lists are replaced as a whole
    and need no null.
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
