"""The metric families of job queueing, on the internal registry."""

from __future__ import annotations

from typing import Final

from koordlet.app.metrics import MetricSet, counter, gauge, histogram

_WAITS_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)


class QueueingMetrics(MetricSet):
    """`queue`: a Queue or ElasticQuota that exists, otherwise `unknown`: tenants choose the names."""

    units = gauge("koord_manager_queue_units", "QueueUnits by phase.", "queue", "phase")
    admissions = counter("koord_manager_queue_admissions_total", "Jobs that a quota admitted.", "queue")
    timeouts = counter("koord_manager_queue_timeouts_total", "Jobs that were not running in time after admission.")
    wait_seconds = histogram(
        "koord_manager_queue_wait_seconds", "Time from the creation of a QueueUnit to its admission.", buckets=_WAITS_S
    )
