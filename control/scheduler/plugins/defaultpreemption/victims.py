"""Chooses the victims on a node, and the best node (spec 05 §3.6-3, -4). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from control.scheduler.state.pods import PodInfo
from koordlet.api.core.workloads import PodDisruptionBudget
from koordlet.api.meta import LabelSelector, SelectorError

_NEVER_STARTED = float("inf")


@dataclass(frozen=True)
class Victims:
    """The victims on `row`. `pods`: most important first. `violations`: number of violated disruption budgets."""

    row: int
    pods: tuple[PodInfo, ...]
    violations: int

    @property
    def rank(self) -> tuple[int, int, int, int, float]:
        """Smaller is better: fewest violations, lowest highest priority, lowest sum, fewest pods, latest start."""
        highest = max(pod.priority for pod in self.pods)
        earliest = min(started(pod) for pod in self.pods if pod.priority == highest)
        total = sum(pod.priority + 2**31 for pod in self.pods)
        return (self.violations, highest, total, len(self.pods), -earliest)


def started(pod: PodInfo) -> float:
    """When the pod started; infinity if it has not started."""
    return _NEVER_STARTED if pod.start_time is None else pod.start_time


def by_importance(pods: Iterable[PodInfo]) -> list[PodInfo]:
    """Most important first: higher priority, then older."""
    return sorted(pods, key=lambda pod: (-pod.priority, started(pod), pod.key))


def split_by_budget(
    pods: Sequence[PodInfo], budgets: Sequence[PodDisruptionBudget]
) -> tuple[list[PodInfo], list[PodInfo]]:
    """(pods whose removal violates a budget, the others). Each removal, in order, uses up allowed disruptions."""
    allowed = [budget.status.disruptions_allowed for budget in budgets]
    violating: list[PodInfo] = []
    within_budget: list[PodInfo] = []
    for pod in pods:
        violates = False
        for index, budget in enumerate(budgets):
            selector = budget.spec.selector
            if budget.metadata.namespace != pod.namespace or selector is None or selector.is_empty():
                continue
            if not pod.shape.labels or not _matches(selector, pod.shape.labels):
                continue
            if pod.name in budget.status.disrupted_pods:
                continue  # already counted when its disruption began
            allowed[index] -= 1
            violates |= allowed[index] < 0
        (violating if violates else within_budget).append(pod)
    return violating, within_budget


def _matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    try:
        return selector.matches(labels)
    except SelectorError:
        return False  # as in kube-scheduler


def minimal_victims(
    removed: Sequence[PodInfo],
    budgets: Sequence[PodDisruptionBudget],
    row: int,
    fits_with: Callable[[PodInfo], bool],
) -> Victims:
    """Add back as many of the removed pods as fit beside the preemptor; the rest are the victims.

    `fits_with(pod)` adds the pod back and returns whether the preemptor still fits; if not, it removes the pod again.
    """
    violating, within_budget = split_by_budget(by_importance(removed), budgets)
    victims: list[PodInfo] = []
    violations = 0
    for pod in violating:
        if not fits_with(pod):
            victims.append(pod)
            violations += 1
    victims += [pod for pod in within_budget if not fits_with(pod)]
    return Victims(row, tuple(by_importance(victims)), violations)


def best(candidates: Iterable[Victims]) -> Victims:
    """The candidate with the best rank; the first of several."""
    return min(candidates, key=lambda candidate: candidate.rank)
