"""How long gangs' turns take and how many groups wait, under Koordinator's names (spec 05 §16.1)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, Histogram

from koordlet.app.metrics import MetricSet

_SECONDS = (0.1, 0.5, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 45, 60, 120)


class GangMetrics(MetricSet):
    """`reason`: why the turn ended; `job_size`: members that were tried, in hundreds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.turn_seconds = Histogram(
            "scheduler_gang_schedule_cycle_duration_seconds",
            "Time from the first to the last member of a gang group's turn.",
            ["reason", "job_size"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.waiting_groups = Gauge(
            "scheduler_waiting_gang_group_number", "Gang groups with members parked at Permit.", registry=registry
        )


def job_size(members: int) -> str:
    """`0`, `1-100`, `101-200` … `901-1000`, `1000+`."""
    if members <= 0:
        return "0"
    if members > 1000:
        return "1000+"
    low = (members - 1) // 100 * 100
    return f"{low + 1}-{low + 100}"
