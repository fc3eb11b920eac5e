"""What the network costs each subject: segments sent again, CPU time taken by softirqs, data it does not read.

Some of it is told by pod alone (a pod's network namespace); then the pod is the subject, and has the figures instead of
its containers. Bounded by the probe's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from koordlet.app.logging import get_logger
from koordlet.metriccache import Batch, MetricCache, SeriesError
from koordlet.metricsadvisor.stalls.counters import CulpritCounters, SteadySums
from koordlet.metricsadvisor.stalls.latency import Blame, OwnerOf, blame, culprit_owner, group, identity, sum_rows
from koordlet.metricsadvisor.stalls.waiting import Waiting
from koordlet.metricsadvisor.stalls.window import Window
from koordlet.metricsadvisor.usage.readings import Floats
from koordlet.metricsadvisor.views import CULPRITS_EXPORTED, container_labels, culprit_labels, pod_labels
from koordlet.probes.netstall.probe import NetStallSource
from koordlet.probes.netstall.snapshot import NetStallSnapshot, diff
from koordlet.probes.schedlatency.layout import SPECIAL_KEYS
from koordlet.probes.schedlatency.snapshot import quantiles
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads

log = get_logger(__name__)

NAME = "net_stall"
KSOFTIRQD = SPECIAL_KEYS["ksoftirqd"]
Row = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class SubjectNetStall:
    """One subject over the window."""

    retransmits: float
    """Segments a second."""
    softirq: float
    """Seconds a second in which network softirqs ran while it had the CPU."""
    softirq_p99: float | None
    """Seconds that an interruption took."""
    caused: float
    """Seconds a second that softirqs worked for it, whoever was interrupted."""
    backlog: float | None
    """Bytes received and not read, mean over arriving TCP segments; None when none arrived."""
    full: float
    """Packets a second dropped because a receive queue was full."""
    culprits: tuple[Blame, ...] = ()
    """For whom the softirqs worked that interrupted it, a second, longest first; itself is among them, also for what it
    raised itself by sending."""


@dataclass(frozen=True, slots=True)
class PutOff:
    """Network softirqs that the kernel put off to its threads over the window: others may wait while these run."""

    seconds: float
    """A second."""
    receivers: tuple[Blame, ...]
    """For whom they worked, a second, longest first."""


def put_off(window: NetStallSnapshot, seconds: float, owner: OwnerOf) -> PutOff:
    """What ksoftirqd did for the network. Pure."""
    rows = np.flatnonzero(window.victim == KSOFTIRQD)
    columns = (window.culprit, window.wait_ns, window.wait_count)
    found: dict[str, Blame] = {}
    for key, ns, count in zip(*(column[rows].tolist() for column in columns), strict=True):
        who = culprit_owner(key, owner)
        before = found.get(identity(who), Blame(who, 0.0, 0))
        found[identity(who)] = Blame(who, before.seconds + ns / 1e9 / seconds, before.count + count)
    receivers = sorted((one for one in found.values() if one.seconds > 0), key=lambda one: -one.seconds)
    return PutOff(sum(one.seconds for one in receivers), tuple(receivers))


def by_subject(window: NetStallSnapshot, seconds: float, owner: OwnerOf) -> dict[str, SubjectNetStall]:
    """Figures by subject key. Pure."""
    subjects, rows = group(window.keys, owner)
    names = ("retransmits", "softirq_ns", "caused_ns", "full", "backlog_sum", "backlog_count", "softirq_hist")
    sums = {name: sum_rows(getattr(window, name), rows, len(subjects)) for name in names}
    p99 = (quantiles(sums["softirq_hist"], 0.99) / 1e9).tolist()
    blamed = blame(window, owner, seconds)
    return {
        subject.key: SubjectNetStall(
            retransmits=float(sums["retransmits"][row]) / seconds,
            softirq=float(sums["softirq_ns"][row]) / 1e9 / seconds,
            softirq_p99=p99[row] if sums["softirq_hist"][row].any() else None,
            caused=float(sums["caused_ns"][row]) / 1e9 / seconds,
            backlog=float(sums["backlog_sum"][row] / sums["backlog_count"][row])
            if sums["backlog_count"][row]
            else None,
            full=float(sums["full"][row]) / seconds,
            culprits=tuple(blamed.get(subject.key, ())),
        )
        for row, subject in enumerate(subjects)
        if any(column[row].any() for column in sums.values())
    }


def net_labels(subject: Subject) -> tuple[str, ...]:
    """As `container_labels`; of a pod without a container, and QoS."""
    if subject.kind is SubjectKind.POD:
        return (*pod_labels(subject), "", "", subject.qos)
    return (*container_labels(subject), subject.qos)


class NetStallCollector:
    """`read` is one round; nothing without a source."""

    def __init__(
        self,
        source: NetStallSource | None,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        *,
        index: CgroupIndex,
        clock: Callable[[], float],
        window: float = 10.0,
    ) -> None:
        self._source, self._workloads, self._cache, self._registries = source, workloads, cache, registries
        self._index, self._clock = index, clock
        self._window: Window[NetStallSnapshot] = Window(window)
        self._steady: dict[str, SteadySums] = {}
        self._culprit_counters = CulpritCounters(CULPRITS_EXPORTED)
        self.window: Mapping[str, SubjectNetStall] = {}
        """Subject key -> figures of the last seconds, only of those that the network did something to."""
        self.put_off = PutOff(0.0, ())
        registries.view("net_retransmits_total", lambda: self._rows("retransmits", 1.0))
        registries.view("net_receive_queue_full_total", lambda: self._rows("full", 1.0))
        registries.view("net_softirq_seconds_total", lambda: self._rows("softirq_ns", 1e9))
        registries.view("net_softirq_caused_seconds_total", lambda: self._rows("caused_ns", 1e9))
        registries.view("net_softirq_culprit_seconds_total", self._culprits)
        registries.view("net_backlog_bytes", self._backlog)
        registries.view("net_stall_lost_total", self._lost)

    def attach(self, source: NetStallSource | None) -> None:
        """Read *source* from now on: a probe may come later than its collector."""
        self._source = source

    @property
    def source(self) -> str:
        """Where figures come from: ``bpf``, ``files``, ``none``."""
        return "none" if self._source is None else self._source.source

    def read(self) -> None:
        """Read the probe and judge the window."""
        if self._source is None:
            return
        snapshot = self._source.read()
        now = self._clock()
        self._index.refresh(self._workloads(), now, snapshot.keys[snapshot.keys > 0].tolist())
        self._window.push(snapshot)
        span = self._window.span()
        if span is not None:
            old, new, seconds = span
            grown = diff(old, new)
            self.window = by_subject(grown, seconds, self._index.owner)
            self.put_off = put_off(grown, seconds, self._index.owner)
            self._commit(now)

    def _commit(self, now: float) -> None:
        batch = Batch(now)
        keys = [(key,) for key in self.window]
        figures = list(self.window.values())
        batch.extend("container_net_retransmits", keys, np.array([one.retransmits for one in figures], dtype=float))
        batch.extend("container_net_softirq", keys, np.array([one.softirq for one in figures], dtype=float))
        try:
            self._cache.commit(batch)
        except SeriesError as error:
            self._registries.count("collector_failures_total", NAME, "series")
            log.once(f"collector:{NAME}:{error}", "no figure from a source", collector=NAME, cause=str(error))

    # --- Prometheus rows

    def _rows(self, column: str, unit: float) -> Iterator[Row]:
        latest = self._window.latest
        if latest is None:
            return
        subjects, rows = group(latest.keys, self._index.owner)
        sums: Floats = sum_rows(getattr(latest, column), rows, len(subjects)) / unit
        steady = self._steady.setdefault(column, SteadySums())
        counters = steady.update({subject.key: sums[row] for row, subject in enumerate(subjects)})
        for subject in subjects:
            if counters[subject.key]:
                yield net_labels(subject), float(counters[subject.key])

    def _backlog(self) -> Iterator[Row]:
        for subject in self._workloads().subjects:
            stall = self.window.get(subject.key)
            if stall is not None and stall.backlog is not None:
                yield net_labels(subject), stall.backlog

    def _culprits(self) -> Iterator[Row]:
        latest = self._window.latest
        if latest is None:
            return
        subjects = {subject.key: subject for subject in self._workloads().subjects}
        for victim, who, seconds in self._culprit_counters.update(Waiting.of(latest, self._index.owner, subjects)):
            yield (*net_labels(subjects[victim]), *culprit_labels(who)), seconds

    def _lost(self) -> list[Row]:
        if self._window.latest is None:
            return []
        lost = self._window.latest.lost
        return [(("matrix",), lost.matrix_lost_count), (("owners",), lost.slot_lost)]
