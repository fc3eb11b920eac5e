"""The network cost of each subject: segments sent again, CPU time taken by softirqs, received data that is not read.

Some figures are known by pod only (a pod's network namespace); then the pod is the subject, and has the figures instead
of its containers. Bounded by the probe's tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from koordlet.metricsadvisor.collector import ProbeCollector, ProbeContext
from koordlet.metricsadvisor.labels import Row, container_labels, culprit_labels, pod_labels
from koordlet.metricsadvisor.stalls.attribution import (
    CulpritTime,
    OwnerOf,
    SubjectNaming,
    culprit_owner,
    culprits_by_subject,
    group,
    identity,
    sum_rows,
)
from koordlet.metricsadvisor.stalls.counters import CulpritCounters, MonotonicSums
from koordlet.metricsadvisor.usage.readings import Floats
from koordlet.probes.culprits.slots import SPECIAL_KEYS
from koordlet.probes.histogram import quantiles
from koordlet.probes.netstall.snapshot import NetStallSnapshot, diff
from koordlet.statesinformer.pods.model import Subject, SubjectKind

KSOFTIRQD = SPECIAL_KEYS["ksoftirqd"]


@dataclass(frozen=True, slots=True)
class SubjectNetStall:
    """One subject over the window."""

    softirq: float
    """Seconds per second in which network softirqs ran while it had the CPU."""
    softirq_p99: float | None
    """Seconds that an interruption took."""
    backlog: float | None
    """Bytes received and not read, mean over arriving TCP segments; None when none arrived."""
    culprits: tuple[CulpritTime, ...] = ()
    """The receivers of the softirq work that interrupted it, per second, longest first. The subject itself is among
    them, also for softirqs that it raised itself by sending."""


@dataclass(frozen=True, slots=True)
class DeferredSoftirqs:
    """Network softirqs that the kernel deferred to its ksoftirqd threads: other tasks may wait while these run."""

    seconds: float
    """Per second."""
    receivers: tuple[CulpritTime, ...]
    """The owners that they worked for, per second, longest first."""


NO_DEFERRED_SOFTIRQS = DeferredSoftirqs(0.0, ())


def deferred_softirqs(window: NetStallSnapshot, seconds: float, owner: OwnerOf) -> DeferredSoftirqs:
    """The network work of ksoftirqd. Pure."""
    entries = window.culprits.where(window.culprits.victim == KSOFTIRQD)
    receivers: dict[str, CulpritTime] = {}
    for key, ns, count in zip(entries.culprit.tolist(), entries.ns.tolist(), entries.count.tolist(), strict=True):
        receiver = culprit_owner(key, owner)
        before = receivers.get(identity(receiver), CulpritTime(receiver, 0.0, 0))
        receivers[identity(receiver)] = CulpritTime(receiver, before.seconds + ns / 1e9 / seconds, before.count + count)
    ordered = sorted((item for item in receivers.values() if item.seconds > 0), key=lambda item: -item.seconds)
    return DeferredSoftirqs(sum(item.seconds for item in ordered), tuple(ordered))


def by_subject(window: NetStallSnapshot, seconds: float, owner: OwnerOf) -> dict[str, SubjectNetStall]:
    """Figures by subject key. Pure."""
    subjects, rows = group(window.keys, owner)
    names = ("retransmits", "softirq_ns", "caused_ns", "full", "backlog_sum", "backlog_count", "softirq_hist")
    sums = {name: sum_rows(getattr(window, name), rows, len(subjects)) for name in names}
    p99 = (quantiles(sums["softirq_hist"], 0.99) / 1e9).tolist()
    culprits = culprits_by_subject(window.culprits, owner, seconds)
    active = np.any([column.any(axis=tuple(range(1, column.ndim))) for column in sums.values()], axis=0).tolist()
    return {
        subject.key: SubjectNetStall(
            softirq=float(sums["softirq_ns"][row]) / 1e9 / seconds,
            softirq_p99=p99[row] if sums["softirq_hist"][row].any() else None,
            backlog=float(sums["backlog_sum"][row] / sums["backlog_count"][row])
            if sums["backlog_count"][row]
            else None,
            culprits=tuple(culprits.get(subject.key, ())),
        )
        for row, subject in enumerate(subjects)
        if active[row]
    }


def net_labels(subject: Subject) -> tuple[str, ...]:
    """As `container_labels` (empty container labels for a pod), and the QoS class."""
    if subject.kind is SubjectKind.POD:
        return (*pod_labels(subject), "", "", subject.qos)
    return (*container_labels(subject), subject.qos)


class NetStallCollector(ProbeCollector[NetStallSnapshot, SubjectNetStall]):
    """`figures` has only subjects with any network cost."""

    def __init__(self, context: ProbeContext, window_seconds: float = 10.0) -> None:
        super().__init__(context, window_seconds)
        self._deferred = NO_DEFERRED_SOFTIRQS
        self._counters: dict[str, MonotonicSums] = {}
        """By column."""
        self._culprit_counters = CulpritCounters()
        registries = context.registries
        registries.view("net_retransmits_total", lambda: self._rows("retransmits", 1.0))
        registries.view("net_receive_queue_full_total", lambda: self._rows("full", 1.0))
        registries.view("net_softirq_seconds_total", lambda: self._rows("softirq_ns", 1e9))
        registries.view("net_softirq_caused_seconds_total", lambda: self._rows("caused_ns", 1e9))
        registries.view("net_softirq_culprit_seconds_total", self._culprits)
        registries.view("net_backlog_bytes", self._backlog)
        registries.view("net_stall_lost_total", self._lost)

    @property
    def deferred(self) -> DeferredSoftirqs:
        """Of the window of `figures`."""
        _ = self.figures
        return self._deferred

    def derive(self, old: NetStallSnapshot, new: NetStallSnapshot, seconds: float) -> Mapping[str, SubjectNetStall]:
        """See `by_subject`; updates `deferred`."""
        window = diff(old, new)
        self._deferred = deferred_softirqs(window, seconds, self.context.index.owner)
        return by_subject(window, seconds, self.context.index.owner)

    def _rows(self, column: str, unit: float) -> Iterator[Row]:
        if self.latest is None:
            return
        subjects, rows = group(self.latest.keys, self.context.index.owner)
        sums: Floats = sum_rows(getattr(self.latest, column), rows, len(subjects)) / unit
        counters = self._counters.setdefault(column, MonotonicSums())
        values = counters.update({subject.key: sums[row] for row, subject in enumerate(subjects)})
        for subject in subjects:
            if values[subject.key]:
                yield net_labels(subject), float(values[subject.key])

    def _backlog(self) -> Iterator[Row]:
        for subject in self.context.workloads().subjects:
            stall = self.figures.get(subject.key)
            if stall is not None and stall.backlog is not None:
                yield net_labels(subject), stall.backlog

    def _culprits(self) -> Iterator[Row]:
        if self.latest is None:
            return
        subjects = {subject.key: subject for subject in self.context.workloads().subjects}
        table = self.latest.culprits.by_subject(SubjectNaming(self.context.index.owner, subjects)).dense()
        for victim, culprit, seconds in self._culprit_counters.update(table):
            yield (*net_labels(subjects[victim]), *culprit_labels(culprit)), seconds

    def _lost(self) -> list[Row]:
        if self.latest is None:
            return []
        lost = self.latest.lost
        return [(("matrix",), lost.matrix_lost_count), (("owners",), lost.slot_lost)]
