"""Confidence, severity and recommended next step: small tables over a verdict's facts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koordlet.interference.model import Cause, Culprit, WaitResource
from koordlet.statesinformer.pods.model import Subject

ACTIONS = {
    "suppress-best-effort": "Give best-effort pods less: lower cpuSuppressThresholdPercent, or enable the BE class.",
    "limit-culprit": "Give the culprit a limit of its own, or move it to another node.",
    "move-system-service": "Check the host's service: give it a slice of its own, with a weight or a limit.",
    "look-at-kernel-work": "Check interrupts and kernel threads on these CPUs; keep the pod off them.",
    "split-own-pod": "Containers of the same pod delay each other: give each requests and limits.",
    "raise-cpu-limit": "Its own quota stops it: raise limits.cpu, or allow CPU burst.",
    "raise-cpu-request": "Its own threads wait for each other: more CPU, or fewer threads.",
    "raise-memory-limit": "It is at its own memory limit: raise limits.memory, or use less.",
    "use-less-memory": "It fills memory that it shares with others: use less, or give it a limit of its own.",
    "raise-io-limit": "Its own I/O limit or its own requests delay it: raise the limit, or do less I/O.",
    "look-at-own-traffic": "Its own connections are delayed: check its peers and buffers.",
    "move-victim": "There is no single culprit: move the pod to another node, or reduce the node's load.",
}
"""Recommendation -> sentence."""

_SELF_INFLICTED = {
    WaitResource.CPU: "raise-cpu-limit",
    WaitResource.MEMORY: "raise-memory-limit",
    WaitResource.IO: "raise-io-limit",
    WaitResource.NETWORK: "look-at-own-traffic",
    WaitResource.CACHE: "move-victim",
}
_SOURCE_CONFIDENCE = {"bpf": 1.0, "bcc": 1.0, "counters": 0.8, "schedstat": 0.6, "pressure": 0.5}
_HOST_KINDS = ("system", "root", "host-application")


def confidence(source: str, score: float, culprits: Sequence[Culprit], *, named: bool, cause: Cause) -> float:
    """0..1: confidence in the source, times the clarity of the score (0.6 at the threshold, 1 at twice it), times the
    fraction of the waiting that has a known culprit (not needed for self-inflicted delay)."""
    clarity = min(max(0.6 + 0.4 * (score - 1.0), 0.3), 1.0)
    attributed = 1.0
    if cause is not Cause.SELF:
        attributed = min(sum(culprit.share for culprit in culprits), 1.0) * (1.0 if named else 0.6)
    return round(_SOURCE_CONFIDENCE.get(source, 0.5) * clarity * (0.5 + 0.5 * attributed), 2)


def severity(lost: float, score: float) -> str:
    """By the time lost; by the score where a lost time has no meaning."""
    worst = max(lost if lost <= 1.0 else 0.0, min(score / 6.0, 1.0))
    return "high" if worst >= 0.5 else "medium" if worst >= 0.25 else "low"


def action(
    victim: Subject, resource: WaitResource, cause: Cause, culprits: Sequence[Culprit], parts: Mapping[str, float]
) -> str:
    """The next step: by the worst culprit, or by the largest part of the self-inflicted delay."""
    if cause is Cause.SELF:
        if resource is WaitResource.CPU and parts.get("threads", 0.0) > parts.get("quota", 0.0):
            return "raise-cpu-request"
        if resource is WaitResource.MEMORY and parts.get("shared", 0.0) > parts.get("limit", 0.0):
            return "use-less-memory"
        return _SELF_INFLICTED[resource]
    if not culprits:
        return "move-victim"
    worst = culprits[0].owner
    if worst.kind == "kernel":
        return "look-at-kernel-work"
    if worst.pod_uid and worst.pod_uid == victim.pod_uid:
        return "split-own-pod"
    if worst.qos == "BE":
        return "suppress-best-effort"
    if worst.kind in _HOST_KINDS:
        return "move-system-service"
    return "limit-culprit" if worst.kind in ("container", "pod") else "move-victim"
