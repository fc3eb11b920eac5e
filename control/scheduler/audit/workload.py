"""The record of one audited workload: its events, the metrics derived from them, and warnings (spec 05 §7.4).

A workload is a pod or a gang group. Its record begins with `create` and ends with an outcome. In between, events are
counted, the time between them is observed, and failed preemption is counted and logged. The only I/O is metrics and the
log. Times are monotonic seconds.
"""

from __future__ import annotations

import re
from collections import Counter as Counts
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from control.scheduler.process.metrics import exponential
from koordlet.app.logging import get_logger

log = get_logger(__name__)


class WorkloadEvent(StrEnum):
    """Events of a workload; the values are the label `event_type`."""

    CREATE = "create"
    GATED = "gatedByQueueAdmission"
    ADMITTED = "admissionPassed"
    COMPLETE = "gangMinMemberSatisfied"
    SCHEDULED = "scheduled"
    NOMINATED = "preemptNominated"
    DELETING = "preemptVictimDeleting"
    PREEMPT_FAILED = "preemptFailure"
    FAILED = "scheduleFailure"
    ALL_ATTEMPTED = "gangAllPodsAlreadyAttempted"
    VICTIMS_GONE = "victimAllDeleted"


_STARTS: Final = frozenset((WorkloadEvent.CREATE, WorkloadEvent.ADMITTED, WorkloadEvent.COMPLETE))
_INVALIDATE: Final = frozenset((WorkloadEvent.NOMINATED, WorkloadEvent.PREEMPT_FAILED, WorkloadEvent.FAILED))
_RETRIED: Final = _INVALIDATE | {WorkloadEvent.SCHEDULED}
"""Events that end a preemption, and the wait of a workload whose victims are gone."""


@dataclass(frozen=True)
class AuditLimits:
    """Durations (seconds) and attempts above which a warning is logged."""

    reschedule: float = 10.0
    deletion: float = 30.0
    retries: int = 3
    interval: float = 300.0


class AuditMetrics:
    """Koordinator's metrics. Each series has the priority class of the workload and the configured pod labels."""

    def __init__(self, registry: CollectorRegistry, labels: Sequence[str] = ()) -> None:
        own = ("priority", *map(label_name, labels))

        def counter(name: str, text: str) -> Counter:
            return Counter("scheduler_workload_auditor_" + name, text, own, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *more: str) -> Histogram:
            return Histogram(
                "scheduler_workload_auditor_" + name, text, (*own, *more), buckets=buckets, registry=registry
            )

        seconds = exponential(0.1, 2, 15)
        self.repeated = counter("repeated_preemptions_total", "Second and later preemptions of a workload.")
        self.invalidated = counter("preemption_invalidations_total", "Nominations that did not lead to scheduling.")
        self.reschedule = histogram(
            "victim_reschedule_duration_seconds", "From the deletion of the last victim to the next attempt.", seconds
        )
        self.deleted = histogram(
            "preemption_to_victim_deleted_seconds", "From a nomination until all victims were deleted.", seconds
        )
        self.interrupted = histogram(
            "preemption_cycle_interrupted_seconds",
            "From a nomination until another event ended the preemption.",
            seconds,
        )
        self.retries = histogram(
            "preemption_victim_deleting_retries",
            "Attempts while victims were terminating.",
            [float(n) for n in range(20)],
        )
        self.before = histogram(
            "scheduling_events_before_outcome",
            "Events of a workload until its outcome, by type.",
            [float(n) for n in range(30)],
            "event_type",
            "outcome",
        )
        self.interval = histogram(
            "scheduling_event_interval_seconds", "Time between two events of a workload.", exponential(0.1, 2, 20)
        )
        self.method = Histogram(
            "scheduler_workload_auditor_record_method_duration_seconds",
            "Duration of the auditor's own methods.",
            ["method"],
            buckets=exponential(1e-6, 4, 10),
            registry=registry,
        )


def label_name(text: str) -> str:
    """The name of a pod label as the name of a metric label."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


@dataclass
class Workload:
    """The record of one workload. `labels`: label values of its series."""

    key: str
    labels: tuple[str, ...]
    metrics: AuditMetrics
    limits: AuditLimits
    counts: Counts[WorkloadEvent] = field(default_factory=Counts)
    gated: bool = False
    recorded_attempt: int = 0
    """Number of the attempt whose result is recorded already."""
    _last_event: float | None = None
    """Time of the last event; None before the first and while gated."""
    _nominated: float | None = None
    """When the preemption in progress began."""
    _deleting_attempts: int = 0
    """Attempts of that preemption while its victims terminated."""
    _nomination_valid: bool = False
    """The last nomination has not been invalidated."""
    _victims_gone: float | None = None
    """When the last victim was gone; None after the next attempt."""

    def add(self, kind: WorkloadEvent, now: float) -> None:
        """Record an event."""
        self.counts[kind] += 1
        self._observe_interval(kind, now)
        if kind is WorkloadEvent.GATED:
            self._victims_gone = None
        if kind in _RETRIED:
            self._observe_reschedule(now)
            self._interrupted(now)
        if kind in _INVALIDATE and self._nomination_valid:
            self._nomination_valid = False
            self.metrics.invalidated.labels(*self.labels).inc()
        if kind is WorkloadEvent.NOMINATED:
            if self.counts[kind] > 1:
                self.metrics.repeated.labels(*self.labels).inc()
            self._nominated = now
            self._deleting_attempts = 0
            self._nomination_valid = True
        elif kind is WorkloadEvent.DELETING:
            self._deleting_attempts += 1
        elif kind is WorkloadEvent.VICTIMS_GONE:
            self._victims_gone = now
            if self._nominated is not None:
                self._end_preemption(self.metrics.deleted, now - self._nominated)

    def end(self, outcome: str, now: float) -> None:
        """The workload is scheduled or gone."""
        self._interrupted(now)
        for kind, number in self.counts.items():
            self.metrics.before.labels(*self.labels, kind.value, outcome).observe(number)

    def _observe_interval(self, kind: WorkloadEvent, now: float) -> None:
        if kind is WorkloadEvent.VICTIMS_GONE:
            return
        if kind is WorkloadEvent.GATED:
            self._last_event = None
        elif self._last_event is not None:
            seconds = now - self._last_event
            self.metrics.interval.labels(*self.labels).observe(seconds)
            if seconds > self.limits.interval:
                log.warning(
                    "Long time without an event of a workload",
                    workload=self.key,
                    seconds=round(seconds, 1),
                    next_event=kind.value,
                )
            self._last_event = now
        elif kind in _STARTS:
            self._last_event = now

    def _observe_reschedule(self, now: float) -> None:
        gone, self._victims_gone = self._victims_gone, None
        if gone is None:
            return
        self.metrics.reschedule.labels(*self.labels).observe(now - gone)
        if now - gone > self.limits.reschedule:
            seconds = round(now - gone, 1)
            log.warning("Late attempt after all victims were deleted", workload=self.key, seconds=seconds)

    def _interrupted(self, now: float) -> None:
        if self._nominated is not None:
            self._end_preemption(self.metrics.interrupted, now - self._nominated)

    def _end_preemption(self, family: Histogram, seconds: float) -> None:
        """A preemption has ended, successful or not."""
        family.labels(*self.labels).observe(seconds)
        self.metrics.retries.labels(*self.labels).observe(self._deleting_attempts)
        if self._deleting_attempts > self.limits.retries or seconds > self.limits.deletion:
            retries = self._deleting_attempts
            log.warning("Slow preemption", workload=self.key, seconds=round(seconds, 1), retries=retries)
        self._nominated = None
