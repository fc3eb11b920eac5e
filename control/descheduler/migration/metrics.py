"""Metrics of migrations (spec 07 §13). Evictions count in `DeschedulerMetrics.evicted`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from koordlet.app.metrics import MetricSet


class MigrationMetrics(MetricSet):
    """The states of the jobs, set after each round of arbitration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = Gauge("descheduler_pod_migration_jobs", "PodMigrationJobs by phase.", ["phase"], registry=registry)
        self.waiting = Gauge(
            "descheduler_arbitration_waiting", "PodMigrationJobs that wait for arbitration.", registry=registry
        )
