"""Metrics of API access."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from koordlet.app.metrics import MetricSet


class ClientMetrics(MetricSet):
    """Requests by verb and outcome; `code` is the HTTP code, or `error` without an answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "koord_kube_requests_total", "Requests to the API server.", ["verb", "code"], registry=registry
        )
        self.duration = Histogram(
            "koord_kube_request_duration_seconds",
            "Time to the complete answer (watches: to the first byte).",
            ["verb"],
            registry=registry,
        )
        self.throttled = Counter(
            "koord_kube_throttled_seconds_total", "Time spent waiting for the client's rate limit.", registry=registry
        )
        self.retries = Counter("koord_kube_retries_total", "Retried requests.", ["verb"], registry=registry)


class InformerMetrics(MetricSet):
    """State and traffic of each informer, by its name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        label = ["informer"]
        self.objects = Gauge("koord_informer_objects", "Objects in the store.", label, registry=registry)
        self.events = Counter(
            "koord_informer_events_total", "Watch events received.", [*label, "type"], registry=registry
        )
        self.relists = Counter(
            "koord_informer_relists_total", "Complete lists, including the first.", label, registry=registry
        )
        self.watch_errors = Counter(
            "koord_informer_watch_errors_total", "Lists and watches that failed.", [*label, "reason"], registry=registry
        )
        self.handler_errors = Counter(
            "koord_informer_handler_errors_total", "Handlers that raised.", label, registry=registry
        )
        self.decode_errors = Counter(
            "koord_informer_decode_errors_total", "Objects that could not be decoded.", label, registry=registry
        )
        self.last_event = Gauge(
            "koord_informer_last_event_timestamp_seconds",
            "Unix time of the last list, event or bookmark.",
            label,
            registry=registry,
        )


class QueueMetrics(MetricSet):
    """Work queues, by name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        label = ["queue"]
        self.depth = Gauge("koord_workqueue_depth", "Items ready to be processed.", label, registry=registry)
        self.adds = Counter("koord_workqueue_adds_total", "Items added.", label, registry=registry)
        self.retries = Counter(
            "koord_workqueue_retries_total", "Items added again after failure.", label, registry=registry
        )
        self.latency = Histogram(
            "koord_workqueue_queue_duration_seconds", "Time that items wait in the queue.", label, registry=registry
        )
        self.work = Histogram(
            "koord_workqueue_work_duration_seconds", "Time to process an item.", label, registry=registry
        )
        self.unfinished = Gauge(
            "koord_workqueue_unfinished_work_seconds",
            "Time that the items in progress have taken so far, added up.",
            label,
            registry=registry,
        )
        self.longest = Gauge(
            "koord_workqueue_longest_running_processor_seconds",
            "Time that the oldest item in progress has taken so far.",
            label,
            registry=registry,
        )


class EventMetrics(MetricSet):
    """The event recorder."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "koord_events_total",
            "Events by outcome: sent, merged, filtered, dropped, failed.",
            ["outcome"],
            registry=registry,
        )


class LeaderMetrics(MetricSet):
    """Leader election, by lease."""

    def __init__(self, registry: CollectorRegistry) -> None:
        label = ["lease"]
        self.is_leader = Gauge("koord_leader", "1 while this process is the leader.", label, registry=registry)
        self.transitions = Counter(
            "koord_leader_changes_total", "Observed changes of the leader.", label, registry=registry
        )
        self.renew_failures = Counter(
            "koord_leader_renew_failures_total", "Failed attempts to renew the lease.", label, registry=registry
        )
