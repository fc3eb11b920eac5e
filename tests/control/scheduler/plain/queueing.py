"""SchedulingGates and PrioritySort over plain lists (spec 05 §3.3, §4)."""

from __future__ import annotations

from collections.abc import Sequence

from koordlet.api.core import Pod
from tests.control.scheduler.plain.world import U, Verdict


def gated(pod: Pod) -> Verdict:
    names = [gate.name for gate in pod.spec.scheduling_gates]
    return (U, ("waiting for scheduling gates: [" + " ".join(names) + "]",)) if names else None


def in_order(waiting: Sequence[tuple[Pod, float]]) -> list[Pod]:
    """(pod, since when) in the order in which they are scheduled: the next one is looked for again and again."""
    left, ordered = list(waiting), []
    while left:
        first = left[0]
        for entry in left[1:]:
            ours, theirs = first[0].spec.priority or 0, entry[0].spec.priority or 0
            if theirs > ours or (theirs == ours and entry[1] < first[1]):
                first = entry
        left.remove(first)
        ordered.append(first[0])
    return ordered
