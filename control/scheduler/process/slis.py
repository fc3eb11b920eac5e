"""/metrics/slis: how often each health check was asked, and what it said last, as Kubernetes components count it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from koordlet.app.health import CheckResult


class HealthSlis:
    """`observe` is called by the server for every check that somebody asks for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("name", "type")
        self._last = Gauge("kubernetes_healthcheck", "The last result of a check.", labels, registry=self.registry)
        self._all = Counter(
            "kubernetes_healthchecks_total", "Results of checks.", (*labels, "status"), registry=self.registry
        )

    def observe(self, page: str, result: CheckResult) -> None:
        """`page`: healthz, livez or readyz."""
        self._last.labels(result.name, page).set(result.ok)
        self._all.labels(result.name, page, "success" if result.ok else "error").inc()
