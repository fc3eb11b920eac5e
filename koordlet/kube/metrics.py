"""Metrics of API access."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from koordlet.app.metrics import MetricSet


class ClientMetrics(MetricSet):
    """Requests by verb and outcome; `code` is the HTTP code or `error` when there was no answer."""

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
            "koord_kube_throttled_seconds_total", "Time spent waiting for our own rate limit.", registry=registry
        )
        self.retries = Counter("koord_kube_retries_total", "Requests sent again.", ["verb"], registry=registry)


class InformerMetrics(MetricSet):
    """State and traffic of each informer, by its name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        one = ["informer"]
        self.objects = Gauge("koord_informer_objects", "Objects in the store.", one, registry=registry)
        self.events = Counter(
            "koord_informer_events_total", "Watch events received.", [*one, "type"], registry=registry
        )
        self.relists = Counter(
            "koord_informer_relists_total", "Complete lists, the first included.", one, registry=registry
        )
        self.watch_errors = Counter(
            "koord_informer_watch_errors_total", "Lists and watches that failed.", [*one, "reason"], registry=registry
        )
        self.handler_errors = Counter(
            "koord_informer_handler_errors_total", "Handlers that raised.", one, registry=registry
        )
        self.decode_errors = Counter(
            "koord_informer_decode_errors_total", "Objects that could not be decoded.", one, registry=registry
        )
        self.last_event = Gauge(
            "koord_informer_last_event_timestamp_seconds",
            "Unix time of the last sign of life: list, event or bookmark.",
            one,
            registry=registry,
        )


class QueueMetrics(MetricSet):
    """Work queues, by name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        one = ["queue"]
        self.depth = Gauge("koord_workqueue_depth", "Items ready to be worked on.", one, registry=registry)
        self.adds = Counter("koord_workqueue_adds_total", "Items added.", one, registry=registry)
        self.retries = Counter(
            "koord_workqueue_retries_total", "Items added again after failure.", one, registry=registry
        )
        self.latency = Histogram(
            "koord_workqueue_queue_duration_seconds", "Time from ready to taken.", one, registry=registry
        )
        self.work = Histogram(
            "koord_workqueue_work_duration_seconds", "Time from taken to done.", one, registry=registry
        )


class EventMetrics(MetricSet):
    """The event recorder."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "koord_events_total",
            "Events by what became of them: sent, merged, filtered, dropped, failed.",
            ["outcome"],
            registry=registry,
        )


class LeaderMetrics(MetricSet):
    """Leader election, by lease."""

    def __init__(self, registry: CollectorRegistry) -> None:
        one = ["lease"]
        self.is_leader = Gauge("koord_leader", "1 while this process leads.", one, registry=registry)
        self.transitions = Counter(
            "koord_leader_changes_total", "Changes of leader that were observed.", one, registry=registry
        )
        self.renew_failures = Counter(
            "koord_leader_renew_failures_total", "Attempts to renew that failed.", one, registry=registry
        )
