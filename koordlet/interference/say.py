"""Verdicts in words and on the wire. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from koordlet.api.pages.interference import Blamed, Brief, NodeInterference, SignalSaid, VerdictSaid
from koordlet.interference.advice import ACTIONS
from koordlet.interference.model import Cause, Culprit, Resource, Verdict
from koordlet.statesinformer.pods.cgroupindex import Owner

WAITS = {
    Resource.CPU: "for a CPU",
    Resource.MEMORY: "for memory",
    Resource.IO: "for a disk",
    Resource.NETWORK: "for the network",
    Resource.CACHE: "because instructions take longer",
}
PARTS = {
    "quota": "its CPU quota ran out",
    "threads": "its own threads were in each other's way",
    "limit": "it was at its own memory limit",
    "shared": "it pressed on memory that it shares with others",
    "throttle": "its own I/O limit",
    "own": "its own requests",
}
WORST_ON_NODE = 5


def owner_label(owner: Owner) -> str:
    """`namespace/pod/container`, `kernel:ksoftirqd`, a unit's name."""
    if owner.kind == "kernel":
        return f"kernel:{owner.name}"
    if owner.kind == "root":
        return "host tasks"
    return owner.label or (f"pod {owner.pod_uid}" if owner.pod_uid else owner.kind)


def sentence(verdict: Verdict) -> str:
    """`container web lost 43 % of its time waiting for a CPU: default/batch-0/burn 55 %, default/batch-1/burn 40 %`."""
    what = f"container {verdict.victim.name} "
    if verdict.resource is Resource.CACHE:
        what += f"needs {verdict.lost:.2f} cycles per instruction"
    else:
        what += f"lost {percent(verdict.lost)} of its time waiting {WAITS[verdict.resource]}"
    if verdict.cause is Cause.SELF:
        parts = sorted(verdict.parts.items(), key=lambda part: -part[1])
        return f"{what} by its own doing: {', '.join(PARTS.get(name, name) for name, _ in parts[:2]) or 'own use'}"
    named = ", ".join(f"{owner_label(one.owner)} {percent(one.share)}" for one in verdict.culprits[:3])
    return f"{what}: {named or 'nobody stands out'}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def blamed(culprit: Culprit) -> Blamed:
    owner = culprit.owner
    return Blamed(
        kind=owner.kind,
        namespace=owner.namespace,
        pod=owner.pod,
        name=owner.name,
        qos=owner.qos,
        share=round(culprit.share, 4),
        seconds=round(culprit.seconds, 4),
    )


def brief(verdict: Verdict) -> Brief:
    """The one-line form."""
    worst = verdict.culprits[0] if verdict.culprits else None
    return Brief(
        container=verdict.victim.name,
        resource=verdict.resource.value,
        cause=verdict.cause.value,
        state=verdict.state.word,
        score=round(verdict.score, 2),
        lost=round(verdict.lost, 3),
        confidence=verdict.confidence,
        culprit="" if worst is None else owner_label(worst.owner),
        share=0.0 if worst is None else round(worst.share, 3),
        action=verdict.action,
    )


def whole(verdict: Verdict, unix: float) -> VerdictSaid:
    """The long form; `unix` is what to add to its times to have Unix seconds."""
    return VerdictSaid(
        container=verdict.victim.name,
        resource=verdict.resource.value,
        cause=verdict.cause.value,
        state=verdict.state.word,
        score=round(verdict.score, 3),
        lost=round(verdict.lost, 4),
        began=round(verdict.began + unix, 3),
        at=round(verdict.at + unix, 3),
        window=verdict.window,
        source=verdict.source,
        confidence=verdict.confidence,
        severity=verdict.severity,
        action=verdict.action,
        advice=ACTIONS[verdict.action],
        signals=[
            SignalSaid(name=s.name, unit=s.unit, now=s.now, usual=s.usual, limit=s.limit) for s in verdict.signals
        ],
        culprits=[blamed(one) for one in verdict.culprits],
        parts=dict(verdict.parts),
    )


def summary(verdicts: Iterable[Verdict]) -> NodeInterference:
    """The node in short, from verdicts whose alarm is on."""
    said = NodeInterference()
    lost: dict[str, Blamed] = {}
    for verdict in verdicts:
        counts = said.interfered if verdict.cause is Cause.NEIGHBOUR else said.self_inflicted
        counts[verdict.resource.value] = counts.get(verdict.resource.value, 0) + 1
        for culprit in verdict.culprits:
            label = owner_label(culprit.owner)
            one = lost.setdefault(label, blamed(Culprit(culprit.owner, 0.0, 0.0)))
            one.seconds = round(one.seconds + culprit.seconds, 4)
    total = sum(one.seconds for one in lost.values())
    for one in lost.values():
        one.share = round(one.seconds / total, 4) if total > 0 else 0.0
    said.worst_culprits = sorted(lost.values(), key=lambda one: (-one.seconds, one.label))[:WORST_ON_NODE]
    return said
