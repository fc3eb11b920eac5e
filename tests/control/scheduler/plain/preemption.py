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
    """(victims, most important first; budgets broken). None: no removal would help."""
    lower = [
        candidate for candidate in pods if candidate.spec.node_name == node and priority(candidate) < priority(pod)
    ]
    stay = [pod for pod in pods if pod not in lower]
    if not lower or not fits(node, stay):
        return None
    allowed = [budget.status.disruptions_allowed for budget in budgets]
    breaking: list[Any] = []
    harmless: list[Any] = []
    for victim in sorted(lower, key=_importance):
        broken = False
        for number, budget in enumerate(budgets):
            selector = budget.spec.selector
            if budget.metadata.namespace != victim.metadata.namespace or selector is None or selector.is_empty():
                continue
            if not victim.metadata.labels or not selector.matches(victim.metadata.labels):
                continue
            if victim.metadata.name in budget.status.disrupted_pods:
                continue
            allowed[number] -= 1
            broken = broken or allowed[number] < 0
        (breaking if broken else harmless).append(victim)
    gone, violations = [], 0
    for victim in [*breaking, *harmless]:
        if fits(node, [*stay, victim]):
            stay.append(victim)
        else:
            gone.append(victim)
            violations += victim in breaking
    return sorted(gone, key=_importance), violations


def choices(
    pod: Pod, codes: Mapping[str, str], pods: Sequence[Pod], budgets: Sequence[PodDisruptionBudget], fits: Fits
) -> dict[str, list[str]]:
    """Node -> names of the victims, for the nodes with the cheapest victims: any may be chosen. Empty: none."""
    if ineligible(pod, codes, pods):
        return {}
    victims_on: dict[str, list[str]] = {}
    best: tuple[float, ...] | None = None
    for node, code in codes.items():
        result = victims(pod, node, pods, budgets, fits) if code == S else None
        if result is None or not result[0]:
            continue
        gone, violations = result
        highest = max(priority(victim) for victim in gone)
        start = min(_start(victim) for victim in gone if priority(victim) == highest)
        cost = (violations, highest, sum(priority(victim) + 2**31 for victim in gone), len(gone), -start)
        if best is None or cost < best:
            best, victims_on = cost, {}
        if cost == best:
            victims_on[node] = [victim.metadata.name for victim in gone]
    return victims_on
