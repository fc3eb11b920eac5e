"""One evaluation a second: evidence, verdicts, history, and word to whoever listens. The heart of the layer's wiring.

A step that raises is counted and logged by its periodic task and the next one comes as usual. Listeners hear of every
alarm that begins or ends, and of one whose worst culprit is another for at least the minimum duration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from koordlet.api.sloconfig.interference import InterferenceStrategy
from koordlet.interference.detector import Detector
from koordlet.interference.history import History
from koordlet.interference.model import CAUSES, RESOURCES, Cause, Evidence, Resource, State, Verdict
from koordlet.interference.policy import Policy

Track = tuple[str, Resource, Cause]
"""Subject key, resource, cause."""


class Gathers(Protocol):
    """Where evidence comes from."""

    def gather(self, now: float, strategy: InterferenceStrategy) -> Evidence | None:
        """The strategy's window that ends now; None while there is nothing."""
        ...


class Listener(Protocol):
    """Who wants to know of alarms."""

    def began(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """An alarm is on."""

    def turned(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """Somebody else is to blame now."""

    def ended(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """The alarm is off."""


@dataclass(slots=True)
class _Blame:
    """Who was named, and who has been the worst since when."""

    named: str
    worst: str
    since: float


class Watch:
    """Owns detector and history; `step` is one round."""

    def __init__(self, gatherer: Gathers, policy: Policy, *, clock: Callable[[], float]) -> None:
        self._gatherer, self.policy, self._clock = gatherer, policy, clock
        self._listeners: list[Listener] = []
        self._blames: dict[Track, _Blame] = {}
        self.detector, self.history = Detector(), History()
        self.evidence: Evidence | None = None
        self.verdicts: dict[str, tuple[Verdict, ...]] = {}
        """Subject key -> what is wrong with it now, suspicions included."""
        self.detections: dict[tuple[str, str], int] = {(r.value, c.value): 0 for r in RESOURCES for c in CAUSES}
        """(resource, cause) -> alarms that began."""
        self.alarm_seconds: dict[tuple[str, str], float] = dict.fromkeys(self.detections, 0.0)
        """(resource, cause) -> container-seconds with an alarm on."""
        self._at: float | None = None

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    @property
    def active(self) -> list[Verdict]:
        """Verdicts whose alarm is on."""
        return [verdict for found in self.verdicts.values() for verdict in found if verdict.on]

    def step(self) -> None:
        """Evaluate the window that ends now."""
        now, strategy = self._clock(), self.policy.current()
        if strategy.enable is False:
            self._stop(strategy)
            return
        evidence = self._gatherer.gather(now, strategy)
        if evidence is None:
            return
        gone = self._known_gone(evidence)
        self.evidence = evidence
        outcome = self.detector.step(evidence, now, strategy)
        alarms = tuple(change for change in outcome.changes if _alarm(change.before) != change.verdict.on)
        self.history.note(evidence.subjects, self.detector.symptoms, alarms, now)
        found: dict[str, list[Verdict]] = {}
        for verdict in outcome.verdicts:
            found.setdefault(verdict.victim.key, []).append(verdict)
        self.verdicts = {key: tuple(verdicts) for key, verdicts in found.items()}
        self._account(now)
        for verdict in gone:
            self._tell_end(verdict, strategy)
        for change in alarms:
            if change.verdict.on:
                self._tell_begin(change.verdict, strategy, now)
            else:
                self._tell_end(change.verdict, strategy)
        self._follow_culprits(strategy, now)

    def _known_gone(self, evidence: Evidence) -> list[Verdict]:
        """Alarms of containers that exist no more."""
        if self.evidence is None or self.evidence.subjects is evidence.subjects:
            return []
        keys = {subject.key for subject in evidence.subjects}
        return [verdict for verdict in self.active if verdict.victim.key not in keys]

    def _stop(self, strategy: InterferenceStrategy) -> None:
        """Switched off: nothing is wrong any more, and what was usual is forgotten."""
        if self.evidence is None:
            return
        for verdict in self.active:
            self._tell_end(verdict, strategy)
        self.detector, self.evidence, self.verdicts, self._at = Detector(), None, {}, None
        self._blames.clear()

    def _account(self, now: float) -> None:
        dt = 0.0 if self._at is None else max(now - self._at, 0.0)
        self._at = now
        for verdict in self.active:
            self.alarm_seconds[verdict.resource.value, verdict.cause.value] += dt

    def _tell_begin(self, verdict: Verdict, strategy: InterferenceStrategy, now: float) -> None:
        self.detections[verdict.resource.value, verdict.cause.value] += 1
        worst = _worst(verdict)
        self._blames[_track(verdict)] = _Blame(worst, worst, now)
        for listener in self._listeners:
            listener.began(verdict, strategy)

    def _tell_end(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        self._blames.pop(_track(verdict), None)
        for listener in self._listeners:
            listener.ended(verdict, strategy)

    def _follow_culprits(self, strategy: InterferenceStrategy, now: float) -> None:
        for verdict in self.active:
            blame = self._blames.get(_track(verdict))
            if blame is None or verdict.state is not State.INTERFERED:
                continue
            worst = _worst(verdict)
            if worst != blame.worst:
                blame.worst, blame.since = worst, now
            if worst and worst != blame.named and now - blame.since >= (strategy.min_duration_seconds or 0):
                blame.named = worst
                for listener in self._listeners:
                    listener.turned(verdict, strategy)

    def judged(self, figures: NDArray[np.generic]) -> Iterator[tuple[int, Resource, Cause, float]]:
        """(container, resource, cause, figure) of what was judged, where it isn't 0; *figures* are a table of the
        detector's: states, scores or symptoms."""
        symptoms = self.detector.symptoms
        rows, resources, causes = ((symptoms == symptoms) & (figures != 0)).nonzero()  # not NaN
        columns = (rows, resources, causes, figures[rows, resources, causes])
        for row, resource, cause, figure in zip(*(column.tolist() for column in columns), strict=True):
            yield row, RESOURCES[resource], CAUSES[cause], float(figure)


def _track(verdict: Verdict) -> Track:
    return verdict.victim.key, verdict.resource, verdict.cause


def _alarm(state: State) -> bool:
    return state in (State.INTERFERED, State.RECOVERING)


def _worst(verdict: Verdict) -> str:
    """Identity of the worst culprit."""
    if not verdict.culprits:
        return ""
    owner = verdict.culprits[0].owner
    return owner.subject.key if owner.subject is not None else f"{owner.kind}:{owner.name}"
