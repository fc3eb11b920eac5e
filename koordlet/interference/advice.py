"""Confidence, severity and what to do next: small tables over a verdict's facts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koordlet.interference.model import Cause, Culprit, Resource
from koordlet.statesinformer.pods.model import Subject

ACTIONS = {
    "suppress-best-effort": "Give best-effort pods less: lower cpuSuppressThresholdPercent, or enable the BE class.",
    "limit-culprit": "Give the culprit a limit of its own, or move it to another node.",
    "move-system-service": "Look at the host's service: give it a slice of its own, with a weight or a limit.",
    "look-at-kernel-work": "Look at interrupts and kernel threads on these CPUs; keep the pod off them.",
    "split-own-pod": "Containers of the same pod are in each other's way: give each requests and limits.",
    "raise-cpu-limit": "Its own quota stops it: raise limits.cpu, or allow CPU burst.",
    "raise-cpu-request": "Its own threads wait for each other: more CPU, or fewer threads.",
    "raise-memory-limit": "It is at its own memory limit: raise limits.memory, or use less.",
    "use-less-memory": "It fills memory that it shares with others: use less, or give it a limit of its own.",
    "raise-io-limit": "Its own I/O throttle or its own requests delay it: raise the limit, or ask for less.",
    "look-at-own-traffic": "Its own connections are held up: look at its peers and buffers.",
    "move-victim": "Nobody stands out: move the pod to another node, or give the node less to do.",
}
"""What is recommended -> in words."""

_OWN = {
    Resource.CPU: "raise-cpu-limit",
    Resource.MEMORY: "raise-memory-limit",
    Resource.IO: "raise-io-limit",
    Resource.NETWORK: "look-at-own-traffic",
    Resource.CACHE: "move-victim",
}
_TRUST = {"bpf": 1.0, "bcc": 1.0, "counters": 0.8, "schedstat": 0.6, "pressure": 0.5}
_OF_THE_HOST = ("system", "root", "host-application")


def confidence(source: str, score: float, culprits: Sequence[Culprit], *, named: bool, cause: Cause) -> float:
    """0..1: how far the source can be trusted, times how clear the score is (0.6 at the threshold, 1 at twice it),
    times how much of the blame has a name (none needed for a container's own doing)."""
    clear = min(max(0.6 + 0.4 * (score - 1.0), 0.3), 1.0)
    whose = 1.0 if cause is Cause.SELF else min(sum(one.share for one in culprits), 1.0) * (1.0 if named else 0.6)
    return round(_TRUST.get(source, 0.5) * clear * (0.5 + 0.5 * whose), 2)


def severity(lost: float, score: float) -> str:
    """By the time lost; where that has no meaning, by the score."""
    worst = max(lost if lost <= 1.0 else 0.0, min(score / 6.0, 1.0))
    return "high" if worst >= 0.5 else "medium" if worst >= 0.25 else "low"


def action(
    victim: Subject, resource: Resource, cause: Cause, culprits: Sequence[Culprit], parts: Mapping[str, float]
) -> str:
    """The next step: by the worst culprit, or by the largest part of its own trouble."""
    if cause is Cause.SELF:
        if resource is Resource.CPU and parts.get("threads", 0.0) > parts.get("quota", 0.0):
            return "raise-cpu-request"
        if resource is Resource.MEMORY and parts.get("shared", 0.0) > parts.get("limit", 0.0):
            return "use-less-memory"
        return _OWN[resource]
    if not culprits:
        return "move-victim"
    worst = culprits[0].owner
    if worst.kind == "kernel":
        return "look-at-kernel-work"
    if worst.pod_uid and worst.pod_uid == victim.pod_uid:
        return "split-own-pod"
    if worst.qos == "BE":
        return "suppress-best-effort"
    if worst.kind in _OF_THE_HOST:
        return "move-system-service"
    return "limit-culprit" if worst.kind in ("container", "pod") else "move-victim"
