"""Metrics of the webhooks (spec 04 §19)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Histogram

from koordlet.app.metrics import MetricSet, counter, gauge, histogram

MUTATE, VALIDATE = "mutate", "validate"
_LATENCY = (0.0005, 0.001, 0.0025, *Histogram.DEFAULT_BUCKETS)
"""The target latency is 5 ms, the first of the default buckets; the additional ones resolve it."""
_BUCKETS = tuple(0.001 * 2**i for i in range(20))


class AdmissionOutcome:
    """The result of a plug-in; set `rejected` to count it as rejected."""

    rejected = False


class WebhookMetrics(MetricSet):
    """Metrics on the internal registry."""

    duration = histogram(
        "koord_manager_webhook_webhook_duration_milliseconds",
        "Duration of a webhook plug-in in milliseconds.",
        "webhook_type",
        "object_type",
        "operation",
        "plugin_name",
        "status",
        buckets=_BUCKETS,
    )
    shared_weight = gauge(
        "koord_manager_webhook_quota_shared_weight",
        "Defaulted shared weight of a quota.",
        "elasticquota_name",
        "resource_name",
    )
    bindings = counter(
        "koord_manager_webhook_binding_admission_decisions_total", "Decisions of binding admission.", "decision"
    )

    @contextmanager
    def plugin(self, webhook_type: str, object_type: str, operation: str, name: str) -> Iterator[AdmissionOutcome]:
        """Measure one plug-in: `with metrics.plugin(MUTATE, "pod", request.operation, "…") as outcome:`."""
        started, outcome = time.monotonic(), AdmissionOutcome()
        try:
            yield outcome
        except BaseException:
            outcome.rejected = True
            raise
        finally:
            status = "rejected" if outcome.rejected else "allowed"
            self.duration.labels(webhook_type, object_type, operation, name, status).observe(
                (time.monotonic() - started) * 1e3
            )


class ServerMetrics(MetricSet):
    """Metrics on the framework registry, with controller-runtime's names."""

    requests = counter(
        "controller_runtime_webhook_requests_total", "Admission requests by HTTP status.", "webhook", "code"
    )
    latency = histogram(
        "controller_runtime_webhook_latency_seconds", "Duration of an admission request.", "webhook", buckets=_LATENCY
    )
    in_flight = gauge("controller_runtime_webhook_requests_in_flight", "Admission requests in progress.", "webhook")
    panics = counter("controller_runtime_webhook_panics_total", "Handlers that raised an exception; answered with 500.")
