"""The recommender's metric families, on the internal registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from koordlet.app.metrics import MetricSet

_PREFIX = "koord_manager_recommender"


class RecommenderMetrics(MetricSet):
    """Metrics on the internal registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.recommendations = Gauge(
            f"{_PREFIX}_recommendations",
            "Recommendations by update mode; Unsupported: invalid mode.",
            ["mode"],
            registry=registry,
        )
        self.models = Gauge(f"{_PREFIX}_models", "Containers with a usage model.", registry=registry)
        self.samples = Counter(f"{_PREFIX}_samples_total", "Usage samples added to models.", registry=registry)
        self.reports = Counter(
            f"{_PREFIX}_reports_refused_total",
            "NodeMetrics ignored because they are stale or from the future.",
            ["reason"],
            registry=registry,
        )
        self.kills = Counter(f"{_PREFIX}_oom_kills_total", "OOM kills added to models.", registry=registry)
        self.writes = Counter(
            f"{_PREFIX}_status_writes_total",
            "Status writes by result: written, conflict, failed.",
            ["result"],
            registry=registry,
        )
        self.checkpoints = Counter(f"{_PREFIX}_checkpoints_refused_total", "Invalid checkpoints.", registry=registry)
        self.applied = Counter(f"{_PREFIX}_applied_total", "New pods that got recommended requests.", registry=registry)
        self.evictions = Counter(
            f"{_PREFIX}_evictions_total",
            "Requested evictions by result: evicted, refused (by a disruption budget), gone, failed.",
            ["result"],
            registry=registry,
        )
