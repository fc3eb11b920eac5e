"""Publishes alarms: log, audit log, and Events on the victim pod.

An Event is sent when an alarm begins, when its worst culprit changes, and when it ends; per container, resource and
cause at most every `EVENT_SECONDS`, and the end only if the begin was sent. Metrics have all the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from koordlet.api.meta import ObjectReference
from koordlet.api.sloconfig.interference import InterferenceStrategy
from koordlet.app.logging import get_logger
from koordlet.audit import Auditor
from koordlet.audit import pod as about_pod
from koordlet.audit import unknown as about_other
from koordlet.interference import wording
from koordlet.interference.advice import ACTIONS
from koordlet.interference.model import Cause, Track, Verdict

log = get_logger(__name__)

EVENT_SECONDS = 60.0
EVENT_TIMES_KEPT = 4096
DETECTED, OWN, ENDED = "InterferenceDetected", "SelfInflictedDelay", "InterferenceEnded"
AUDIT_LEVEL = 1


class AlarmEventRecorder(Protocol):
    """The used part of `koordlet.kube.EventRecorder`."""

    def event(self, about: ObjectReference, type: str, reason: str, message: str) -> bool: ...


class AlarmPublisher:
    """A listener of `InterferenceEvaluator`. Without a recorder, no Events are sent."""

    def __init__(
        self, auditor: Auditor, recorder: AlarmEventRecorder | None = None, *, clock: Callable[[], float]
    ) -> None:
        self._auditor = auditor
        self._recorder = recorder
        self._clock = clock
        self._event_times: dict[Track, float] = {}
        """Time of the last Event about a begin."""
        self._begin_sent: set[Track] = set()

    def began(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """An alarm began."""
        text = wording.sentence(verdict)
        reason = DETECTED if verdict.cause is Cause.NEIGHBOUR else OWN
        self._log(verdict, reason, text)
        self._send(verdict, reason, text, strategy)

    def culprit_changed(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """An active alarm has another worst culprit."""
        text = wording.sentence(verdict)
        self._log(verdict, "CulpritChanged", text)
        self._send(verdict, DETECTED, text, strategy, update=True)

    def ended(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """An alarm ended."""
        lasted = self._clock() - verdict.began
        text = f"container {verdict.victim.name}: {verdict.resource.value} trouble ended after {lasted:.0f} s"
        self._log(verdict, ENDED, text)
        track = verdict.track
        if track in self._begin_sent:
            self._begin_sent.discard(track)
            self._emit(verdict, "Normal", ENDED, text)

    def _log(self, verdict: Verdict, reason: str, text: str) -> None:
        victim = verdict.victim
        log.info(
            "Interference",
            what=reason,
            pod=f"{victim.namespace}/{victim.pod_name}",
            container=victim.name,
            resource=verdict.resource.value,
            cause=verdict.cause.value,
            score=round(verdict.score, 2),
            confidence=verdict.confidence,
            culprit=wording.owner_label(verdict.culprits[0].owner) if verdict.culprits else "",
        )
        if self._auditor.enabled(AUDIT_LEVEL):
            about = (
                about_pod(victim.namespace, victim.pod_name, victim.name) if victim.pod_uid else about_other(victim.key)
            )
            details = {name: value for name, value in _details(verdict).items() if value != ""}
            self._auditor.record(AUDIT_LEVEL, about, reason, text, details=details)

    def _send(
        self, verdict: Verdict, reason: str, text: str, strategy: InterferenceStrategy, *, update: bool = False
    ) -> None:
        """Send an Event unless one about this track was sent recently; an update of an active alarm is always sent."""
        if strategy.event is False:
            return
        track, now = verdict.track, self._clock()
        recent = now - self._event_times.get(track, -EVENT_SECONDS) < EVENT_SECONDS
        if recent and not (update and track in self._begin_sent):
            return
        if len(self._event_times) > EVENT_TIMES_KEPT:
            self._event_times = {track: at for track, at in self._event_times.items() if now - at < EVENT_SECONDS}
        self._event_times[track] = now
        type = "Warning" if verdict.cause is Cause.NEIGHBOUR else "Normal"
        if self._emit(verdict, type, reason, f"{text}. {ACTIONS[verdict.action]}"):
            self._begin_sent.add(track)

    def _emit(self, verdict: Verdict, type: str, reason: str, text: str) -> bool:
        """Whether the Event is sent."""
        victim = verdict.victim
        if self._recorder is None or not victim.pod_uid or not victim.namespace:
            return False
        pod = ObjectReference(
            api_version="v1",
            kind="Pod",
            name=victim.pod_name,
            namespace=victim.namespace,
            uid=victim.pod_uid,
            field_path=f"spec.containers{{{victim.name}}}",
        )
        return self._recorder.event(pod, type, reason, text)


def _details(verdict: Verdict) -> dict[str, object]:
    worst = verdict.culprits[0] if verdict.culprits else None
    return {
        "resource": verdict.resource.value,
        "cause": verdict.cause.value,
        "lost": round(verdict.lost, 3),
        "score": round(verdict.score, 2),
        "confidence": verdict.confidence,
        "culprit": "" if worst is None else wording.owner_label(worst.owner),
        "share": "" if worst is None else round(worst.share, 3),
        "action": verdict.action,
    }
