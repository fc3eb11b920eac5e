"""Metrics of migrations (spec 07 §13). Evictions count in `DeschedulerMetrics.evicted`."""

from __future__ import annotations

from koordlet.app.metrics import MetricSet, gauge


class MigrationMetrics(MetricSet):
    """The states of the jobs, set after each round of arbitration."""

    jobs = gauge("descheduler_pod_migration_jobs", "PodMigrationJobs by phase.", "phase")
    waiting = gauge("descheduler_arbitration_waiting", "PodMigrationJobs that wait for arbitration.")
