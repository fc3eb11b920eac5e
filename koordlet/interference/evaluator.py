"""Runs one evaluation per round: evidence, verdicts, history, and notification of listeners.

An evaluation that raises is counted and logged by its periodic task, and the next one runs as usual. Listeners are
notified of every alarm that begins or ends, and of an active alarm whose worst culprit has been another one for at
least the minimum duration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from koordlet.api.sloconfig.interference import InterferenceStrategy
from koordlet.interference.detector import NEIGHBOUR, Detector
from koordlet.interference.history import History
from koordlet.interference.model import CAUSES, RESOURCES, AlarmState, Cause, Evidence, Track, Verdict, WaitResource
from koordlet.interference.strategy import StrategySource


class CollectsEvidence(Protocol):
    """`EvidenceCollector`, as far as it is used here."""

    def collect(self, now: float, strategy: InterferenceStrategy) -> Evidence | None:
        """Evidence over the strategy's window that ends now; None while there is none."""
        ...


class AlarmListener(Protocol):
    """Is notified of alarms."""

    def began(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """An alarm began."""

    def culprit_changed(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """An active alarm has another worst culprit."""

    def ended(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """An alarm ended."""


@dataclass(slots=True)
class _WorstCulprit:
    """The worst culprit that listeners know, and the current worst culprit with the time since when it is that."""

    published: str
    current: str
    since: float


class InterferenceEvaluator:
    """Owns the history and the current verdicts; `step` is one evaluation."""

    def __init__(
        self,
        collector: CollectsEvidence,
        detector: Detector,
        strategies: StrategySource,
        listeners: Sequence[AlarmListener] = (),
        *,
        clock: Callable[[], float],
    ) -> None:
        self._collector = collector
        self._listeners = listeners
        self._clock = clock
        self.detector = detector
        self.strategies = strategies
        self.history = History()
        self._worst: dict[Track, _WorstCulprit] = {}
        self.evidence: Evidence | None = None
        self.verdicts: dict[str, tuple[Verdict, ...]] = {}
        """Subject key -> its verdicts now, suspicions included."""
        self.detections: dict[tuple[str, str], int] = {(r.value, c.value): 0 for r in RESOURCES for c in CAUSES}
        """(resource, cause) -> number of alarms that began."""
        self.alarm_seconds: dict[tuple[str, str], float] = dict.fromkeys(self.detections, 0.0)
        """(resource, cause) -> container-seconds with an active alarm."""
        self._at: float | None = None

    @property
    def active(self) -> list[Verdict]:
        """Verdicts with an active alarm."""
        return [verdict for verdicts in self.verdicts.values() for verdict in verdicts if verdict.on]

    def near_alarm(self, score: float) -> bool:
        """Whether there is a verdict, or a container whose score is at least `score`."""
        return bool(self.verdicts) or bool((self.detector.scores >= score).any())

    def is_rising(self, resource: WaitResource, score: float) -> bool:
        """Whether a container without an alarm has at least this score, caused by others."""
        column, detector = RESOURCES.index(resource), self.detector
        high = np.flatnonzero(detector.scores[:, column, NEIGHBOUR] >= score)
        return high.size > 0 and bool((detector.states()[high, column, NEIGHBOUR] <= AlarmState.SUSPECTED).any())

    def step(self) -> None:
        """Evaluate the window that ends now."""
        now, strategy = self._clock(), self.strategies.current()
        if strategy.enable is False:
            self._stop(strategy)
            return
        evidence = self._collector.collect(now, strategy)
        if evidence is None:
            return
        gone = self._alarms_of_removed(evidence)
        self.evidence = evidence
        detection = self.detector.step(evidence, now, strategy)
        changes = tuple(change for change in detection.changes if change.before.alarm != change.verdict.on)
        self.history.record(evidence.subjects, self.detector.symptoms, changes, now)
        verdicts: dict[str, list[Verdict]] = {}
        for verdict in detection.verdicts:
            verdicts.setdefault(verdict.victim.key, []).append(verdict)
        self.verdicts = {key: tuple(of_subject) for key, of_subject in verdicts.items()}
        self._count_alarm_seconds(now)
        for verdict in gone:
            self._end(verdict, strategy)
        for change in changes:
            if change.verdict.on:
                self._begin(change.verdict, strategy, now)
            else:
                self._end(change.verdict, strategy)
        self._follow_culprits(strategy, now)

    def nonzero(self, figures: NDArray[np.generic]) -> Iterator[tuple[int, WaitResource, Cause, float]]:
        """(container, resource, cause, figure) of everything with evidence whose figure is not 0; `figures` is a table
        of the detector's: states, scores or symptoms."""
        symptoms = self.detector.symptoms
        rows, resources, causes = ((symptoms == symptoms) & (figures != 0)).nonzero()  # not NaN
        columns = (rows, resources, causes, figures[rows, resources, causes])
        for row, resource, cause, figure in zip(*(column.tolist() for column in columns), strict=True):
            yield row, RESOURCES[resource], CAUSES[cause], float(figure)

    def _alarms_of_removed(self, evidence: Evidence) -> list[Verdict]:
        """Active alarms of containers that no longer exist."""
        if self.evidence is None or self.evidence.subjects is evidence.subjects:
            return []
        keys = {subject.key for subject in evidence.subjects}
        return [verdict for verdict in self.active if verdict.victim.key not in keys]

    def _stop(self, strategy: InterferenceStrategy) -> None:
        """Detection is switched off: end all alarms and forget the usual values."""
        if self.evidence is None:
            return
        for verdict in self.active:
            self._end(verdict, strategy)
        self.detector.reset()
        self.evidence = None
        self.verdicts = {}
        self._at = None
        self._worst.clear()

    def _count_alarm_seconds(self, now: float) -> None:
        dt = 0.0 if self._at is None else max(now - self._at, 0.0)
        self._at = now
        for verdict in self.active:
            self.alarm_seconds[verdict.resource.value, verdict.cause.value] += dt

    def _begin(self, verdict: Verdict, strategy: InterferenceStrategy, now: float) -> None:
        self.detections[verdict.resource.value, verdict.cause.value] += 1
        worst = _worst(verdict)
        self._worst[verdict.track] = _WorstCulprit(worst, worst, now)
        for listener in self._listeners:
            listener.began(verdict, strategy)

    def _end(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        self._worst.pop(verdict.track, None)
        for listener in self._listeners:
            listener.ended(verdict, strategy)

    def _follow_culprits(self, strategy: InterferenceStrategy, now: float) -> None:
        for verdict in self.active:
            known = self._worst.get(verdict.track)
            if known is None or verdict.state is not AlarmState.INTERFERED:
                continue
            worst = _worst(verdict)
            if worst != known.current:
                known.current, known.since = worst, now
            lasted = now - known.since >= (strategy.min_duration_seconds or 0)
            if worst and worst != known.published and lasted:
                known.published = worst
                for listener in self._listeners:
                    listener.culprit_changed(verdict, strategy)


def _worst(verdict: Verdict) -> str:
    """Identity of the worst culprit."""
    if not verdict.culprits:
        return ""
    owner = verdict.culprits[0].owner
    return owner.subject.key if owner.subject is not None else f"{owner.kind}:{owner.name}"
