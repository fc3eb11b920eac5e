"""Verdicts as sentences and as API pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from koordlet.api.pages.interference import Brief, CulpritReport, NodeInterference, SignalReport, VerdictReport
from koordlet.interference.advice import ACTIONS
from koordlet.interference.model import Cause, Culprit, Verdict, WaitResource
from koordlet.statesinformer.pods.cgroupindex import Owner

WAITS = {
    WaitResource.CPU: "for a CPU",
    WaitResource.MEMORY: "for memory",
    WaitResource.IO: "for a disk",
    WaitResource.NETWORK: "for the network",
    WaitResource.CACHE: "because instructions take longer",
}
PARTS = {
    "quota": "its CPU quota ran out",
    "threads": "its own threads competed with each other",
    "limit": "it was at its own memory limit",
    "shared": "it contributed to the pressure on shared memory",
    "throttle": "its own I/O limit",
    "own": "its own requests",
}
CULPRITS_IN_NODE_SUMMARY = 5


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
    if verdict.resource is WaitResource.CACHE:
        what += f"needs {verdict.lost:.2f} cycles per instruction"
    else:
        what += f"lost {percent(verdict.lost)} of its time waiting {WAITS[verdict.resource]}"
    if verdict.cause is Cause.SELF:
        parts = sorted(verdict.parts.items(), key=lambda part: -part[1])
        return f"{what}, caused by itself: {', '.join(PARTS.get(name, name) for name, _ in parts[:2]) or 'own use'}"
    culprits = ", ".join(f"{owner_label(culprit.owner)} {percent(culprit.share)}" for culprit in verdict.culprits[:3])
    return f"{what}: {culprits or 'no single culprit'}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def culprit_page(culprit: Culprit) -> CulpritReport:
    owner = culprit.owner
    return CulpritReport(
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


def verdict_page(verdict: Verdict, unix_offset: float) -> VerdictReport:
    """The long form; `unix_offset` is added to the verdict's times to give Unix seconds."""
    return VerdictReport(
        container=verdict.victim.name,
        resource=verdict.resource.value,
        cause=verdict.cause.value,
        state=verdict.state.word,
        score=round(verdict.score, 3),
        lost=round(verdict.lost, 4),
        began=round(verdict.began + unix_offset, 3),
        at=round(verdict.at + unix_offset, 3),
        window=verdict.window,
        source=verdict.source,
        confidence=verdict.confidence,
        severity=verdict.severity,
        action=verdict.action,
        advice=ACTIONS[verdict.action],
        signals=[
            SignalReport(name=signal.name, unit=signal.unit, now=signal.now, usual=signal.usual, limit=signal.limit)
            for signal in verdict.signals
        ],
        culprits=[culprit_page(culprit) for culprit in verdict.culprits],
        parts=dict(verdict.parts),
    )


def node_summary(verdicts: Iterable[Verdict]) -> NodeInterference:
    """The node's summary, from verdicts with an active alarm."""
    summary = NodeInterference()
    culprits: dict[str, CulpritReport] = {}
    hurt: set[str] = set()
    for verdict in verdicts:
        if verdict.cause is Cause.NEIGHBOUR and verdict.victim.pod_uid:
            hurt.add(verdict.victim.pod_uid)
        counts = summary.interfered if verdict.cause is Cause.NEIGHBOUR else summary.self_inflicted
        counts[verdict.resource.value] = counts.get(verdict.resource.value, 0) + 1
        for culprit in verdict.culprits:
            label = owner_label(culprit.owner)
            page = culprits.setdefault(label, culprit_page(Culprit(culprit.owner, 0.0, 0.0)))
            page.seconds = round(page.seconds + culprit.seconds, 4)
    total = sum(page.seconds for page in culprits.values())
    for page in culprits.values():
        page.share = round(page.seconds / total, 4) if total > 0 else 0.0
    worst = sorted(culprits.values(), key=lambda page: (-page.seconds, page.label))
    summary.worst_culprits = worst[:CULPRITS_IN_NODE_SUMMARY]
    summary.hurt_pods = len(hurt)
    return summary
