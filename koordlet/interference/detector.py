"""The decision: evidence in, verdicts out. Deterministic, without a clock or I/O of its own, vectorised.

Score of a symptom x caused by others:

    score = max( x / lostPercent,  min( x / minLostPercent,  x / (factorPercent * usual) ) )

`usual` is the 95th percentile of x while the container was quiet; the second term counts after `learnSeconds` of
learning. Self-inflicted delay is judged by the first term only. States, per container, resource and cause:

    quiet --score>=1--> suspected --for minDuration--> interfered --score<leave--> recovering --for minDuration--> quiet
                        suspected --score<leave--> quiet             recovering --score>=1--> interfered

So an alarm (interfered, recovering) begins only after minDuration of delay and ends only after minDuration without.
Time that was suspected but did not last is not forgotten at once: it fades at `FADING_RATIO` of the speed at which it
was gathered, and counts as a part of minDuration when the container is suspected again. So a culprit that is active
every few seconds raises an alarm as well. Without evidence (NaN) the score is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordlet.api.sloconfig.interference import InterferenceStrategy, InterferenceThresholds
from koordlet.interference import advice
from koordlet.interference.baseline import Baseline
from koordlet.interference.model import (
    CAUSES,
    RESOURCES,
    AlarmState,
    Cause,
    Culprit,
    Evidence,
    Floats,
    ResourceEvidence,
    Signal,
    StateChange,
    Verdict,
    WaitResource,
)
from koordlet.metricsadvisor.stalls.attribution import CulpritTime
from koordlet.statesinformer.pods.model import Subject

NEIGHBOUR, SELF = (CAUSES.index(cause) for cause in (Cause.NEIGHBOUR, Cause.SELF))
FADING_RATIO = 0.25
"""Seconds of suspicion forgotten per quiet second."""
JITTER_SECONDS = 0.1
"""Rounds come a little early or late. Without this tolerance every second duration would take one more round."""
USUAL_QUANTILE = 0.95
USUAL_SECONDS = 5.0
"""Between two computations of `usual`, which changes slowly."""
MAX_CULPRITS = 5
"""In one verdict."""
RENEWED_PER_STEP = 6
"""Verdicts whose culprits and signals are computed again in one step."""
SUPPORT = (("wait p99", "seconds", "latency"), ("stalled", "share", "pressure"))
"""(name of the signal, unit, attribute of the evidence)"""
STATES = tuple(AlarmState)
_FIRST_ROWS = 64
_QUIET, _SUSPECTED, _INTERFERED, _RECOVERING = (int(state) for state in AlarmState)


@dataclass(frozen=True, slots=True)
class Detection:
    """Result of one step."""

    verdicts: tuple[Verdict, ...]
    """Of everything that is not quiet."""
    changes: tuple[StateChange, ...]


@dataclass(frozen=True, slots=True)
class ThresholdColumns:
    """A strategy's thresholds as columns, [resources]."""

    lost: Floats
    least: Floats
    factor: Floats
    enabled: NDArray[np.bool_]

    @classmethod
    def of(cls, strategy: InterferenceStrategy) -> ThresholdColumns:
        thresholds = [getattr(strategy, resource.value) or InterferenceThresholds() for resource in RESOURCES]
        lost = np.array([(threshold.lost_percent or 0) / 100 for threshold in thresholds])
        return cls(
            lost=np.where(lost > 0, lost, np.inf),
            least=np.array([(threshold.min_lost_percent or 0) / 100 for threshold in thresholds]),
            factor=np.array([(threshold.factor_percent or 100) / 100 for threshold in thresholds]),
            enabled=np.array([threshold.enable is not False for threshold in thresholds]),
        )


class _Track(NamedTuple):
    """One container, resource and cause, with its figures of this step."""

    row: int
    resource: int
    cause: int
    state: int
    score: float
    lost: float
    since: float

    @property
    def place(self) -> tuple[int, int, int]:
        return self.row, self.resource, self.cause


