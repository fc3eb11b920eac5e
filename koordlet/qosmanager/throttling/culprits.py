"""From verdicts to culprits that may be held back. Pure.

Only best-effort pods are: class BE, and of no higher priority than batch. Whoever else hurts a service is named by its
verdict's Event and left alone here. Of the culprits of one verdict those count that have at least half of the worst
one's share: the first is tightened first, and equals together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from koordlet.api.priority import BATCH, FREE, NONE
from koordlet.api.qos import BE, LS, LSE, LSR
from koordlet.interference.model import AlarmState, Cause, Verdict
from koordlet.qosmanager.engine.view import PodView
from koordlet.qosmanager.throttling.level import Blame

VICTIMS = (LSE, LSR, LS)
PRIORITIES = (BATCH, FREE, NONE)
PART_OF_WORST = 0.5
Key = tuple[str, str]
"""Pod UID, resource."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What verdicts say of one pod and resource. `cases`: (verdict, the pod's share of that victim's waiting)."""

    blame: Blame
    cases: tuple[tuple[Verdict, float], ...]

    @property
    def worst(self) -> tuple[Verdict, float]:
        """The case to explain it by."""
        return max(self.cases, key=lambda case: (case[0].state is AlarmState.INTERFERED, case[1]))


def may_be_held_back(pod: PodView) -> bool:
    """Whether acting on this pod is allowed at all."""
    meta = pod.meta
    return meta.qos == BE and meta.priority_class in PRIORITIES and meta.pod is not None and pod.active


def shares(verdict: Verdict) -> dict[str, float]:
    """Pod UID -> share of the victim's waiting, containers added up; the victim's own pod left out."""
    found: dict[str, float] = {}
    for culprit in verdict.culprits:
        uid = culprit.owner.pod_uid
        if uid and uid != verdict.victim.pod_uid:
            found[uid] = found.get(uid, 0.0) + culprit.share
    return found


def counts(verdict: Verdict, resources: Collection[str], least_confidence: float) -> bool:
    """Whether the verdict is a reason to do something."""
    return (
        verdict.cause is Cause.NEIGHBOUR
        and verdict.on
        and verdict.resource.value in resources
        and verdict.victim.qos in VICTIMS
        and verdict.confidence >= least_confidence
    )


def charges(
    verdicts: Iterable[Verdict],
    pods: Mapping[str, PodView],
    resources: Collection[str],
    *,
    least_share: float,
    least_confidence: float,
) -> tuple[dict[Key, Charge], list[tuple[Verdict, PodView]]]:
    """Who is to be held back, and culprits with the largest share that may not be."""
    found: dict[Key, list[tuple[Verdict, float]]] = {}
    spared: list[tuple[Verdict, PodView]] = []
    for verdict in verdicts:
        if not counts(verdict, resources, least_confidence):
            continue
        known = {uid: share for uid, share in shares(verdict).items() if uid in pods}
        if not known:
            continue
        worst = pods[max(known, key=lambda uid: known[uid])]
        if not may_be_held_back(worst):
            spared.append((verdict, worst))
        able = {uid: share for uid, share in known.items() if may_be_held_back(pods[uid])}
        if sum(able.values()) < least_share:
            continue
        most = max(able.values())
        for uid, share in able.items():
            if share >= PART_OF_WORST * most:
                found.setdefault((uid, verdict.resource.value), []).append((verdict, share))
    made = {}
    for key, cases in found.items():
        hurts = any(verdict.state is AlarmState.INTERFERED for verdict, _ in cases)
        made[key] = Charge(Blame.HURTS if hurts else Blame.EASING, tuple(cases))
    return made, spared
