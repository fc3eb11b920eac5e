"""The recommender's metric families, on the internal registry."""

from __future__ import annotations

from koordlet.app.metrics import MetricSet, counter, gauge

_PREFIX = "koord_manager_recommender"


class RecommenderMetrics(MetricSet):
    """Metrics on the internal registry."""

    recommendations = gauge(
        f"{_PREFIX}_recommendations", "Recommendations by update mode; Unsupported: invalid mode.", "mode"
    )
    models = gauge(f"{_PREFIX}_models", "Containers with a usage model.")
    samples = counter(f"{_PREFIX}_samples_total", "Usage samples added to models.")
    reports = counter(
        f"{_PREFIX}_reports_refused_total", "NodeMetrics ignored because they are stale or from the future.", "reason"
    )
    kills = counter(f"{_PREFIX}_oom_kills_total", "OOM kills added to models.")
    writes = counter(f"{_PREFIX}_status_writes_total", "Status writes by result: written, conflict, failed.", "result")
    checkpoints = counter(f"{_PREFIX}_checkpoints_refused_total", "Invalid checkpoints.")
    applied = counter(f"{_PREFIX}_applied_total", "New pods that got recommended requests.")
    evictions = counter(
        f"{_PREFIX}_evictions_total",
        "Requested evictions by result: evicted, refused (by a disruption budget), gone, failed.",
        "result",
    )
