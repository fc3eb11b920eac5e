"""DefaultPreemption: the victims on every node, by trying (spec 05 §3.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from koordlet.api.core import Pod
from koordlet.api.core.workloads import PodDisruptionBudget
from tests.control.scheduler.plain.world import S, U

Fits = Callable[[str, Sequence[Pod]], bool]
"""(node, pods of the cluster) -> whether the pod could be placed there"""
EVER = float("inf")


def priority(pod: Pod) -> int:
    return pod.spec.priority or 0


def _start(pod: Pod) -> float:
    return pod.status.start_time.timestamp() if pod.status.start_time else EVER


def _importance(pod: Pod) -> tuple[int, float, str]:
    return -priority(pod), _start(pod), pod.metadata.key


def ineligible(pod: Pod, codes: Mapping[str, str], pods: Sequence[Pod]) -> bool:
    """`codes`: node -> code of the plugin that refuses it."""
    if pod.spec.preemption_policy == "Never":
        return True
    nominated = pod.status.nominated_node_name
    if not nominated or codes.get(nominated, U) == U:
        return False
    for other in pods:
        leaving = other.metadata.deletion_timestamp is not None and any(
            condition.type == "DisruptionTarget"
            and condition.status == "True"
            and condition.reason == "PreemptionByScheduler"
            for condition in other.status.conditions
        )
        if other.spec.node_name == nominated and leaving and priority(other) < priority(pod):
            return True
    return False


def victims(
    pod: Pod, node: str, pods: Sequence[Pod], budgets: Sequence[PodDisruptionBudget], fits: Fits
) -> tuple[list[Pod], int] | None:
    """(victims, most important first; budgets broken). None: nobody's leaving would help."""
    lower = [one for one in pods if one.spec.node_name == node and priority(one) < priority(pod)]
    stay = [pod for pod in pods if pod not in lower]
    if not lower or not fits(node, stay):
        return None
    allowed = [budget.status.disruptions_allowed for budget in budgets]
    breaking: list[Any] = []
    others: list[Any] = []
    for one in sorted(lower, key=_importance):
        broken = False
        for number, budget in enumerate(budgets):
            selector = budget.spec.selector
            if budget.metadata.namespace != one.metadata.namespace or selector is None or selector.is_empty():
                continue
            if not one.metadata.labels or not selector.matches(one.metadata.labels):
                continue
            if one.metadata.name in budget.status.disrupted_pods:
                continue
            allowed[number] -= 1
            broken = broken or allowed[number] < 0
        (breaking if broken else others).append(one)
    gone, violations = [], 0
    for one in [*breaking, *others]:
        if fits(node, [*stay, one]):
            stay.append(one)
        else:
            gone.append(one)
            violations += one in breaking
    return sorted(gone, key=_importance), violations


def choices(
    pod: Pod, codes: Mapping[str, str], pods: Sequence[Pod], budgets: Sequence[PodDisruptionBudget], fits: Fits
) -> dict[str, list[str]]:
    """Node -> names of the victims, for the nodes that it hurts least: any may be chosen. Empty: none."""
    if ineligible(pod, codes, pods):
        return {}
    found: dict[str, list[str]] = {}
    best: tuple[float, ...] | None = None
    for node, code in codes.items():
        result = victims(pod, node, pods, budgets, fits) if code == S else None
        if result is None or not result[0]:
            continue
        gone, violations = result
        highest = max(priority(one) for one in gone)
        start = min(_start(one) for one in gone if priority(one) == highest)
        cost = (violations, highest, sum(priority(one) + 2**31 for one in gone), len(gone), -start)
        if best is None or cost < best:
            best, found = cost, {}
        if cost == best:
            found[node] = [one.metadata.name for one in gone]
    return found
