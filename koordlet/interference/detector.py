"""The decision: evidence in, verdicts out. Deterministic, no clock and no I/O of its own, columns throughout.

Score of a symptom x, for trouble that others cause:

    score = max( x / lostPercent,  min( x / minLostPercent,  x / (factorPercent * usual) ) )

`usual` is the 95th percentile of x while the container was quiet; the second term counts once `learnSeconds` were
learnt. Own trouble is judged by the first term alone. States, for each container, resource and cause:

    quiet --score>=1--> suspected --for minDuration--> interfered --score<leave--> recovering --for minDuration--> quiet
                        suspected --score<leave--> quiet             recovering --score>=1--> interfered

so an alarm (interfered, recovering) begins only after minDuration of trouble and ends only after minDuration without.
Without evidence (NaN) the score is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordlet.api.sloconfig.interference import InterferenceStrategy, InterferenceThresholds
from koordlet.interference import advice
from koordlet.interference.baseline import Baseline
from koordlet.interference.model import (
    CAUSES,
    RESOURCES,
    Cause,
    Change,
    Culprit,
    Evidence,
    Floats,
    Resource,
    ResourceEvidence,
    Signal,
    State,
    Verdict,
)
from koordlet.metricsadvisor.stalls.latency import Blame
from koordlet.statesinformer.pods.model import Subject

NEIGHBOUR, SELF = (CAUSES.index(cause) for cause in (Cause.NEIGHBOUR, Cause.SELF))
USUAL_QUANTILE = 0.95
USUAL_SECONDS = 5.0
"""How often `usual` is worked out anew; it moves slowly."""
CULPRITS = 5
FRESH = 6
"""Verdicts whose culprits and words are made anew in one step."""
SUPPORT = (("wait p99", "seconds", "latency"), ("stalled", "share", "pressure"))
_FIRST_ROWS = 64
STATES = tuple(State)
_QUIET, _SUSPECTED, _INTERFERED, _RECOVERING = (int(state) for state in State)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step."""

    verdicts: tuple[Verdict, ...]
    """Of everything that is not quiet."""
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """A strategy as columns, [resources]."""

    lost: Floats
    least: Floats
    factor: Floats
    on: NDArray[np.bool_]

    @classmethod
    def of(cls, strategy: InterferenceStrategy) -> Limits:
        given = [getattr(strategy, resource.value) or InterferenceThresholds() for resource in RESOURCES]
        lost = np.array([(one.lost_percent or 0) / 100 for one in given])
        return cls(
            lost=np.where(lost > 0, lost, np.inf),
            least=np.array([(one.min_lost_percent or 0) / 100 for one in given]),
            factor=np.array([(one.factor_percent or 100) / 100 for one in given]),
            on=np.array([one.enable is not False for one in given]),
        )


class _Now(NamedTuple):
    """One track's figures of this step."""

    state: int
    score: float
    lost: float
    since: float


