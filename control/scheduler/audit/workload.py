"""What the workload auditor makes of one workload's history: a record of events, held to rules (spec 05 §7.4).

A workload is a pod, or a group of gangs. Its record begins with `create` and ends with an outcome; in between events
are counted, the time between them is observed, and what goes wrong with preemption is counted and told. No I/O but
metrics and the log; times are monotonic seconds.
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


class Kind(StrEnum):
    """What can happen to a workload."""

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


_STARTS: Final = frozenset((Kind.CREATE, Kind.ADMITTED, Kind.COMPLETE))
_INVALIDATE: Final = frozenset((Kind.NOMINATED, Kind.PREEMPT_FAILED, Kind.FAILED))
_ANSWERS: Final = _INVALIDATE | {Kind.SCHEDULED}
"""What ends the wait of a workload whose victims are gone, and, before that, its preemption."""


@dataclass(frozen=True)
class Limits:
    """What takes longer, or more attempts, is told (seconds)."""

    reschedule: float = 10.0
    deletion: float = 30.0
    retries: int = 3
    interval: float = 300.0


class AuditMetrics:
    """Koordinator's families; each series has the workload's priority class and the configured labels of pods."""

    def __init__(self, registry: CollectorRegistry, labels: Sequence[str] = ()) -> None:
        own = ("priority", *map(label_name, labels))

        def counter(name: str, text: str) -> Counter:
            return Counter("scheduler_workload_auditor_" + name, text, own, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *more: str) -> Histogram:
            return Histogram(
                "scheduler_workload_auditor_" + name, text, (*own, *more), buckets=buckets, registry=registry
            )

        seconds = exponential(0.1, 2, 15)
        self.repeated = counter("repeated_preemptions_total", "Workloads' second and later preemptions.")
        self.invalidated = counter("preemption_invalidations_total", "Nominations that led to nothing.")
        self.reschedule = histogram(
            "victim_reschedule_duration_seconds", "From the last victim's end to what came of it.", seconds
        )
        self.deleted = histogram(
            "preemption_to_victim_deleted_seconds", "From a nomination until all victims were gone.", seconds
        )
        self.interrupted = histogram(
            "preemption_cycle_interrupted_seconds", "From a nomination until something else happened.", seconds
        )
        self.retries = histogram(
            "preemption_victim_deleting_retries", "Attempts while victims were leaving.", [float(n) for n in range(20)]
        )
        self.before = histogram(
            "scheduling_events_before_outcome", "Events of a workload, by kind, until its outcome.",
            [float(n) for n in range(30)], "event_type", "outcome",
        )  # fmt: skip
        self.interval = histogram(
            "scheduling_event_interval_seconds", "Between two events of a workload.", exponential(0.1, 2, 20)
        )
        self.method = Histogram(
            "scheduler_workload_auditor_record_method_duration_seconds", "What auditing itself takes.", ["method"],
            buckets=exponential(1e-6, 4, 10), registry=registry,
        )  # fmt: skip


def label_name(text: str) -> str:
    """The label of a pod as the label of a series."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


@dataclass
class Workload:
    """One record. `labels`: values of its series."""

    key: str
    labels: tuple[str, ...]
    metrics: AuditMetrics
    limits: Limits
    counts: Counts[Kind] = field(default_factory=Counts)
    gated: bool = False
    noted: int = 0
    """The attempt that has been told of already."""
    _last: float | None = None
    """When the last event of the round was; None: no round."""
    _nominated: float | None = None
    """When the preemption began that is under way."""
    _deleting: int = 0
    _valid: bool = False
    """The last nomination has not been invalidated yet."""
    _gone: float | None = None
    """When the last victim was gone, while nothing came of it yet."""

    def add(self, kind: Kind, now: float) -> None:
        """Something happened to the workload."""
        self.counts[kind] += 1
        self._interval(kind, now)
        if kind is Kind.GATED:
            self._gone = None
        if kind in _ANSWERS:
            self._answered(now)
            self._interrupted(now)
        if kind in _INVALIDATE and self._valid:
            self._valid = False
            self.metrics.invalidated.labels(*self.labels).inc()
        if kind is Kind.NOMINATED:
            if self.counts[kind] > 1:
                self.metrics.repeated.labels(*self.labels).inc()
            self._nominated, self._deleting, self._valid = now, 0, True
        elif kind is Kind.DELETING:
            self._deleting += 1
        elif kind is Kind.VICTIMS_GONE:
            self._gone = now
            if self._nominated is not None:
                self._preempted(self.metrics.deleted, now - self._nominated)

    def end(self, outcome: str, now: float) -> None:
        """The workload is scheduled or gone."""
        self._interrupted(now)
        for kind, number in self.counts.items():
            self.metrics.before.labels(*self.labels, kind.value, outcome).observe(number)

    def _interval(self, kind: Kind, now: float) -> None:
        if kind is Kind.VICTIMS_GONE:
            return
        if kind is Kind.GATED:
            self._last = None
        elif self._last is not None:
            seconds = now - self._last
            self.metrics.interval.labels(*self.labels).observe(seconds)
            if seconds > self.limits.interval:
                log.warning("Nothing happened to a workload for long", workload=self.key, seconds=round(seconds, 1),
                            then=kind.value)  # fmt: skip
            self._last = now
        elif kind in _STARTS:
            self._last = now

    def _answered(self, now: float) -> None:
        gone, self._gone = self._gone, None
        if gone is None:
            return
        self.metrics.reschedule.labels(*self.labels).observe(now - gone)
        if now - gone > self.limits.reschedule:
            log.warning("A workload whose victims are gone was tried late", workload=self.key,
                        seconds=round(now - gone, 1))  # fmt: skip

    def _interrupted(self, now: float) -> None:
        if self._nominated is not None:
            self._preempted(self.metrics.interrupted, now - self._nominated)

    def _preempted(self, family: Histogram, seconds: float) -> None:
        """A preemption is over, one way or the other."""
        family.labels(*self.labels).observe(seconds)
        self.metrics.retries.labels(*self.labels).observe(self._deleting)
        if self._deleting > self.limits.retries or seconds > self.limits.deletion:
            log.warning("A preemption took long", workload=self.key, seconds=round(seconds, 1), retries=self._deleting)
        self._nominated = None
