"""/metrics/slis: calls and last result of each health check, with the metrics of Kubernetes components."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from koordlet.app.health import CheckResult


class HealthSlis:
    """The server calls `observe` for every check in a response."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("name", "type")
        self._last = Gauge(
            "kubernetes_healthcheck", "Last result of a health check (1: ok).", labels, registry=self.registry
        )
        self._all = Counter(
            "kubernetes_healthchecks_total", "Results of health checks.", (*labels, "status"), registry=self.registry
        )

    def observe(self, page: str, result: CheckResult) -> None:
        """`page`: healthz, livez or readyz."""
        self._last.labels(result.name, page).set(result.ok)
        self._all.labels(result.name, page, "success" if result.ok else "error").inc()
