"""Metrics of the webhooks (spec 04 §19)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from koordlet.app.clock import SYSTEM_CLOCK, Clock
from koordlet.app.metrics import MetricSet

MUTATE, VALIDATE = "mutate", "validate"
_LATENCY = (0.0005, 0.001, 0.0025, *Histogram.DEFAULT_BUCKETS)
"""The budget is 5 ms, the first of the usual ones."""
_BUCKETS = tuple(0.001 * 2**i for i in range(20))


class Verdict:
    """What a plug-in decided; set `rejected` to count it as refused."""

    rejected = False


class WebhookMetrics(MetricSet):
    """On the internal registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.duration = Histogram(
            "koord_manager_webhook_webhook_duration_milliseconds", "Time a plug-in of a webhook took, ms.",
            ["webhook_type", "object_type", "operation", "plugin_name", "status"], buckets=_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self.shared_weight = Gauge(
            "koord_manager_webhook_quota_shared_weight", "Shared weight that was defaulted.",
            ["elasticquota_name", "resource_name"], registry=registry,
        )  # fmt: skip
        self.bindings = Counter(
            "koord_manager_webhook_binding_admission_decisions_total", "Decisions on bindings.", ["decision"],
            registry=registry,
        )  # fmt: skip

    @contextmanager
    def plugin(
        self, webhook_type: str, object_type: str, operation: str, name: str, clock: Clock = SYSTEM_CLOCK
    ) -> Iterator[Verdict]:
        """Measure one plug-in: `with metrics.plugin(MUTATE, "pod", request.operation, "…") as verdict:`."""
        begun, verdict = clock.monotonic(), Verdict()
        try:
            yield verdict
        except BaseException:
            verdict.rejected = True
            raise
        finally:
            status = "rejected" if verdict.rejected else "allowed"
            self.duration.labels(webhook_type, object_type, operation, name, status).observe(
                (clock.monotonic() - begun) * 1e3
            )


class ServerMetrics(MetricSet):
    """On the framework registry, with controller-runtime's names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "controller_runtime_webhook_requests_total", "Admission requests by HTTP status.", ["webhook", "code"],
            registry=registry,
        )  # fmt: skip
        self.latency = Histogram(
            "controller_runtime_webhook_latency_seconds", "Time to answer an admission request.", ["webhook"],
            buckets=_LATENCY, registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge(
            "controller_runtime_webhook_requests_in_flight", "Admission requests being answered.", ["webhook"],
            registry=registry,
        )  # fmt: skip
        self.panics = Counter(
            "controller_runtime_webhook_panics_total", "Handlers that raised; answered with 500.", registry=registry
        )
