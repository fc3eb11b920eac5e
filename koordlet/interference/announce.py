"""Who hears of alarms: the log, the audit log, and the victim pod's Events.

An Event is sent when an alarm begins, when somebody else is to blame, and when it ends; for one container, resource and
cause at most every `EVENT_SECONDS`, and an end only if its beginning was sent. Everything else is in metrics.
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
from koordlet.interference import say
from koordlet.interference.advice import ACTIONS
from koordlet.interference.model import Cause, Resource, Verdict

log = get_logger(__name__)

EVENT_SECONDS = 60.0
DETECTED, OWN, ENDED = "InterferenceDetected", "SelfInflictedDelay", "InterferenceEnded"
AUDIT_LEVEL = 1


class Recorder(Protocol):
    """`koordlet.kube.EventRecorder`, as far as it is needed."""

    def event(self, about: ObjectReference, type: str, reason: str, message: str) -> None: ...


class Announcer:
    """A listener of `Watch`."""

    def __init__(self, auditor: Auditor, recorder: Recorder | None = None, *, clock: Callable[[], float]) -> None:
        self._auditor, self._recorder, self._clock = auditor, recorder, clock
        self._told: dict[tuple[str, Resource, Cause], float] = {}
        """When the last Event of a begin went out."""
        self._open: set[tuple[str, Resource, Cause]] = set()

    def began(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """Say who hurts whom."""
        text = say.sentence(verdict)
        reason = DETECTED if verdict.cause is Cause.NEIGHBOUR else OWN
        self._note(verdict, reason, text)
        self._send(verdict, reason, text, strategy)

    def turned(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """Say who it is now."""
        text = say.sentence(verdict)
        self._note(verdict, "CulpritChanged", text)
        self._send(verdict, DETECTED, text, strategy, turned=True)

    def ended(self, verdict: Verdict, strategy: InterferenceStrategy) -> None:
        """Say that it is over."""
        lasted = self._clock() - verdict.began
        text = f"container {verdict.victim.name}: {verdict.resource.value} trouble ended after {lasted:.0f} s"
        self._note(verdict, ENDED, text)
        key = (verdict.victim.key, verdict.resource, verdict.cause)
        if key in self._open:
            self._open.discard(key)
            self._emit(verdict, "Normal", ENDED, text)

    def _note(self, verdict: Verdict, reason: str, text: str) -> None:
        victim = verdict.victim
        log.info(
            "interference",
            what=reason,
            pod=f"{victim.namespace}/{victim.pod_name}",
            container=victim.name,
            resource=verdict.resource.value,
            cause=verdict.cause.value,
            score=round(verdict.score, 2),
            confidence=verdict.confidence,
            culprit=say.owner_label(verdict.culprits[0].owner) if verdict.culprits else "",
        )
        if self._auditor.enabled(AUDIT_LEVEL):
            about = (
                about_pod(victim.namespace, victim.pod_name, victim.name) if victim.pod_uid else about_other(victim.key)
            )
            details = {**{k: v for k, v in _facts(verdict).items() if v != ""}}
            self._auditor.record(AUDIT_LEVEL, about, reason, text, details=details)

    def _send(
        self, verdict: Verdict, reason: str, text: str, strategy: InterferenceStrategy, *, turned: bool = False
    ) -> None:
        if strategy.event is False:
            return
        key, now = (verdict.victim.key, verdict.resource, verdict.cause), self._clock()
        if now - self._told.get(key, -EVENT_SECONDS) < EVENT_SECONDS and not (turned and key in self._open):
            return
        if len(self._told) > 4096:
            self._told = {k: at for k, at in self._told.items() if now - at < EVENT_SECONDS}
        self._told[key] = now
        self._open.add(key)
        type = "Warning" if verdict.cause is Cause.NEIGHBOUR else "Normal"
        self._emit(verdict, type, reason, f"{text}. {ACTIONS[verdict.action]}")

    def _emit(self, verdict: Verdict, type: str, reason: str, text: str) -> None:
        victim = verdict.victim
        if self._recorder is None or not victim.pod_uid or not victim.namespace:
            return
        pod = ObjectReference(
            api_version="v1",
            kind="Pod",
            name=victim.pod_name,
            namespace=victim.namespace,
            uid=victim.pod_uid,
            field_path=f"spec.containers{{{victim.name}}}",
        )
        self._recorder.event(pod, type, reason, text)


def _facts(verdict: Verdict) -> dict[str, object]:
    worst = verdict.culprits[0] if verdict.culprits else None
    return {
        "resource": verdict.resource.value,
        "cause": verdict.cause.value,
        "lost": round(verdict.lost, 3),
        "score": round(verdict.score, 2),
        "confidence": verdict.confidence,
        "culprit": "" if worst is None else say.owner_label(worst.owner),
        "share": "" if worst is None else round(worst.share, 3),
        "action": verdict.action,
    }
