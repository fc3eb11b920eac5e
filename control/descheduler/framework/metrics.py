"""The metrics of the descheduler (spec 07 §13)."""

from __future__ import annotations

from koordlet.app.metrics import MetricSet, counter, gauge, histogram, unsuffixed_counter

_PASS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class DeschedulerMetrics(MetricSet):
    """Counters of evictions and passes. The migration controller has metrics of its own."""

    evicted = unsuffixed_counter(
        "descheduler_pods_evicted",
        "Evicted pods, by result, the plugin that decided, and the pod's namespace and node.",
        "result",
        "strategy",
        "namespace",
        "node",
    )
    pass_seconds = histogram("descheduler_loop_duration_seconds", "Duration of a pass.", buckets=_PASS_BUCKETS)
    plugin_seconds = histogram(
        "descheduler_strategy_duration_seconds",
        "Duration of a plugin in a pass.",
        "strategy",
        "profile",
        buckets=_PASS_BUCKETS,
    )
    failures = counter("descheduler_strategy_failures_total", "Passes in which a plugin failed.", "strategy", "profile")
    planned = counter(
        "descheduler_dry_run_evictions_total", "Evictions that a dry run would have made.", "strategy", "profile"
    )
    last_pass = gauge("descheduler_last_pass_timestamp_seconds", "Unix time at which the last pass ended.")
