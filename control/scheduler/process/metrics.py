"""The scheduler's families: upstream's names that dashboards know, and Koordinator's (spec 05 §16)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control.scheduler.framework.profile import Framework
from control.scheduler.framework.status import Status
from control.scheduler.framework.timing import Evaluations, Probe, SecondsHistogram
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
        self.preemption_attempts = counter("preemption_attempts_total", "Attempts to make room by preemption.")
        self.preemption_victims = histogram(
            "preemption_victims", "Pods that one preemption removes.", exponential(1, 2, 7)
        )
        self.permit_wait = histogram("permit_wait_duration_seconds", "Time of a wait at Permit.", seconds, "result")

        def quick(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> SecondsHistogram:
            return SecondsHistogram(registry, _P + name, text, labels, buckets)

        self.points = quick(
            "framework_extension_point_duration_seconds", "Time of all plugins at an extension point (sampled).",
            exponential(0.0001, 2, 12), "extension_point", "status", "profile",
        )  # fmt: skip
        plugin_seconds = exponential(1e-5, 1.5, 20)
        self.plugins = quick(
            "plugin_execution_duration_seconds", "Time of a plugin at an extension point (sampled).",
            plugin_seconds, "plugin", "extension_point", "status",
        )  # fmt: skip
        self.hints = quick(
            "queueing_hint_execution_duration_seconds", "Time of a queueing hint (sampled).",
            plugin_seconds, "plugin", "event", "hint",
        )  # fmt: skip
        self.handled = quick(
            "event_handling_duration_seconds", "Time of telling the queue of an event.",
            exponential(0.0001, 2, 12), "event",
        )  # fmt: skip
        self.evaluations = Evaluations(registry)
        self.eviction_failures = counter("preemption_failures_total", "Victims that could not be removed.")
        self.patch_failures = counter("pod_status_patch_failures_total", "Conditions that could not be written.")

    def preempting(self, victims: int) -> None:
        """An attempt to preempt begins (0), or has found victims."""
        if victims:
            self.preemption_victims.observe(victims)
        else:
            self.preemption_attempts.inc()

    def probe(self, framework: Framework) -> Probe:
        """What times the plugins of a profile."""
        return Probe(framework, self.plugins, self.points)


class BindingTimes:
    """What the bindings of a profile are told to (`binding.BindTimings`)."""

    def __init__(self, metrics: SchedulerMetrics, profile: str) -> None:
        self._metrics, self._profile = metrics, profile

    def permit_waited(self, status: Status, seconds: float) -> None:
        self._metrics.permit_wait.labels(status.code_name).observe(seconds)

    def took(self, plugin: str, point: str, status: Status, seconds: float) -> None:
        self._metrics.plugins.observe((plugin, point, status.code_name), seconds)
        self._metrics.points.observe((point, status.code_name, self._profile), seconds)


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
