"""The scheduler's families: upstream's names that dashboards know, and Koordinator's (spec 05 §16)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from koordlet.app.metrics import MetricSet, UnsuffixedCounter

_P: Final = "scheduler_"

Read = Callable[[], Mapping[Any, float]]
"""Label values (a tuple of texts) -> value."""


def exponential(first: float, factor: float, count: int) -> tuple[float, ...]:
    """`count` bucket bounds from `first` on."""
    return tuple(first * factor**step for step in range(count))


class SchedulerMetrics(MetricSet):
    """What is counted as it happens; gauges of states are `StateGauges`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_P + name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(_P + name, text, labels, buckets=buckets, registry=registry)

        seconds = exponential(0.001, 2, 15)
        self.attempts = counter("schedule_attempts_total", "Attempts to schedule pods.", "result", "profile")
        self.attempt_seconds = histogram(
            "scheduling_attempt_duration_seconds", "Time of an attempt.", seconds, "result", "profile"
        )
        self.algorithm_seconds = histogram(
            "scheduling_algorithm_duration_seconds", "Time of a cycle that found a node.", seconds
        )
        self.incoming = counter("queue_incoming_pods_total", "Pods that came into a queue.", "queue", "event")
        self.pod_attempts = histogram(
            "pod_scheduling_attempts", "Attempts until a pod was bound.", exponential(1, 2, 5)
        )
        self.sli_seconds = histogram(
            "pod_scheduling_sli_duration_seconds", "From a pod's first attempt until it was bound.",
            exponential(0.01, 2, 20), "attempts",
        )  # fmt: skip
        self.evaluated = histogram(
            "pod_scheduling_evaluated_nodes", "Nodes looked at for a pod.", exponential(1, 2, 24)
        )
        self.feasible = histogram("pod_scheduling_feasible_nodes", "Nodes that fit a pod.", exponential(1, 2, 24))
        self.timeouts = UnsuffixedCounter(
            _P + "scheduling_timeout", "Attempts that took too long.", ["profile"], registry=registry
        )
        self.eviction_failures = counter("preemption_failures_total", "Victims that could not be removed.")
        self.patch_failures = counter("pod_status_patch_failures_total", "Conditions that could not be written.")


class StateGauges(Collector):
    """Gauges read when somebody looks. Each function gives label values -> value."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families: list[tuple[str, str, tuple[str, ...], Read]] = []
        self._registry = registry
        registry.register(self)

    def add(self, name: str, text: str, labels: tuple[str, ...], read: Read) -> None:
        self._families.append((_P + name, text, labels, read))

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        for name, text, labels, read in self._families:
            family = GaugeMetricFamily(name, text, labels=labels)
            for values, value in sorted(read().items()):
                family.add_metric(list(values), value)
            yield family