class Detector:
    """Keeps baselines and states between steps; rows belong to containers and are reused when these are gone."""

    def __init__(self) -> None:
        self._row_of: dict[str, int] = {}
        self._free: list[int] = []
        self._subjects: tuple[Subject, ...] = ()
        self._rows: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._baseline = Baseline(0, len(RESOURCES))
        self._usual = np.zeros((0, len(RESOURCES)))
        self._support = np.zeros((0, len(RESOURCES), len(SUPPORT)))
        """Usual latency and pressure (moving means), NaN before the first."""
        self._state = np.zeros((0, len(RESOURCES), len(CAUSES)), dtype=np.int8)
        self._since = np.zeros((0, len(RESOURCES), len(CAUSES)))
        self._began = np.zeros((0, len(RESOURCES), len(CAUSES)))
        self._last: dict[tuple[str, int, int], Verdict] = {}
        self._at: float | None = None
        self._step = 0
        self._usual_at = -np.inf
        self.symptoms: Floats = np.full((0, len(RESOURCES), len(CAUSES)), np.nan)
        """The symptoms of the last step, row i for container i of its evidence."""
        self.scores: Floats = np.zeros((0, len(RESOURCES), len(CAUSES)))

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The containers of the last step."""
        return self._subjects

    def states(self) -> NDArray[np.int8]:
        """[containers of the last step, resources, causes]"""
        found: NDArray[np.int8] = self._state[self._rows]
        return found

    def usual(self) -> Floats:
        """[containers of the last step, resources]; NaN before enough was learnt."""
        found: Floats = self._usual[self._rows]
        return found

    def alarm_at(self, subjects: tuple[Subject, ...], resource: Resource, strategy: InterferenceStrategy) -> Floats:
        """[subjects]: the symptom that makes a score of 1, neighbours being the cause."""
        index, limits = RESOURCES.index(resource), Limits.of(strategy)
        known = np.full(len(subjects), np.nan)
        if subjects is self._subjects:  # else just after a change, once
            known = self._usual[self._rows, index]
        found: Floats = np.fmin(limits.lost[index], np.maximum(limits.least[index], limits.factor[index] * known))
        return found

    def step(self, evidence: Evidence, now: float, strategy: InterferenceStrategy) -> Outcome:
        """Weigh one window. `now` never runs back; the same calls give the same outcomes."""
        self._seat(evidence.subjects)
        rows, limits = self._rows, Limits.of(strategy)
        symptoms = self.symptoms = _symptoms(evidence, limits)
        dt = 0.0 if self._at is None else max(now - self._at, 0.0)
        self._at = now
        self._learn(evidence, symptoms, dt, now, strategy)
        scores = self.scores = self._scores(symptoms, limits, eligible(evidence.subjects, strategy))
        before = self._state[rows]
        self._advance(scores, now, strategy)
        after = self._state[rows]
        changed = {tuple(at) for at in np.argwhere(before != after).tolist()}
        verdicts, changes = [], []
        where = np.nonzero((after != State.QUIET) | (before != State.QUIET))
        told = np.stack(where, axis=1).tolist()
        figures = (after[where], scores[where], np.nan_to_num(symptoms[where]), self._since[rows][where])
        said = [_Now(*row) for row in zip(*(column.tolist() for column in figures), strict=True)]
        self._step += 1
        turns = -(-len(told) // FRESH)  # in a storm every verdict's words are renewed in turn
        for number, (row, resource, cause) in enumerate(told):
            fresh = (number + self._step) % turns == 0 or (row, resource, cause) in changed
            verdict = self._verdict(evidence, row, resource, cause, now, limits, said[number], fresh=fresh)
            if verdict.state is not State.QUIET:
                verdicts.append(verdict)
            if (row, resource, cause) in changed:
                changes.append(Change(verdict, State(int(before[row, resource, cause]))))
        return Outcome(tuple(verdicts), tuple(changes))

    # --- rows

    def _seat(self, subjects: tuple[Subject, ...]) -> None:
        """Give every container a row; those that are gone leave theirs."""
        if subjects is self._subjects:
            return
        keys = [subject.key for subject in subjects]
        for key in self._row_of.keys() - set(keys):
            self._free.append(self._row_of.pop(key))
            for at in [at for at in self._last if at[0] == key]:
                del self._last[at]
        self._free.sort(reverse=True)
        fresh = [key for key in keys if key not in self._row_of]
        if len(fresh) > len(self._free):
            self._grow(len(self._state) + max(len(fresh), len(self._state), _FIRST_ROWS))
        taken = [self._free.pop() for _ in fresh]
        self._row_of.update(zip(fresh, taken, strict=True))
        new = np.array(taken, dtype=np.intp)
        self._baseline.forget(new)
        self._usual[new] = self._support[new] = np.nan
        self._state[new] = State.QUIET
        self._since[new] = self._began[new] = 0.0
        self._subjects = subjects
        self._rows = np.array([self._row_of[key] for key in keys], dtype=np.intp)

    def _grow(self, rows: int) -> None:
        had = len(self._state)
        self._baseline.grow(rows)
        for name in ("_usual", "_support", "_state", "_since", "_began"):
            old = getattr(self, name)
            new = np.zeros((rows, *old.shape[1:]), dtype=old.dtype)
            new[:had] = old
            setattr(self, name, new)
        self._free += range(rows - 1, had - 1, -1)

    # --- what is usual

    def _learn(
        self, evidence: Evidence, symptoms: Floats, dt: float, now: float, strategy: InterferenceStrategy
    ) -> None:
        rows = self._rows
        half_life = float(strategy.half_life_seconds or 1)
        quiet = (self._state[rows] == State.QUIET).all(axis=2)
        if dt > 0:
            values = symptoms[..., NEIGHBOUR]
            self._baseline.learn(rows, np.nan_to_num(values), quiet & ~np.isnan(values), dt, half_life)
            self._support[rows] = _towards(self._support[rows], _support(evidence), quiet, 0.5 ** (dt / half_life))
        if now - self._usual_at >= USUAL_SECONDS:
            self._usual_at = now
            enough = self._baseline.learnt(rows) >= min(strategy.learn_seconds or 0, _most(half_life))
            self._usual[rows] = np.where(enough, self._baseline.quantile(rows, USUAL_QUANTILE), np.nan)

    # --- how bad it is

    def _scores(self, symptoms: Floats, limits: Limits, judged: NDArray[np.bool_]) -> Floats:
        others, own = symptoms[..., NEIGHBOUR], symptoms[..., SELF]
        usual = np.maximum(self._usual[self._rows], 1e-9)
        with np.errstate(divide="ignore", invalid="ignore"):
            above_usual = np.minimum(
                np.where(limits.least > 0, others / limits.least, np.inf), others / (limits.factor * usual)
            )
            neighbour = np.fmax(others / limits.lost, above_usual)
            scores = np.stack([neighbour, own / limits.lost], axis=2)
        scores[~judged] = 0.0
        scores[:, ~limits.on] = 0.0
        known: Floats = np.nan_to_num(scores, nan=0.0, posinf=1e9)
        return known

    def _advance(self, scores: Floats, now: float, strategy: InterferenceStrategy) -> None:
        rows = self._rows
        old, high = self._state[rows], scores >= 1.0
        if not old.any() and not high.any():  # all is quiet and stays so
            return
        since, began = self._since[rows], self._began[rows]
        low = scores < (strategy.leave_percent or 100) / 100
        lasted = now - since >= (strategy.min_duration_seconds or 0)
        new = old.copy()
        new[(old == _QUIET) & high] = _SUSPECTED
        new[(old == _SUSPECTED) & high & lasted] = _INTERFERED
        new[(old == _SUSPECTED) & low] = _QUIET
        new[(old == _INTERFERED) & low] = _RECOVERING
        new[(old == _RECOVERING) & low & lasted] = _QUIET
        new[(old == _RECOVERING) & high] = _INTERFERED
        began[(old == _QUIET) & high] = now
        # Between the thresholds nothing is over yet: recovery counts from its last such moment.
        since[(new != old) | ((old == _RECOVERING) & ~low)] = now
        self._state[rows], self._since[rows], self._began[rows] = new, since, began

    # --- in words

    def _verdict(
        self,
        evidence: Evidence,
        row: int,
        resource: int,
        cause: int,
        now: float,
        limits: Limits,
        said: _Now,
        *,
        fresh: bool,
    ) -> Verdict:
        subject, state = evidence.subjects[row], STATES[said.state]
        key = (subject.key, resource, cause)
        last = self._last.get(key)
        found = evidence.resources.get(RESOURCES[resource])
        if last is not None and (not fresh or found is None or said.score < 1.0):  # the blame stays where it was found
            verdict = msgspec.structs.replace(
                last, state=state, score=said.score, lost=said.lost, since=said.since, at=now
            )
        else:
            verdict = self._fresh(evidence, found, row, resource, cause, now, limits, said)
        if state is State.QUIET:
            self._last.pop(key, None)
        else:
            self._last[key] = verdict
        return verdict

    def _fresh(
        self,
        evidence: Evidence,
        found: ResourceEvidence | None,
        row: int,
        resource: int,
        cause: int,
        now: float,
        limits: Limits,
        said: _Now,
    ) -> Verdict:
        subject, at = evidence.subjects[row], self._rows[row]
        which, whose = RESOURCES[resource], CAUSES[cause]
        lost, score = said.lost, said.score
        culprits: tuple[Culprit, ...] = ()
        parts: dict[str, float] = {}
        if found is not None:
            parts = {name: float(v) for name, column in found.parts.items() if (v := column[row]) > 0}
            if whose is Cause.NEIGHBOUR:
                culprits = blamed(subject, found.culprits(row))
        named = found is not None and found.named
        source = "" if found is None else found.source
        return Verdict(
            victim=subject,
            resource=which,
            cause=whose,
            state=STATES[said.state],
            score=score,
            lost=lost,
            began=float(self._began[at, resource, cause]),
            since=said.since,
            at=now,
            window=evidence.seconds,
            source=source,
            confidence=advice.confidence(source, score, culprits, named=named, cause=whose),
            severity=advice.severity(lost, score),
            action=advice.action(subject, which, whose, culprits, parts),
            signals=tuple(self._signals(found, row, resource, cause, lost, limits)),
            culprits=culprits,
            parts=parts,
        )

    def _signals(
        self, found: ResourceEvidence | None, row: int, resource: int, cause: int, lost: float, limits: Limits
    ) -> list[Signal]:
        at = self._rows[row]
        usual = _known(self._usual[at, resource]) if cause == NEIGHBOUR else None
        limit = float(limits.lost[resource])
        if usual is not None:
            limit = min(limit, max(float(limits.least[resource]), float(limits.factor[resource]) * usual))
        if RESOURCES[resource] is Resource.CACHE:
            signals = [Signal("cycles per instruction", "cpi", lost, usual, limit)]
        else:
            words = "lost to others" if cause == NEIGHBOUR else "lost by its own doing"
            signals = [Signal(words, "share", lost, usual, limit)]
        for column, (name, unit, attribute) in enumerate(SUPPORT):
            values = None if found is None else getattr(found, attribute)
            if values is not None and not np.isnan(values[row]):
                signals.append(Signal(name, unit, float(values[row]), _known(self._support[at, resource, column])))
        if found is not None and found.hypervisor is not None and found.hypervisor[row] > 0:
            signals.append(Signal("lost to the hypervisor", "share", float(found.hypervisor[row]), None))
        return signals


def blamed(victim: Subject, blames: Sequence[Blame]) -> tuple[Culprit, ...]:
    """Culprits other than the victim, the idle CPU, the hypervisor and nobody, largest first; shares are of everything
    waited."""
    total = sum(one.seconds for one in blames)
    if total <= 0:
        return ()
    others = [
        one
        for one in blames
        if one.owner.kind not in ("idle", "hypervisor", "unknown")
        and not (one.owner.subject is not None and one.owner.subject.key == victim.key)
    ]
    return tuple(Culprit(one.owner, min(one.seconds / total, 1.0), one.seconds) for one in others[:CULPRITS])


def _symptoms(evidence: Evidence, limits: Limits) -> Floats:
    """[containers, resources, causes]"""
    symptoms = np.full((len(evidence.subjects), len(RESOURCES), len(CAUSES)), np.nan)
    for index, resource in enumerate(RESOURCES):
        found = evidence.resources.get(resource)
        if found is not None and limits.on[index]:
            symptoms[:, index, NEIGHBOUR], symptoms[:, index, SELF] = found.others, found.own
    return symptoms


def _support(evidence: Evidence) -> Floats:
    """[containers, resources, SUPPORT]"""
    values = np.full((len(evidence.subjects), len(RESOURCES), len(SUPPORT)), np.nan)
    for index, resource in enumerate(RESOURCES):
        found = evidence.resources.get(resource)
        for column, (_, _, attribute) in enumerate(SUPPORT):
            given = None if found is None else getattr(found, attribute)
            if given is not None:
                values[:, index, column] = given
    return values


def _towards(old: Floats, new: Floats, quiet: NDArray[np.bool_], keep: float) -> Floats:
    """A moving mean that takes `new` where a resource is quiet and a value is there."""
    first = np.isnan(old)
    mixed = np.where(first, new, old * keep + new * (1.0 - keep))
    return np.where(quiet[..., None] & ~np.isnan(new), mixed, old)


def eligible(subjects: tuple[Subject, ...], strategy: InterferenceStrategy) -> NDArray[np.bool_]:
    """Which containers can be victims, by their QoS class."""
    classes = set(strategy.victim_qos_classes)
    return np.array([subject.qos in classes for subject in subjects], dtype=bool)


def _most(half_life: float) -> float:
    """Seconds that a decayed histogram can stand for at the most, with some room."""
    return 0.9 * half_life / math.log(2.0)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
