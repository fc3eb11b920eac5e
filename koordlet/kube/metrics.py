"""Metrics of API access."""

from __future__ import annotations

from koordlet.app.metrics import MetricSet, counter, gauge, histogram


class ClientMetrics(MetricSet):
    """Requests by verb and outcome; `code` is the HTTP code, or `error` without an answer."""

    requests = counter("koord_kube_requests_total", "Requests to the API server.", "verb", "code")
    duration = histogram(
        "koord_kube_request_duration_seconds", "Time to the complete answer (watches: to the first byte).", "verb"
    )
    throttled = counter("koord_kube_throttled_seconds_total", "Time spent waiting for the client's rate limit.")
    retries = counter("koord_kube_retries_total", "Retried requests.", "verb")


class InformerMetrics(MetricSet):
    """State and traffic of each informer, by its name."""

    objects = gauge("koord_informer_objects", "Objects in the store.", "informer")
    events = counter("koord_informer_events_total", "Watch events received.", "informer", "type")
    relists = counter("koord_informer_relists_total", "Complete lists, including the first.", "informer")
    watch_errors = counter("koord_informer_watch_errors_total", "Lists and watches that failed.", "informer", "reason")
    handler_errors = counter("koord_informer_handler_errors_total", "Handlers that raised.", "informer")
    decode_errors = counter("koord_informer_decode_errors_total", "Objects that could not be decoded.", "informer")
    last_event = gauge(
        "koord_informer_last_event_timestamp_seconds", "Unix time of the last list, event or bookmark.", "informer"
    )


class QueueMetrics(MetricSet):
    """Work queues, by name."""

    depth = gauge("koord_workqueue_depth", "Items ready to be processed.", "queue")
    adds = counter("koord_workqueue_adds_total", "Items added.", "queue")
    retries = counter("koord_workqueue_retries_total", "Items added again after failure.", "queue")
    latency = histogram("koord_workqueue_queue_duration_seconds", "Time that items wait in the queue.", "queue")
    work = histogram("koord_workqueue_work_duration_seconds", "Time to process an item.", "queue")
    unfinished = gauge(
        "koord_workqueue_unfinished_work_seconds",
        "Time that the items in progress have taken so far, added up.",
        "queue",
    )
    longest = gauge(
        "koord_workqueue_longest_running_processor_seconds",
        "Time that the oldest item in progress has taken so far.",
        "queue",
    )


class EventMetrics(MetricSet):
    """The event recorder."""

    events = counter("koord_events_total", "Events by outcome: sent, merged, filtered, dropped, failed.", "outcome")


class LeaderMetrics(MetricSet):
    """Leader election, by lease."""

    is_leader = gauge("koord_leader", "1 while this process is the leader.", "lease")
    transitions = counter("koord_leader_changes_total", "Observed changes of the leader.", "lease")
    renew_failures = counter("koord_leader_renew_failures_total", "Failed attempts to renew the lease.", "lease")
