"""From verdicts to culprits that may be throttled. Pure.

Only best-effort pods are throttled: class BE, and priority batch at most. Other culprits are named by the verdict's
Event and not modified here. Of one verdict's best-effort culprits, those with at least half of the largest share are
throttled: so the worst comes first, and equal ones together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from koordlet.api.priority import BATCH, FREE, NONE
from koordlet.api.qos import BE, LS, LSE, LSR
from koordlet.interference.model import AlarmState, Cause, Verdict
from koordlet.qosmanager.engine.view import PodView
from koordlet.qosmanager.throttling.state import CulpritStatus

VICTIM_CLASSES = (LSE, LSR, LS)
CULPRIT_PRIORITIES = (BATCH, FREE, NONE)
MIN_RATIO_TO_WORST = 0.5
_STATUS_OF = {
    AlarmState.INTERFERED: CulpritStatus.INTERFERES,
    AlarmState.SUSPECTED: CulpritStatus.SUSPECTED,
    AlarmState.RECOVERING: CulpritStatus.RECOVERING,
}
"""The first that applies is the culprit's status."""
Key = tuple[str, str]
"""Pod UID, resource."""


@dataclass(frozen=True, slots=True)
class CulpritCases:
    """Verdicts against one pod, for one resource. `cases`: (verdict, the pod's share of that victim's waiting)."""

    status: CulpritStatus
    cases: tuple[tuple[Verdict, float], ...]

    @property
    def worst(self) -> tuple[Verdict, float]:
        """The case that explains the throttling."""
        return max(self.cases, key=lambda case: (case[0].state is AlarmState.INTERFERED, case[1]))

    @property
    def victims(self) -> tuple[tuple[str, str], ...]:
        """(pod UID, container) of all victims."""
        return tuple(sorted({(verdict.victim.pod_uid, verdict.victim.name) for verdict, _ in self.cases}))


def may_be_throttled(pod: PodView) -> bool:
    """Whether the pod is an active best-effort pod."""
    meta = pod.meta
    return meta.qos == BE and meta.priority_class in CULPRIT_PRIORITIES and meta.pod is not None and pod.active


def shares(verdict: Verdict) -> dict[str, float]:
    """Pod UID -> share of the victim's waiting, its containers summed; the victim's own pod is left out."""
    by_uid: dict[str, float] = {}
    for culprit in verdict.culprits:
        uid = culprit.owner.pod_uid
        if uid and uid != verdict.victim.pod_uid:
            by_uid[uid] = by_uid.get(uid, 0.0) + culprit.share
    return by_uid


def counts(verdict: Verdict, resources: Collection[str], min_confidence: float) -> bool:
    """Whether the verdict is a reason to throttle: with an active alarm, or a suspicion that is given as one."""
    return (
        verdict.cause is Cause.NEIGHBOUR
        and (verdict.on or verdict.state is AlarmState.SUSPECTED)
        and verdict.resource.value in resources
        and verdict.victim.qos in VICTIM_CLASSES
        and verdict.confidence >= min_confidence
    )


def alone_enough(verdict: Verdict, caused: float) -> bool:
    """Whether the part of the loss that the candidates caused is above the alarm's threshold on its own. Short evidence
    has to be this clear; `caused` is their share of the victim's waiting."""
    whole = sum(culprit.share for culprit in verdict.culprits)
    return whole > 0 and verdict.score * caused / whole >= 1.0


def throttle_candidates(
    verdicts: Iterable[Verdict],
    pods: Mapping[str, PodView],
    resources: Collection[str],
    *,
    min_share: float,
    min_confidence: float,
) -> tuple[dict[Key, CulpritCases], list[tuple[Verdict, PodView]]]:
    """Culprits to throttle, and worst culprits that must not be throttled. `verdicts`: with an active alarm, and
    suspicions."""
    cases: dict[Key, list[tuple[Verdict, float]]] = {}
    exempt: list[tuple[Verdict, PodView]] = []
    for verdict in verdicts:
        if not counts(verdict, resources, min_confidence):
            continue
        known = {uid: share for uid, share in shares(verdict).items() if uid in pods}
        if not known:
            continue
        worst = pods[max(known, key=lambda uid: known[uid])]
        if not may_be_throttled(worst) and verdict.on:
            exempt.append((verdict, worst))
        candidates = {uid: share for uid, share in known.items() if may_be_throttled(pods[uid])}
        caused = sum(candidates.values())
        if caused < min_share or not (verdict.on or alone_enough(verdict, caused)):
            continue
        largest = max(candidates.values())
        for uid, share in candidates.items():
            if share >= MIN_RATIO_TO_WORST * largest:
                cases.setdefault((uid, verdict.resource.value), []).append((verdict, share))
    return {key: _of_culprit(of_key) for key, of_key in cases.items()}, exempt


def _of_culprit(cases: list[tuple[Verdict, float]]) -> CulpritCases:
    states = {verdict.state for verdict, _ in cases}
    status = next(status for state, status in _STATUS_OF.items() if state in states)
    return CulpritCases(status, tuple(cases))
