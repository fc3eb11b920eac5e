"""Client-go's names for shared metric families, and the version of the program under Kubernetes' name.

`ClientGoNames` exports the metrics of work queues, API requests and the lease a second time under the names that the
dashboards of client-go and controller-runtime use.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from koordlet.app.version import commit
from koordlet.kube.metrics import ClientMetrics, LeaderMetrics, QueueMetrics
from koordlet.version import VERSION

_QUEUE = {"name": "queue", "controller": "queue"}
_CALL, _DURATION = {"method": "verb", "code": "code"}, {"verb": "verb"}
_LEASE = {"name": "lease"}
"""Label of client-go -> label of the same value here."""


class ClientGoNames(Collector):
    """See the module text; reads the metric sets of `registry` and registers itself there. `host` is the API
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


def register_build_info(registry: CollectorRegistry) -> None:
    """`kubernetes_build_info`, with the labels of Kubernetes' components; those about Go are empty."""
    major, minor, _ = VERSION.split(".", 2)
    labels = {
        "major": major,
        "minor": minor,
        "git_version": f"v{VERSION}",
        "git_commit": commit(),
        "git_tree_state": "",
        "build_date": "",
        "go_version": "",
        "compiler": platform.python_implementation(),
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }
    info = Gauge("kubernetes_build_info", "1; the labels tell the version.", list(labels), registry=registry)
    info.labels(**labels).set(1)
