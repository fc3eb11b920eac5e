"""The status of a drain as a whole, from the entries of its pods (spec 07 §12.2-4, -5). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from control.descheduler.drain.entries import is_confirmed
from koordlet.api.crs import drain as d
from koordlet.api.crs.drain import DrainCondition, DrainNode, DrainNodeStatus, PodMigration
from koordlet.api.encoding.wire import Time

SHOWN_PODS = 5
UNDECIDED = (d.WAITING, d.READY, d.UNAVAILABLE, d.UNMIGRATABLE)
OPEN = (d.WAITING, d.READY, d.AVAILABLE, d.UNAVAILABLE, d.MIGRATING)


def concluded(
    drain: DrainNode,
    entries: Sequence[PodMigration],
    unexpected_reservations: Sequence[str],
    later_pods: Sequence[str],
    now: float,
) -> DrainNodeStatus:
    """The status after a round. `later_pods`: pods that came to the node after the drain was complete."""
    counts = Counter(entry.phase for entry in entries)
    status = msgspec.structs.replace(
        drain.status,
        pod_migrations=list(entries),
        pod_migration_summary={phase: counts[phase] for phase in d.POD_PHASES if counts[phase]},
    )
    planned = status.is_true(d.ONCE_AVAILABLE) or not any(counts[phase] for phase in UNDECIDED)
    conditions = [
        (d.ONCE_AVAILABLE, planned, "every pod has had a place on another node"),
        (d.UNMIGRATABLE_POD, *_listed(entries, d.UNMIGRATABLE)),
        (d.UNEXPECTED_RESERVATION, bool(unexpected_reservations), shown(unexpected_reservations)),
        (d.UNAVAILABLE_RESERVATION, *_listed(entries, d.UNAVAILABLE)),
        (d.FAILED_JOB, *_listed(entries, d.FAILED)),
        (d.UNEXPECTED_POD, bool(later_pods), shown(later_pods)),
    ]
    status.conditions = [
        _condition(drain.status, condition_type, holds, message if holds else "", now)
        for condition_type, holds, message in conditions
    ]
    if is_confirmed(drain) and not any(counts[phase] for phase in OPEN):
        status.phase = d.COMPLETE
    status.message = waits_for(status, counts, confirmed=is_confirmed(drain))
    return status


def waits_for(status: DrainNodeStatus, counts: Counter[str], *, confirmed: bool) -> str:
    """One sentence: how the drain ended, or what it waits for."""
    remaining = sum(counts[phase] for phase in (d.UNMIGRATABLE, d.FAILED))
    if status.phase == d.COMPLETE:
        return f"complete; {remaining} pods remain on the node" if remaining else "complete; no pod remains"
    parts = [
        f"{counts[phase]} {text}"
        for phase, text in (
            (d.WAITING, "wait to end by themselves"),
            (d.READY, "wait for a Reservation"),
            (d.UNAVAILABLE, "have no place on another node"),
            (d.UNMIGRATABLE, "may not be moved"),
            (d.MIGRATING, "are moving"),
            (d.FAILED, "failed to move"),
        )
        if counts[phase]
    ]
    if counts[d.AVAILABLE] and not confirmed:
        parts.append(f"{counts[d.AVAILABLE]} are planned and wait for confirmation")
    if not parts and not confirmed:
        parts.append("no pod has to move; waits for confirmation")
    return "pods: " + ", ".join(parts) if parts else ""


def shown(names: Iterable[str]) -> str:
    """A bounded list of names."""
    listed = sorted(names)
    more = len(listed) - SHOWN_PODS
    return ", ".join(listed[:SHOWN_PODS]) + (f" and {more} more" if more > 0 else "")


def _listed(entries: Sequence[PodMigration], phase: str) -> tuple[bool, str]:
    names = [f"{entry.namespace}/{entry.pod_name}" for entry in entries if entry.phase == phase]
    return bool(names), shown(names)


def _condition(status: DrainNodeStatus, condition_type: str, holds: bool, message: str, now: float) -> DrainCondition:
    old, value = status.condition(condition_type), "True" if holds else "False"
    since = old.last_transition_time if old is not None and old.status == value else Time.from_unix(now)
    return DrainCondition(type=condition_type, status=value, last_transition_time=since, message=message)
