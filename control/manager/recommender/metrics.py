"""The recommender's families, on the internal registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from koordlet.app.metrics import MetricSet

_PREFIX = "koord_manager_recommender"


class RecommenderMetrics(MetricSet):
    """See the help texts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.recommendations = Gauge(
            f"{_PREFIX}_recommendations", "Recommendations by update mode; Unsupported: not usable.",
            ["mode"], registry=registry,
        )  # fmt: skip
        self.models = Gauge(f"{_PREFIX}_models", "Containers that something is known of.", registry=registry)
        self.samples = Counter(f"{_PREFIX}_samples_total", "Samples of usage taken.", registry=registry)
        self.reports = Counter(
            f"{_PREFIX}_reports_refused_total", "NodeMetrics not used because they are stale or from the future.",
            ["reason"], registry=registry,
        )  # fmt: skip
        self.kills = Counter(f"{_PREFIX}_oom_kills_total", "Kills for lack of memory taken in.", registry=registry)
        self.writes = Counter(
            f"{_PREFIX}_status_writes_total", "Writes of a status: written, conflict, failed.", ["result"],
            registry=registry,
        )  # fmt: skip
        self.checkpoints = Counter(
            f"{_PREFIX}_checkpoints_refused_total",
            "Checkpoints that could not be used.",
            registry=registry,
        )
        self.applied = Counter(f"{_PREFIX}_applied_total", "New pods given recommended requests.", registry=registry)
        self.evictions = Counter(
            f"{_PREFIX}_evictions_total", "Evictions asked for: evicted, refused (by a disruption budget), failed.",
            ["result"], registry=registry,
        )  # fmt: skip
