"""Compares an attempt of kube-scheduler with the product's attempt for the same pod in the same world. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.kubernetes.oracle.replay import OurAttempt
from tests.kubernetes.oracle.schedulerlog import KubeAttempt

MAX_NOTE_BYTES: Final = 1024


@dataclass(frozen=True)
class Difference:
    """`what`: score, feasible, choice, message, condition, nomination, victims, event or attempt."""

    seed: int
    pod: str
    what: str
    kube: Any
    ours: Any

    def __str__(self) -> str:
        return f"seed {self.seed} pod {self.pod} {self.what}:\n  kube {self.kube}\n  ours {self.ours}"


@dataclass
class Observed:
    """What kube-scheduler did in one attempt: its log, and the pod's status and event afterwards."""

    attempt: KubeAttempt
    victims: list[str]
    status: dict[str, Any]
    event: tuple[str, str, str] = ("", "", "")


CLAIMS_NOT_READ: Final = ". not found"
"""How kube-scheduler ends its message if a pod is rejected before DynamicResources has read its claims. It is an
internal error of that plugin's PostFilter; the product runs its PostFilter plugins."""


def differences(seed: int, kube: Observed, ours: OurAttempt, *, pod_level: bool = False) -> list[Difference]:
    """`pod_level`: the pod has resources of its own, which kube-scheduler leaves out of the score of
    NodeResourcesFit."""
    listed: list[Difference] = []

    def check(what: str, theirs: Any, own: Any) -> None:
        if theirs != own:
            listed.append(Difference(seed, kube.attempt.pod, what, theirs, own))

    attempt = kube.attempt
    if bool(attempt.node) != bool(ours.node):
        check("attempt", attempt.node or attempt.message, ours.node or ours.event[2])
        return listed
    if attempt.node:
        if attempt.totals:
            check("feasible", sorted(attempt.totals), sorted(ours.feasible))
            if pod_level:
                return listed
            check("score", _scores(attempt.scores), _scores(ours.scores))
            best = max(attempt.totals.values())
            if attempt.totals.get(ours.node) != best:
                check("choice", [name for name, total in attempt.totals.items() if total == best], ours.node)
        else:
            check("feasible", [attempt.node], ours.feasible)
        return listed
    if attempt.message.endswith(CLAIMS_NOT_READ):
        head = attempt.message.removesuffix("not found")
        check("message", head, ours.event[2][: len(head)])
        return listed
    check("message", attempt.message, ours.event[2])
    check("event", kube.event, ours.event)
    check("condition", _condition(kube.status), _condition(ours.status))
    _check_preemption(kube, ours, check)
    return listed


def _check_preemption(kube: Observed, ours: OurAttempt, check: Any) -> None:
    node = kube.attempt.preempts_on
    if bool(node) != bool(ours.nominated):
        check("nomination", node, ours.nominated)
    elif node:
        best = min(rank for rank, _ in ours.victims.values())
        equal = [name for name, (rank, _) in ours.victims.items() if rank == best]
        if node not in equal:
            check("nomination", node, ours.victims)
        else:
            check("victims", sorted(kube.victims), ours.victims[node][1])
            check("nominatedNodeName", bool(kube.status.get("nominatedNodeName")), "nominatedNodeName" in ours.status)


def _scores(table: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Without zeros: one of both logs the score of a plugin that has nothing to score."""
    return {node: {name: score for name, score in row.items() if score} for node, row in sorted(table.items())}


def _condition(status: dict[str, Any]) -> dict[str, Any]:
    condition = next(
        (condition for condition in status.get("conditions", ()) if condition["type"] == "PodScheduled"), {}
    )  # type: ignore[var-annotated]
    return {key: value for key, value in condition.items() if key != "lastTransitionTime"}
