"""Durations of gang rounds and number of waiting gang groups, with Koordinator's names (spec 05 §16.1)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from koordlet.app.metrics import MetricSet, gauge, histogram

IDLE_SERIES_S = 300.0
_ROUND_BUCKETS_S = (0.1, 0.5, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 45, 60, 120)


class GangMetrics(MetricSet):
    """`reason`: why the round ended; `job_size`: number of members that were tried, in hundreds."""

    round_seconds = histogram(
        "scheduler_gang_schedule_cycle_duration_seconds",
        "Duration of a scheduling round of a gang group.",
        "reason",
        "job_size",
        buckets=_ROUND_BUCKETS_S,
    )
    waiting_groups = gauge("scheduler_waiting_gang_group_number", "Gang groups with members held at Permit.")


class PreemptionMetrics(MetricSet):
    """Durations of preemption for gangs. A series without observations for five minutes is dropped."""

    _seconds = histogram(
        "scheduler_job_preemption_duration_seconds",
        "Duration of planning preemption for a gang group.",
        "jobName",
        "result",
        buckets=[0.001 * 2**n for n in range(20)],
    )

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._seen: dict[tuple[str, str], float] = {}

    def observe(self, job: str, result: str, seconds: float, now: float) -> None:
        """`now`: monotonic seconds. Each call drops idle series; there are few."""
        for labels in [labels for labels, seen in self._seen.items() if now - seen >= IDLE_SERIES_S]:
            del self._seen[labels]
            self._seconds.remove(*labels)
        self._seen[job, result] = now
        self._seconds.labels(job, result).observe(seconds)


def job_size(members: int) -> str:
    """`0`, `1-100`, `101-200` … `901-1000`, `1000+`."""
    if members <= 0:
        return "0"
    if members > 1000:
        return "1000+"
    low = (members - 1) // 100 * 100
    return f"{low + 1}-{low + 100}"
