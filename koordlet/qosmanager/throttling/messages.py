"""The texts and notices of throttling. Pure.

The text of an Event stays the same from step to step, so that repetitions are one Event; the audit log has all values.
"""

from __future__ import annotations

from collections.abc import Iterable

from koordlet.interference import wording
from koordlet.interference.model import Verdict
from koordlet.qosmanager.engine.strategy import Notice
from koordlet.qosmanager.engine.view import PodView
from koordlet.qosmanager.throttling.culprits import CulpritCases
from koordlet.qosmanager.throttling.state import ThrottleState
from koordlet.statesinformer.pods.model import PodMeta

TIGHTENED, RELEASED, FREED = "InterferenceTightened", "InterferenceReleased", "InterferenceFreed"
EXEMPT, WOULD = "InterferenceNotActedOn", "InterferenceWouldAct"
STEPS = "interference_action_steps_total"


def stepped(
    pod: PodMeta,
    resource: str,
    before: ThrottleState | None,
    after: ThrottleState,
    remaining: str,
    why: str,
    event: str,
) -> Notice:
    """The level of a culprit changed; `remaining` and `why` in words, `event` empty for no Event."""
    down = is_step_down(before, after)
    details = {
        "resource": resource,
        "level": after.level,
        "base": after.base,
        "was": before and before.level,
        "provisional": not after.confirmed,
    }
    step = f"throttled to {remaining}" if down else f"released up to {remaining}"
    return Notice(
        pod,
        TIGHTENED if down else RELEASED,
        f"{resource}: {step}: {why}",
        event=event,
        warning=True,
        details=details,
        counts=(STEPS, resource, "tighten" if down else "release"),
    )


def is_step_down(before: ThrottleState | None, after: ThrottleState) -> bool:
    return before is None or after.level < before.level


def remaining_text(resource: str, state: ThrottleState, setting: str) -> str:
    """`60 % of 1000m, quota 60000 us`; `setting` is the lever's text."""
    return f"{state.level} % of {_amount(resource, state.base)}, {setting}"


def culprit_event(resource: str, cases: CulpritCases) -> str:
    """Event on a culprit pod that is throttled."""
    verdict, _ = cases.worst
    reason = f"{_container(verdict)} waits {wording.WAITS[verdict.resource]} because of it"
    return f"{resource} is throttled: {reason}"


def victim_notices(
    pods: Iterable[PodView], culprit: PodMeta, resource: str, cases: CulpritCases, remaining: str
) -> list[Notice]:
    """Events on the victims' pods."""
    text = f"{culprit.namespace}/{culprit.name}, which delays it, gets less {resource}"
    uids = {uid for uid, _ in cases.victims}
    return [Notice(pod.meta, TIGHTENED, f"{text}: {remaining}", event=text) for pod in pods if pod.meta.uid in uids]


def freed(pod: PodMeta, resource: str, why: str, *, event: bool) -> Notice:
    """A culprit is no longer throttled."""
    text = f"{resource} is no longer throttled" if event else ""
    return Notice(pod, FREED, f"{resource}: no longer throttled, {why}", event=text, counts=(STEPS, resource, "free"))


def exempt(verdict: Verdict, pod: PodView, *, event: bool) -> Notice:
    """The worst culprit must not be throttled."""
    classes = f"{pod.meta.qos or 'no QoS class'}, {pod.meta.priority_class or 'no priority class'}"
    text = f"delays {_container(verdict)} and is not throttled ({classes}): {wording.sentence(verdict)}"
    event_text = f"delays {_container(verdict)} in {verdict.resource.value}; pods of its class are never throttled"
    return Notice(pod.meta, EXEMPT, text, event=event_text if event else "")


def would_throttle(pod: PodMeta, resource: str, cases: CulpritCases) -> Notice:
    """Policy `report`."""
    return Notice(pod, WOULD, f"{resource} would be throttled: {why_text(cases)}")


def why_text(cases: CulpritCases) -> str:
    """`container web of shop/web-0 lost 43 % of its time waiting for a CPU, 55 % of that for this pod (and 2 more)`"""
    verdict, share = cases.worst
    more = len(cases.cases) - 1
    lost = f"lost {wording.percent(verdict.lost)} of its time waiting {wording.WAITS[verdict.resource]}"
    also = f" (and {more} more)" if more else ""
    return f"{_container(verdict)} {lost}, {wording.percent(share)} of that for this pod{also}"


def _amount(resource: str, base: int) -> str:
    match resource:
        case "io":
            return f"{base >> 10} KiB per second"
        case "network":
            return "its class"
        case "cpu":
            return f"{base}m"
        case _:
            return f"{base >> 20} MiB"


def _container(verdict: Verdict) -> str:
    victim = verdict.victim
    return f"container {victim.name} of {victim.namespace}/{victim.pod_name}"
