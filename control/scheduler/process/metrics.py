"""The scheduler's metrics: kube-scheduler's names, which dashboards know, and Koordinator's (spec 05 §16)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from control.scheduler.cycle.pluginevaluations import PluginEvaluations
from control.scheduler.framework.profile import Framework
from control.scheduler.framework.status import PluginStatus
from control.scheduler.framework.timing import PluginTimer, SecondsHistogram
from koordlet.app.gates import FeatureGates
from koordlet.app.metrics import MetricSet, ScrapedMetrics, unsuffixed_counter

_PREFIX: Final = "scheduler_"

ReadGauge = Callable[[], Mapping[Any, float]]
"""Label values (a tuple of texts) -> value."""


def exponential(first: float, factor: float, count: int) -> tuple[float, ...]:
    """`count` bucket bounds: `first`, `first * factor`, …"""
    return tuple(first * factor**step for step in range(count))


class SchedulerMetrics(MetricSet):
    """Counters and histograms; for gauges see `StateGauges`."""

    timeouts = unsuffixed_counter(_PREFIX + "scheduling_timeout", "Scheduling attempts that took too long.", "profile")

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(_PREFIX + name, text, labels, buckets=buckets, registry=registry)

        seconds = exponential(0.001, 2, 15)
        self.attempts = counter("schedule_attempts_total", "Scheduling attempts, by result.", "result", "profile")
        self.attempt_seconds = histogram(
            "scheduling_attempt_duration_seconds",
            "Duration of a scheduling attempt without binding.",
            seconds,
            "result",
            "profile",
        )
        self.algorithm_seconds = histogram(
            "scheduling_algorithm_duration_seconds", "Duration of a scheduling cycle that found a node.", seconds
        )
        self.incoming = counter(
            "queue_incoming_pods_total", "Pods added to a part of the scheduling queue, by event.", "queue", "event"
        )
        self.pod_attempts = histogram(
            "pod_scheduling_attempts", "Attempts until the pod was bound.", exponential(1, 2, 5)
        )
        self.sli_seconds = histogram(
            "pod_scheduling_sli_duration_seconds",
            "Time from the first attempt of a pod until it was bound.",
            exponential(0.01, 2, 20),
            "attempts",
        )
        self.evaluated = histogram(
            "pod_scheduling_evaluated_nodes", "Nodes evaluated for a scheduled pod.", exponential(1, 2, 24)
        )
        self.feasible = histogram(
            "pod_scheduling_feasible_nodes", "Feasible nodes of a scheduled pod.", exponential(1, 2, 24)
        )
        self.preemption_attempts = counter("preemption_attempts_total", "Preemption attempts.")
        self.preemption_victims = histogram("preemption_victims", "Victims of one preemption.", exponential(1, 2, 7))
        self.permit_wait = histogram(
            "permit_wait_duration_seconds", "Duration of the wait at Permit.", seconds, "result"
        )

        def quick(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> SecondsHistogram:
            return SecondsHistogram(registry, _PREFIX + name, text, labels, buckets)

        self.points = quick(
            "framework_extension_point_duration_seconds",
            "Duration of all plugins at an extension point (every tenth cycle).",
            exponential(0.0001, 2, 12),
            "extension_point",
            "status",
            "profile",
        )
        plugin_seconds = exponential(1e-5, 1.5, 20)
        self.plugins = quick(
            "plugin_execution_duration_seconds",
            "Duration of a plugin at an extension point (every tenth cycle).",
            plugin_seconds,
            "plugin",
            "extension_point",
            "status",
        )
        self.hints = quick(
            "queueing_hint_execution_duration_seconds",
            "Duration of a queueing hint (every tenth call).",
            plugin_seconds,
            "plugin",
            "event",
            "hint",
        )
        self.handled = quick(
            "event_handling_duration_seconds",
            "Duration of handling a cluster event in the scheduling queue.",
            exponential(0.0001, 2, 12),
            "event",
        )
        self.next_pod = quick(
            "next_pod_delete_from_queue_latency",
            "Duration of removing a pod from the queue that a plugin wants to be scheduled next.",
            exponential(1e-5, 2, 24),
        )
        self.evaluations = PluginEvaluations(registry)
        self.eviction_failures = counter("preemption_failures_total", "Victims that could not be deleted.")
        self.patch_failures = counter("pod_status_patch_failures_total", "Failed writes of pod conditions.")

    def observe_preemption(self, victims: int) -> None:
        """0: a preemption attempt begins. Otherwise the number of victims of a successful attempt."""
        if victims:
            self.preemption_victims.observe(victims)
        else:
            self.preemption_attempts.inc()

    def timer(self, framework: Framework) -> PluginTimer:
        """The timer for the plugins of a profile."""
        return PluginTimer(framework, self.plugins, self.points)


class BindingTimes:
    """Durations of the bindings of a profile (`binding.BindTimings`)."""

    def __init__(self, metrics: SchedulerMetrics, profile: str) -> None:
        self._metrics = metrics
        self._profile = profile

    def permit_waited(self, status: PluginStatus, seconds: float) -> None:
        self._metrics.permit_wait.labels(status.code_name).observe(seconds)

    def took(self, plugin: str, point: str, status: PluginStatus, seconds: float) -> None:
        self._metrics.plugins.observe((plugin, point, status.code_name), seconds)
        self._metrics.points.observe((point, status.code_name, self._profile), seconds)


class StateGauges(ScrapedMetrics[list[tuple[str, str, tuple[str, ...], ReadGauge]]]):
    """Gauges that are read when metrics are collected. Each function returns label values -> value."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, [])

    def add(self, name: str, text: str, labels: tuple[str, ...], read: ReadGauge) -> None:
        self.source.append((_PREFIX + name, text, labels, read))

    def collect(self) -> Iterator[Metric]:
        for name, text, labels, read in self.source:
            family = GaugeMetricFamily(name, text, labels=labels)
            for values, value in sorted(read().items()):
                family.add_metric(list(values), value)
            yield family


class FeatureGateMetrics(ScrapedMetrics[FeatureGates]):
    """The feature gates of this scheduler, in the form of Kubernetes' components."""

    def collect(self) -> Iterator[Metric]:
        text = "Whether a feature gate is enabled, by stage (empty: GA)."
        family = GaugeMetricFamily("kubernetes_feature_enabled", text, labels=("name", "stage"))
        stages = self.source.stages()
        for name, enabled in self.source.values().items():
            stage = stages[name]
            family.add_metric([name, "" if stage == "ga" else stage.upper()], float(enabled))
        yield family