class Detector:
    """Keeps baselines and states between steps. A row belongs to a container and is reused when the container is
    gone."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all containers, their states and usual values."""
        self._row_of: dict[str, int] = {}
        self._free: list[int] = []
        self._subjects: tuple[Subject, ...] = ()
        self._rows: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._baseline = Baseline(0, len(RESOURCES))
        self._usual = np.zeros((0, len(RESOURCES)))
        self._support = np.zeros((0, len(RESOURCES), len(SUPPORT)))
        """Usual latency and pressure (moving means), NaN before the first value."""
        self._state = np.zeros((0, len(RESOURCES), len(CAUSES)), dtype=np.int8)
        self._since = np.zeros((0, len(RESOURCES), len(CAUSES)))
        self._began = np.zeros((0, len(RESOURCES), len(CAUSES)))
        self._suspected = np.zeros((0, len(RESOURCES), len(CAUSES)))
        """Seconds of suspicion that have not faded yet."""
        self._last: dict[tuple[str, int, int], Verdict] = {}
        self._at: float | None = None
        self._step = 0
        self._usual_at = -np.inf
        self.symptoms: Floats = np.full((0, len(RESOURCES), len(CAUSES)), np.nan)
        """Symptoms of the last step; row i belongs to container i of its evidence."""
        self.scores: Floats = np.zeros((0, len(RESOURCES), len(CAUSES)))

    def states(self) -> NDArray[np.int8]:
        """[containers of the last step, resources, causes]"""
        states: NDArray[np.int8] = self._state[self._rows]
        return states

    def usual(self) -> Floats:
        """[containers of the last step, resources]; NaN until enough was learned."""
        usual: Floats = self._usual[self._rows]
        return usual

    def alarm_threshold(
        self, subjects: tuple[Subject, ...], resource: WaitResource, strategy: InterferenceStrategy
    ) -> Floats:
        """[subjects]: the symptom that gives a score of 1 for cause NEIGHBOUR."""
        index, limits = RESOURCES.index(resource), ThresholdColumns.of(strategy)
        usual = np.full(len(subjects), np.nan)
        if subjects is self._subjects:  # not so once, just after containers changed
            usual = self._usual[self._rows, index]
        threshold: Floats = np.fmin(limits.lost[index], np.maximum(limits.least[index], limits.factor[index] * usual))
        return threshold

    def step(self, evidence: Evidence, now: float, strategy: InterferenceStrategy) -> Detection:
        """Judge one window. `now` never goes back; the same calls give the same results."""
        self._assign_rows(evidence.subjects)
        rows, limits = self._rows, ThresholdColumns.of(strategy)
        symptoms = self.symptoms = _symptoms(evidence, limits)
        dt = 0.0 if self._at is None else max(now - self._at, 0.0)
        self._at = now
        self._learn(evidence, symptoms, dt, now, strategy)
        scores = self.scores = self._scores(symptoms, limits, eligible(evidence.subjects, strategy))
        before = self._state[rows]
        self._advance(scores, now, dt, strategy)
        after = self._state[rows]
        changed = {tuple(index) for index in np.argwhere(before != after).tolist()}
        where = np.nonzero((after != AlarmState.QUIET) | (before != AlarmState.QUIET))
        figures = (after[where], scores[where], np.nan_to_num(symptoms[where]), self._since[rows][where])
        columns: list[NDArray[Any]] = [*where, *figures]
        tracks = [_Track(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]
        self._step += 1
        turns = -(-len(tracks) // RENEWED_PER_STEP)  # with many verdicts, each is renewed in turn
        verdicts, changes = [], []
        for number, track in enumerate(tracks):
            renew = (number + self._step) % turns == 0 or track.place in changed
            verdict = self._verdict(evidence, track, now, limits, renew=renew)
            if verdict.state is not AlarmState.QUIET:
                verdicts.append(verdict)
            if track.place in changed:
                changes.append(StateChange(verdict, AlarmState(int(before[track.place]))))
        return Detection(tuple(verdicts), tuple(changes))

    def _assign_rows(self, subjects: tuple[Subject, ...]) -> None:
        """Assign a row to every container; rows of containers that are gone become free."""
        if subjects is self._subjects:
            return
        keys = [subject.key for subject in subjects]
        gone = self._row_of.keys() - set(keys)
        self._free += [self._row_of.pop(key) for key in gone]
        self._last = {track: verdict for track, verdict in self._last.items() if track[0] not in gone}
        self._free.sort(reverse=True)
        new_keys = [key for key in keys if key not in self._row_of]
        if len(new_keys) > len(self._free):
            self._grow(len(self._state) + max(len(new_keys), len(self._state), _FIRST_ROWS))
        assigned = [self._free.pop() for _ in new_keys]
        self._row_of.update(zip(new_keys, assigned, strict=True))
        new_rows = np.array(assigned, dtype=np.intp)
        self._baseline.forget(new_rows)
        self._usual[new_rows] = self._support[new_rows] = np.nan
        self._state[new_rows] = AlarmState.QUIET
        self._since[new_rows] = self._began[new_rows] = self._suspected[new_rows] = 0.0
        self._subjects = subjects
        self._rows = np.array([self._row_of[key] for key in keys], dtype=np.intp)

    def _grow(self, rows: int) -> None:
        before = len(self._state)
        self._baseline.grow(rows)
        for name in ("_usual", "_support", "_state", "_since", "_began", "_suspected"):
            old = getattr(self, name)
            new = np.zeros((rows, *old.shape[1:]), dtype=old.dtype)
            new[:before] = old
            setattr(self, name, new)
        self._free += range(rows - 1, before - 1, -1)

    def _learn(
        self, evidence: Evidence, symptoms: Floats, dt: float, now: float, strategy: InterferenceStrategy
    ) -> None:
        """Update the usual values of everything that is quiet."""
        rows = self._rows
        half_life = float(strategy.half_life_seconds or 1)
        quiet = (self._state[rows] == AlarmState.QUIET).all(axis=2)
        if dt > 0:
            values = symptoms[..., NEIGHBOUR]
            self._baseline.learn(rows, np.nan_to_num(values), quiet & ~np.isnan(values), dt, half_life)
            self._support[rows] = _moving_mean(self._support[rows], _support(evidence), quiet, 0.5 ** (dt / half_life))
        if now - self._usual_at >= USUAL_SECONDS:
            self._usual_at = now
            needed = min(strategy.learn_seconds or 0, _max_learned_seconds(half_life))
            enough = self._baseline.learned_seconds(rows) >= needed
            self._usual[rows] = np.where(enough, self._baseline.quantile(rows, USUAL_QUANTILE), np.nan)

    def _scores(self, symptoms: Floats, limits: ThresholdColumns, judged: NDArray[np.bool_]) -> Floats:
        others, own = symptoms[..., NEIGHBOUR], symptoms[..., SELF]
        usual = np.maximum(self._usual[self._rows], 1e-9)
        with np.errstate(divide="ignore", invalid="ignore"):
            above_usual = np.minimum(
                np.where(limits.least > 0, others / limits.least, np.inf), others / (limits.factor * usual)
            )
            neighbour = np.fmax(others / limits.lost, above_usual)
            scores = np.stack([neighbour, own / limits.lost], axis=2)
        scores[~judged] = 0.0
        scores[:, ~limits.enabled] = 0.0
        finite: Floats = np.nan_to_num(scores, nan=0.0, posinf=1e9)
        return finite

    def _advance(self, scores: Floats, now: float, dt: float, strategy: InterferenceStrategy) -> None:
        """Apply the state transitions."""
        rows = self._rows
        old, high, suspected = self._state[rows], scores >= 1.0, self._suspected[rows]
        if not old.any() and not high.any() and not suspected.any():  # everything is quiet and stays so
            return
        since, began = self._since[rows], self._began[rows]
        low = scores < (strategy.leave_percent or 100) / 100
        min_seconds = (strategy.min_duration_seconds or 0) - JITTER_SECONDS
        again = (old == _QUIET) & high & (suspected > 0.0)
        suspected += dt * (again | ((old == _SUSPECTED) & ~low))
        suspected -= dt * FADING_RATIO * ((old <= _SUSPECTED) & low)
        np.maximum(suspected, 0.0, out=suspected)
        enough, lasted = suspected >= min_seconds, now - since >= min_seconds
        new = old.copy()
        new[(old == _QUIET) & high] = _SUSPECTED
        new[(old == _SUSPECTED) & high & enough] = _INTERFERED
        new[(old == _SUSPECTED) & low] = _QUIET
        new[(old == _INTERFERED) & low] = _RECOVERING
        new[(old == _RECOVERING) & low & lasted] = _QUIET
        new[(old == _RECOVERING) & high] = _INTERFERED
        suspected[new >= _INTERFERED] = 0.0
        began[(old == _QUIET) & high] = now
        # A score between the two thresholds restarts the recovery time.
        since[(new != old) | ((old == _RECOVERING) & ~low)] = now
        self._state[rows] = new
        self._since[rows] = since
        self._began[rows] = began
        self._suspected[rows] = suspected

    def _verdict(
        self, evidence: Evidence, track: _Track, now: float, limits: ThresholdColumns, *, renew: bool
    ) -> Verdict:
        """The verdict of one track. Culprits stay as they were last measured while the score is below 1."""
        subject, state = evidence.subjects[track.row], STATES[track.state]
        key = (subject.key, track.resource, track.cause)
        last = self._last.get(key)
        measured = evidence.resources.get(RESOURCES[track.resource])
        if last is not None and (not renew or measured is None or track.score < 1.0):
            verdict = msgspec.structs.replace(
                last, state=state, score=track.score, lost=track.lost, since=track.since, at=now
            )
        else:
            verdict = self._new_verdict(evidence, measured, track, now, limits)
        if state is AlarmState.QUIET:
            self._last.pop(key, None)
        else:
            self._last[key] = verdict
        return verdict

    def _new_verdict(
        self,
        evidence: Evidence,
        measured: ResourceEvidence | None,
        track: _Track,
        now: float,
        limits: ThresholdColumns,
    ) -> Verdict:
        subject = evidence.subjects[track.row]
        resource, cause = RESOURCES[track.resource], CAUSES[track.cause]
        culprits: tuple[Culprit, ...] = ()
        parts: dict[str, float] = {}
        if measured is not None:
            parts = {name: float(v) for name, column in measured.parts.items() if (v := column[track.row]) > 0}
            if cause is Cause.NEIGHBOUR:
                culprits = other_culprits(subject, measured.culprits(track.row))
        named = measured is not None and measured.named
        source = "" if measured is None else measured.source
        return Verdict(
            victim=subject,
            resource=resource,
            cause=cause,
            state=STATES[track.state],
            score=track.score,
            lost=track.lost,
            began=float(self._began[self._rows[track.row], track.resource, track.cause]),
            since=track.since,
            at=now,
            window=evidence.seconds,
            source=source,
            confidence=advice.confidence(source, track.score, culprits, named=named, cause=cause),
            severity=advice.severity(track.lost, track.score),
            action=advice.action(subject, resource, cause, culprits, parts),
            signals=tuple(self._signals(measured, track, limits)),
            culprits=culprits,
            parts=parts,
        )

    def _signals(self, measured: ResourceEvidence | None, track: _Track, limits: ThresholdColumns) -> list[Signal]:
        row, resource = self._rows[track.row], track.resource
        usual = _known(self._usual[row, resource]) if track.cause == NEIGHBOUR else None
        limit = float(limits.lost[resource])
        if usual is not None:
            limit = min(limit, max(float(limits.least[resource]), float(limits.factor[resource]) * usual))
        if RESOURCES[resource] is WaitResource.CACHE:
            signals = [Signal("cycles per instruction", "cpi", track.lost, usual, limit)]
        else:
            name = "lost to others" if track.cause == NEIGHBOUR else "lost by its own doing"
            signals = [Signal(name, "share", track.lost, usual, limit)]
        if measured is None:
            return signals
        for column, (name, unit, attribute) in enumerate(SUPPORT):
            values = getattr(measured, attribute)
            if values is not None and not np.isnan(values[track.row]):
                usual_support = _known(self._support[row, resource, column])
                signals.append(Signal(name, unit, float(values[track.row]), usual_support))
        if measured.hypervisor is not None and measured.hypervisor[track.row] > 0:
            signals.append(Signal("lost to the hypervisor", "share", float(measured.hypervisor[track.row]), None))
        return signals


def other_culprits(victim: Subject, culprit_times: Sequence[CulpritTime]) -> tuple[Culprit, ...]:
    """Culprits other than the victim, the idle CPU, the hypervisor and unknown ones, largest first; shares are of all
    waiting."""
    total = sum(item.seconds for item in culprit_times)
    if total <= 0:
        return ()
    others = [
        item
        for item in culprit_times
        if item.owner.kind not in ("idle", "hypervisor", "unknown")
        and not (item.owner.subject is not None and item.owner.subject.key == victim.key)
    ]
    return tuple(Culprit(item.owner, min(item.seconds / total, 1.0), item.seconds) for item in others[:MAX_CULPRITS])


def eligible(subjects: tuple[Subject, ...], strategy: InterferenceStrategy) -> NDArray[np.bool_]:
    """Which containers can be victims, by their QoS class."""
    classes = set(strategy.victim_qos_classes)
    return np.array([subject.qos in classes for subject in subjects], dtype=bool)


def _symptoms(evidence: Evidence, limits: ThresholdColumns) -> Floats:
    """[containers, resources, causes]"""
    symptoms = np.full((len(evidence.subjects), len(RESOURCES), len(CAUSES)), np.nan)
    for index, resource in enumerate(RESOURCES):
        measured = evidence.resources.get(resource)
        if measured is not None and limits.enabled[index]:
            symptoms[:, index, NEIGHBOUR], symptoms[:, index, SELF] = measured.others, measured.own
    return symptoms


def _support(evidence: Evidence) -> Floats:
    """[containers, resources, SUPPORT]"""
    values = np.full((len(evidence.subjects), len(RESOURCES), len(SUPPORT)), np.nan)
    for index, resource in enumerate(RESOURCES):
        measured = evidence.resources.get(resource)
        for column, (_, _, attribute) in enumerate(SUPPORT):
            figures = None if measured is None else getattr(measured, attribute)
            if figures is not None:
                values[:, index, column] = figures
    return values


def _moving_mean(old: Floats, new: Floats, quiet: NDArray[np.bool_], keep: float) -> Floats:
    """A moving mean that includes `new` where a resource is quiet and has a value."""
    first = np.isnan(old)
    mixed = np.where(first, new, old * keep + new * (1.0 - keep))
    return np.where(quiet[..., None] & ~np.isnan(new), mixed, old)


def _max_learned_seconds(half_life: float) -> float:
    """Upper bound of the seconds that a decayed histogram can represent, less 10 %."""
    return 0.9 * half_life / math.log(2.0)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
