"""Why no reservation fits a pod: the counts over all nodes that follow the reasons of the nodes (spec 06 §4.7)."""

from __future__ import annotations

from collections import Counter

from control.reservation.failures import NAMED, NODE_REASON
from control.reservation.matching import Mismatch
from control.scheduler.cycle.failures import FitError
from control.scheduler.plugins.reservation.match import PodMatch

PREFIX = "Reservation(s) "
_ORDER = (Mismatch.NAME, Mismatch.AFFINITY, Mismatch.UNSCHEDULABLE, Mismatch.EXACT)


def reasons(match: PodMatch, failure: FitError) -> list[str]:
    """The counts that are above 0, in their order; none if no owner matched and the pod needs no reservation."""
    mismatches: Counter[Mismatch] = Counter()
    taints: Counter[str] = Counter()
    matched: Counter[int] = Counter()
    total = named = 0
    for room in match.owner_matched():
        total += 1
        result = match.judge(room)
        if result.mismatch is Mismatch.TAINT:
            taints[result.taint] += 1
        elif result.mismatch is not None:
            mismatches[result.mismatch] += 1
        else:
            matched[room.row] += 1
        if match.conditions.name and result.mismatch is not Mismatch.NAME:
            named += 1
    if not total and not match.required:
        return []
    counted = [(named, NAMED)]
    counted += [(mismatches[mismatch], mismatch.value) for mismatch in _ORDER]
    counted += [(count, f"{Mismatch.TAINT.value} {taint}") for taint, count in sorted(taints.items())]
    counted += [(count, f"{NODE_REASON} {reason}") for reason, count in _node_reasons(matched, failure)]
    counted.append((total, "matched owner total"))
    return [f"{count} {PREFIX}{text}" for count, text in counted if count > 0]


def _node_reasons(matched: Counter[int], failure: FitError) -> list[tuple[str, int]]:
    """Reasons of nodes, each with the number of matching reservations there that no other reason explains."""
    if failure.pre_filter is not None:
        return []
    counts: Counter[str] = Counter()
    for row, number in matched.items():
        reasons = failure.status(row).reasons
        unexplained = number - sum(reason.startswith(PREFIX) for reason in reasons)
        for reason in reasons:
            if unexplained > 0 and not reason.startswith(PREFIX):
                counts[reason] += unexplained
    return sorted(counts.items())
