"""The CPU's short evidence: victims and culprits of the last half second. For quick, reversible actions.

Each snapshot reads only the waiting times (three numbers per cgroup). While other containers may have delayed a victim
noticeably, it reads the culprit matrix as well, and two such snapshots in a row give the losses and culprits between
them. So while no container is delayed, a snapshot costs a small part of an evaluation. Readings of the matrix cost at
most `MAX_MATRIX_CPU` of a core: where one is expensive, snapshots in between give no evidence.

Half a second has few waits, so the wanted time has a larger constant than the verdicts' (`MIN_WANTED_CORES` here).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koordlet.api.qos import BE
from koordlet.api.sloconfig.interference import InterferenceStrategy
from koordlet.interference import advice
from koordlet.interference.attribution import Attribution
from koordlet.interference.cadence import NOTICEABLE_RATIO
from koordlet.interference.cpu import CpuReading, possible_loss
from koordlet.interference.cpusource import AlarmThreshold, CpuSource
from koordlet.interference.detector import eligible, other_culprits
from koordlet.interference.evidence import ContainerWindow
from koordlet.interference.model import AlarmState, Cause, Floats, Verdict, WaitResource
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.probes.culprits.reader import MatrixReading
from koordlet.probes.schedlatency.snapshot import WaitTotals

MIN_WANTED_CORES = 0.1
"""Added to the wanted time: with a few milliseconds of waiting in half a second, a container lost nothing worth an
action."""
MAX_LOOK_SECONDS = 2.0
"""Totals that are further apart are no short evidence."""
MAX_MATRIX_CPU = 0.005
"""Cores spent on reading the matrix."""
CpuUsage = Callable[[str], int | None]
"""Cgroup directory -> nanoseconds of CPU time used so far; None if it is gone."""


class _Used(NamedTuple):
    """CPU time of best-effort pods at one moment."""

    time_ns: int
    by_uid: Mapping[str, int]


class ShortCpuEvidence:
    """`cpu_clock` is the CPU time of the calling thread, in seconds."""

    def __init__(
        self,
        advisor: MetricsAdvisor,
        source: CpuSource,
        alarm_threshold: AlarmThreshold,
        usage: CpuUsage,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._advisor = advisor
        self._source = source
        self._alarm_threshold = alarm_threshold
        self._usage = usage
        self._cpu_clock = cpu_clock
        self._totals: WaitTotals | None = None
        self._matrix: MatrixReading | None = None
        """The reading of the previous round, if others may have delayed a victim noticeably then."""
        self._used = _Used(0, {})
        self._matrix_due_ns = 0
        self.noticed = False
        """Whether others may have delayed a victim noticeably in the last round."""
        self.cores: Mapping[str, float] = {}
        """Pod UID -> cores used between the last two rounds, for best-effort pods; only while `noticed`."""

    def forget(self) -> None:
        """Start again with the next round."""
        self._totals = self._matrix = None
        self.noticed, self.cores = False, {}

    def look(self, strategy: InterferenceStrategy, now: float) -> Mapping[str, Verdict] | None:
        """Subject key -> verdict in state SUSPECTED, for victims that may have been delayed noticeably; None while
        there is no evidence."""
        latest = self._source.latest
        totals = self._advisor.sched_latency.waits()
        before, self._totals = self._totals, totals
        if totals is None or before is None or latest is None:
            self._matrix, self.noticed = None, False
            return None
        seconds = (totals.time_ns - before.time_ns) / 1e9
        if not 0.0 < seconds <= MAX_LOOK_SECONDS:
            self._matrix, self.noticed = None, False
            return None
        window, reading = latest
        if len(self._source.shares.own) != reading.rows.count:  # containers changed; known after the next evaluation
            return None
        added = totals.since(before)
        rows = reading.rows.of(added.keys)
        waited, throttled = (
            reading.rows.sum(rows, column) / 1e9 / seconds for column in (added.waited_ns, added.throttled_ns)
        )
        thresholds = self._alarm_threshold(window.subjects, WaitResource.CPU, strategy)
        possible = possible_loss(waited, self._source.shares, reading.ran)
        noticeable = eligible(window.subjects, strategy) & (possible >= NOTICEABLE_RATIO * thresholds)
        self.noticed = bool(noticeable.any())
        if not self.noticed:
            self._matrix, self.cores = None, {}
            return {}
        if totals.time_ns < self._matrix_due_ns:
            return None
        attribution = self._attribution(totals, reading, waited)
        if attribution is None:
            return None
        lost = _lost(attribution, waited, throttled, reading.ran)
        return self._verdicts(np.flatnonzero(noticeable), attribution, lost, thresholds, window, seconds, now)

    def _attribution(self, totals: WaitTotals, reading: CpuReading, waited: Floats) -> Attribution | None:
        """Who was waited for since the previous round; None if that did not read the matrix."""
        started = self._cpu_clock()
        self._advisor.sched_latency.look_up(totals.keys)
        before, after = self._matrix, self._advisor.sched_latency.read_matrix()
        self._matrix = after
        self._read_use()
        attribution = None
        if before is not None and after is not None and before.source == after.source:
            seconds = (after.time_ns - before.time_ns) / 1e9
            if 0.0 < seconds <= MAX_LOOK_SECONDS:
                owner = self._advisor.index.owner
                attribution = Attribution.of(after.minus(before), seconds, reading.rows, owner)
                attribution = attribution.without_hypervisor(reading.steal, waited)
        self._matrix_due_ns = totals.time_ns + int((self._cpu_clock() - started) / MAX_MATRIX_CPU * 1e9)
        return attribution

    def _read_use(self) -> None:
        """The CPU time of all best-effort pods, for the use at which a culprit's throttling begins."""
        before, now_ns = self._used, time.monotonic_ns()
        by_uid = {
            meta.uid: used
            for meta in self._advisor.workloads.pods.values()
            if meta.qos == BE and (used := self._usage(meta.cgroup_dir)) is not None
        }
        self._used = _Used(now_ns, by_uid)
        elapsed = now_ns - before.time_ns
        if 0 < elapsed <= MAX_LOOK_SECONDS * 1e9:
            self.cores = {
                uid: max(used - before.by_uid[uid], 0) / elapsed for uid, used in by_uid.items() if uid in before.by_uid
            }

    def _verdicts(
        self,
        victims: NDArray[np.intp],
        attribution: Attribution,
        lost: Floats,
        thresholds: Floats,
        window: ContainerWindow,
        seconds: float,
        now: float,
    ) -> dict[str, Verdict]:
        verdicts = {}
        source = "" if self._matrix is None else self._matrix.source
        for row in victims.tolist():
            subject, loss = window.subjects[row], float(lost[row])
            score = loss / max(float(thresholds[row]), 1e-9)
            culprits = other_culprits(subject, attribution.top(row))
            verdicts[subject.key] = Verdict(
                victim=subject,
                resource=WaitResource.CPU,
                cause=Cause.NEIGHBOUR,
                state=AlarmState.SUSPECTED,
                score=score,
                lost=loss,
                began=now,
                since=now,
                at=now,
                window=seconds,
                source=source,
                confidence=advice.confidence(source, score, culprits, named=True, cause=Cause.NEIGHBOUR),
                severity=advice.severity(loss, score),
                action=advice.action(subject, WaitResource.CPU, Cause.NEIGHBOUR, culprits, {}),
                culprits=culprits,
            )
        return verdicts


def _lost(attribution: Attribution, waited: Floats, throttled: Floats, ran: Floats) -> Floats:
    """[containers]: share of their wanted time that others took."""
    shares = attribution.shares(waited)
    others = waited * shares.others
    rest = waited * (shares.own + shares.hypervisor) + throttled + np.nan_to_num(ran)
    lost: Floats = others / (others + rest + MIN_WANTED_CORES)
    return lost
