"""The manager's own metric families (spec 04 §19), on the internal registry, and client-go's names for shared families.

`ClientGoNames` exports the metrics of work queues, API requests and the lease a second time under the names that the
dashboards of client-go and controller-runtime use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from koordlet.app.metrics import MetricSet, UnsuffixedCounter
from koordlet.kube.metrics import ClientMetrics, LeaderMetrics, QueueMetrics

_QUEUE = {"name": "queue", "controller": "queue"}
_CALL, _DURATION = {"method": "verb", "code": "code"}, {"verb": "verb"}
_LEASE = {"name": "lease"}
"""Label of client-go -> label of the same value here."""

SUCCEEDED, FAILED = "succeeded", "failed"


class ManagerMetrics(MetricSet):
    """Counters by status (succeeded, failed) and reason (the step)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["status", "reason"]
        self.is_leader = Gauge(
            "koordinator_manager_is_leader", "1 while this replica is the leader.", registry=registry
        )
        self.node_resource = UnsuffixedCounter(
            "slo_controller_node_resource_reconcile_count",
            "Steps of the noderesource controller.",
            labels,
            registry=registry,
        )
        self.node_metric = UnsuffixedCounter(
            "slo_controller_nodemetric_reconcile_count",
            "Steps of the nodemetric controller.",
            labels,
            registry=registry,
        )
        self.node_metric_parse = UnsuffixedCounter(
            "slo_controller_nodemetric_spec_parse_count", "Collect policies computed.", labels, registry=registry
        )
        self.node_slo = UnsuffixedCounter(
            "slo_controller_nodeslo_reconcile_count", "Steps of the nodeslo controller.", labels, registry=registry
        )
        self.node_slo_parse = UnsuffixedCounter(
            "slo_controller_nodeslo_spec_parse_count", "Parts of NodeSLO computed.", labels, registry=registry
        )
        self.plugins = UnsuffixedCounter(
            "slo_controller_node_resource_run_plugin_status",
            "Stages run by noderesource plug-ins.",
            ["plugin", "status", "reason"],
            registry=registry,
        )


class ClientGoNames(Collector):
    """See the module docstring; reads the metric sets of `registry` and registers itself there. `host` is the API
    server's address, a label of client-go's request counters."""

    def __init__(self, registry: CollectorRegistry, host: str) -> None:
        queue, client, lease = QueueMetrics.of(registry), ClientMetrics.of(registry), LeaderMetrics.of(registry)
        self._host = host
        self._families: tuple[tuple[Collector, str, Mapping[str, str]], ...] = (
            (queue.depth, "workqueue_depth", _QUEUE),
            (queue.adds, "workqueue_adds", _QUEUE),
            (queue.retries, "workqueue_retries", _QUEUE),
            (queue.latency, "workqueue_queue_duration_seconds", _QUEUE),
            (queue.work, "workqueue_work_duration_seconds", _QUEUE),
            (queue.unfinished, "workqueue_unfinished_work_seconds", _QUEUE),
            (queue.longest, "workqueue_longest_running_processor_seconds", _QUEUE),
            (client.requests, "rest_client_requests", _CALL),
            (client.duration, "rest_client_request_duration_seconds", _DURATION),
            (lease.is_leader, "leader_election_master_status", _LEASE),
        )
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        for collector, name, _ in self._families:
            for metric in collector.collect():
                yield Metric(name, metric.documentation, metric.type)

    def collect(self) -> Iterator[Metric]:
        for collector, name, label_of in self._families:
            constant = {"host": self._host} if name.startswith("rest_client_") else {}
            for metric in collector.collect():
                renamed = Metric(name, metric.documentation, metric.type)
                for sample in metric.samples:
                    labels = {**constant, **{new: sample.labels[old] for new, old in label_of.items()}}
                    if "le" in sample.labels:
                        labels["le"] = sample.labels["le"]
                    renamed.samples.append(
                        sample._replace(name=name + sample.name.removeprefix(metric.name), labels=labels)
                    )
                yield renamed
