"""The phases of one pod of a drain (spec 07 §12.2): what was observed in, next entry and one action out. Pure.

Every action can be repeated: its object has a name that follows from drain and pod, and the next observation shows it.

The replacement of one pod may consume the Reservation of another pod of the same controller. `exchange` then swaps the
two Reservations, so that the first job ends and the second pod has a place. The entry names the Reservation; a job that
references another one is changed.

Differences from the specification: a pod whose job still runs stays Migrating after it is gone, because its
replacement needs the Reservation. `jobMode: EvictDirectly` reserves nothing. A Reservation that the scheduler cannot
place is Unavailable and stays, so that it is placed when there is room.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from control.descheduler.drain.reservation import is_owned, object_name, state_of
from control.descheduler.migration.decide.conditions import POD_BOUND_RESERVATION, is_accepted
from control.descheduler.migration.decide.pods import controller_of
from control.descheduler.migration.decide.reservations import consumers
from control.descheduler.migration.decide.view import FAILED as JOB_FAILED
from control.descheduler.migration.decide.view import SUCCEEDED, is_terminal
from koordlet.api.core import Pod
from koordlet.api.crs import drain as d
from koordlet.api.crs.drain import DrainNode, PodMigration
from koordlet.api.crs.migration import MODE_EVICT_DIRECTLY, PodMigrationJob
from koordlet.api.crs.reservation import AVAILABLE, Reservation
from koordlet.api.encoding.wire import Duration, Time
from koordlet.api.names import ANNOTATION_DESCHEDULER_EVICT, ANNOTATION_DRAIN_MIGRATION_POLICY, ANNOTATION_DRAIN_PAUSED

DEFAULT_WAIT_S: Final = 3600.0
REPLACEMENT_WAIT_S: Final = 120.0
"""Then the job ends: the replacement runs elsewhere, for example in a Reservation of another drain."""
MAX_WAIT_OF_POD_S: Final = 24 * 3600.0
"""A pod's annotation cannot delay a drain longer."""


class DrainAction(enum.Enum):
    """What is done for one pod in one round."""

    NONE = "none"
    RESERVE = "reserve"
    RELEASE = "release"
    MIGRATE = "migrate"
    RETARGET = "retarget"
    """the job references the Reservation of the entry"""
    END_JOB = "end-job"
    """delete the job: its pod needs another place, or no replacement comes"""


@dataclass(frozen=True, slots=True)
class ObservedMove:
    """One pod of a drain and the objects around it."""

    now: float
    """Unix seconds"""
    pod: Pod | None = None
    """None: it is gone"""
    problem: str = ""
    """why it may not be moved; empty: it may"""
    reservation: Reservation | None = None
    job: PodMigrationJob | None = None
    """the drain's job for the pod"""
    target_is_drained: bool = False
    """whether the node of the Reservation is drained, too"""
    other_job: str = ""
    """name of a job of others that moves the pod"""


class PodWait(msgspec.Struct, rename="camel"):
    """The annotation `migration-policy` of a pod."""

    mode: str = ""
    wait_duration: str = ""


Next = tuple[PodMigration, DrainAction]


def new_entry(pod: Pod, drain: DrainNode, now: float) -> PodMigration:
    """A pod that the drain lists for the first time."""
    return PodMigration(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        pod_name=pod.metadata.name,
        phase=d.WAITING,
        start_timestamp=Time.from_unix(now),
        charted_after_drain_node_confirmed=is_confirmed(drain),
    )


def is_confirmed(drain: DrainNode) -> bool:
    """Whether pods may move."""
    return drain.spec.confirm_state == d.CONFIRMED


def is_forced(drain: DrainNode) -> bool:
    """Whether pods move that the descheduler's filter refuses."""
    return ANNOTATION_DESCHEDULER_EVICT in drain.metadata.annotations


def moves_directly(drain: DrainNode, pod: Pod) -> bool:
    """Whether the pod is evicted without a Reservation: so configured, or nothing would replace it."""
    return drain.spec.migration_policy.job_mode == MODE_EVICT_DIRECTLY or controller_of(pod.metadata) is None


def exchange(
    entries: Sequence[PodMigration], seen: Mapping[str, ObservedMove]
) -> tuple[list[PodMigration], dict[str, ObservedMove]]:
    """Entries and observations after pods of one controller have swapped Reservations, see the module text."""
    following, moves = {entry.uid: entry for entry in entries}, dict(seen)
    evicted = [uid for uid, view in seen.items() if _waits_for_replacement(view)]
    for uid, view in seen.items():
        if not _has_lost_place(view):
            continue
        other = next((each for each in evicted if _consumers(seen[each]) == _consumers(view)), None)
        if other is None:
            continue
        evicted.remove(other)
        for mine, theirs in ((uid, other), (other, uid)):
            moves[mine] = replace(seen[mine], reservation=seen[theirs].reservation)
            following[mine] = _renamed(following[mine], moves[mine])
    return [following[entry.uid] for entry in entries], moves


def _renamed(entry: PodMigration, seen: ObservedMove) -> PodMigration:
    name = seen.reservation.metadata.name if seen.reservation is not None else ""
    return msgspec.structs.replace(entry, reservation_name=name)


def _waits_for_replacement(seen: ObservedMove) -> bool:
    """Whether the pod was evicted, and nothing has consumed its Reservation."""
    job, reservation = seen.job, seen.reservation
    if job is None or is_terminal(job) or reservation is None:
        return False
    return _has_begun(job) and reservation.status.phase == AVAILABLE and not reservation.status.current_owners


def _has_lost_place(seen: ObservedMove) -> bool:
    """Whether the pod still runs on the node, and another pod has consumed its Reservation."""
    consumed = seen.reservation is not None and bool(seen.reservation.status.current_owners)
    return consumed and seen.pod is not None and (seen.job is None or not _has_begun(seen.job))


def _has_begun(job: PodMigrationJob) -> bool:
    return is_accepted(job.status)


def _consumers(seen: ObservedMove) -> tuple[str, ...]:
    """UIDs of the controllers whose pods may consume the Reservation."""
    return consumers(seen.reservation) if seen.reservation is not None else ()


def advance(entry: PodMigration, drain: DrainNode, seen: ObservedMove) -> Next:
    """The next state of one pod."""
    if seen.job is not None:
        return _with_job(entry, drain, seen, seen.job)
    if seen.pod is None:
        return _changed(entry, d.SUCCEED, "the pod is gone"), _release(drain, seen)
    if entry.phase in (d.FAILED, d.SUCCEED):
        return entry, _release(drain, seen)
    if seen.pod.metadata.deletion_timestamp is not None:
        return _changed(entry, d.WAITING, "the pod is terminating"), _release(drain, seen)
    if seen.problem:
        return _changed(entry, d.UNMIGRATABLE, seen.problem), _release(drain, seen)
    if seen.other_job:
        return _changed(entry, d.WAITING, f"PodMigrationJob {seen.other_job} moves the pod"), _release(drain, seen)
    if entry.phase in (d.WAITING, d.UNMIGRATABLE):
        seconds, note = wait_of(drain, seen.pod)
        started = entry.start_timestamp.unix if entry.start_timestamp is not None else seen.now
        if seen.now < started + seconds:
            message = f"may end by itself until {Time.from_unix(started + seconds)}"
            return _changed(entry, d.WAITING, f"{note}; {message}" if note else message), DrainAction.NONE
    return _planned(entry, drain, seen, seen.pod)


def _planned(entry: PodMigration, drain: DrainNode, seen: ObservedMove, pod: Pod) -> Next:
    """Phases Ready, Available and Unavailable."""
    name = entry.reservation_name or object_name(drain, pod.metadata.uid)
    if moves_directly(drain, pod):
        following = _changed(entry, d.AVAILABLE, "is evicted without a Reservation")
    elif seen.reservation is None:
        entry = msgspec.structs.replace(entry, reservation_name=name, reservation_phase="", target_node="")
        return _changed(entry, d.READY, "a Reservation is created"), DrainAction.RESERVE
    else:
        status = seen.reservation.status
        state = state_of(seen.reservation, drain, pod, target_is_drained=seen.target_is_drained)
        entry = msgspec.structs.replace(
            entry, reservation_name=name, reservation_phase=status.phase, target_node=status.node_name
        )
        if state.phase != d.AVAILABLE:
            action = DrainAction.RELEASE if state.replace else DrainAction.NONE
            return _changed(entry, state.phase, state.message), action
        following = _changed(entry, d.AVAILABLE, "")
    if not is_confirmed(drain):
        return following, DrainAction.NONE
    paused = entry.charted_after_drain_node_confirmed and ANNOTATION_DRAIN_PAUSED in drain.metadata.annotations
    job_name = object_name(drain, entry.uid)
    moving = msgspec.structs.replace(following, pod_migration_job_name=job_name, pod_migration_job_paused=paused)
    return _changed(moving, d.MIGRATING, "the job is created"), DrainAction.MIGRATE


def _with_job(entry: PodMigration, drain: DrainNode, seen: ObservedMove, job: PodMigrationJob) -> Next:
    """The drain's job decides, also after a restart that lost the entry's phase."""
    if not is_owned(job.metadata.owner_references, drain):
        message = f"PodMigrationJob {job.metadata.name} exists and is not one of this drain"
        return _changed(entry, d.UNAVAILABLE, message), DrainAction.NONE
    status = job.status
    entry = msgspec.structs.replace(
        entry,
        pod_migration_job_name=job.metadata.name,
        pod_migration_job_phase=status.phase,
        pod_migration_job_paused=job.spec.paused,
        target_node=status.node_name or entry.target_node,
    )
    if not is_terminal(job):
        if seen.target_is_drained and not _has_begun(job):
            message = f"is planned again: {entry.target_node} is drained, too"
            return _changed(entry, d.READY, message), DrainAction.END_JOB
        if seen.pod is None and _lacks_replacement(job, seen.now):
            return _changed(entry, d.MIGRATING, "no replacement has used the Reservation"), DrainAction.END_JOB
        is_strange = seen.reservation is not None and _referenced(job) not in ("", entry.reservation_name)
        action = DrainAction.RETARGET if is_strange else DrainAction.NONE
        return _changed(entry, d.MIGRATING, _progress(job)), action
    release = _release(drain, seen)
    if status.phase == SUCCEEDED:
        return _changed(entry, d.SUCCEED, ""), release
    if seen.pod is None:
        return _changed(entry, d.SUCCEED, f"the pod is gone; {_reason(job)}"), release
    has_lost = seen.reservation is None or seen.reservation.status.phase != AVAILABLE
    if status.phase == JOB_FAILED and entry.phase != d.FAILED and not _has_begun(job) and _referenced(job) and has_lost:
        return _changed(entry, d.READY, f"is planned again: {_reason(job)}"), DrainAction.END_JOB
    return _changed(entry, d.FAILED, _reason(job)), release


def _lacks_replacement(job: PodMigrationJob, now: float) -> bool:
    """Whether nothing has used the Reservation for a long time, for example because the workload was scaled down."""
    bound = job.status.condition(POD_BOUND_RESERVATION)
    if bound is None or bound.status == "True" or bound.last_transition_time is None:
        return False
    return now - bound.last_transition_time.unix >= REPLACEMENT_WAIT_S


def _referenced(job: PodMigrationJob) -> str:
    """The name of the job's Reservation; empty without one."""
    options = job.spec.reservation_options
    return options.reservation_ref.name if options is not None and options.reservation_ref is not None else ""


def _release(drain: DrainNode, seen: ObservedMove) -> DrainAction:
    """Delete the Reservation, unless a pod uses it or it is not one of the drain."""
    reservation = seen.reservation
    unused = (
        reservation is not None
        and not reservation.status.current_owners
        and reservation.metadata.deletion_timestamp is None
    )
    return DrainAction.RELEASE if unused and _owned(drain, reservation) else DrainAction.NONE


def _owned(drain: DrainNode, reservation: Reservation | None) -> bool:
    return reservation is not None and is_owned(reservation.metadata.owner_references, drain)


def wait_of(drain: DrainNode, pod: Pod) -> tuple[float, str]:
    """Seconds that the pod may have to end by itself, and what is wrong with its annotation."""
    policy = drain.spec.migration_policy
    seconds = policy.wait_duration.seconds if policy.wait_duration is not None else DEFAULT_WAIT_S
    own = 0.0 if policy.mode == d.MIGRATE_DIRECTLY else max(seconds, 0.0)
    text = pod.metadata.annotations.get(ANNOTATION_DRAIN_MIGRATION_POLICY)
    if text is None:
        return own, ""
    try:
        wait = msgspec.json.decode(text, type=PodWait)
        duration = Duration(wait.wait_duration).seconds if wait.wait_duration else DEFAULT_WAIT_S
    except ValueError:  # of msgspec, and of Duration
        return own, f"the annotation {ANNOTATION_DRAIN_MIGRATION_POLICY} is malformed"
    if wait.mode not in (d.WAIT_FIRST, d.MIGRATE_DIRECTLY):
        return own, f"the annotation {ANNOTATION_DRAIN_MIGRATION_POLICY} has an unknown mode"
    return (0.0 if wait.mode == d.MIGRATE_DIRECTLY else min(max(duration, 0.0), MAX_WAIT_OF_POD_S)), ""


def _changed(entry: PodMigration, phase: str, message: str) -> PodMigration:
    return msgspec.structs.replace(entry, phase=phase, message=message)


def _progress(job: PodMigrationJob) -> str:
    if job.spec.paused:
        return "the job is paused"
    if job.status.phase != "Running":
        return "the job waits for arbitration: the limits of MigrationController"
    return _reason(job) or "the job runs"


def _reason(job: PodMigrationJob) -> str:
    status = job.status
    text = ": ".join(part for part in (status.reason, status.message) if part)
    return text or ("the job failed" if status.phase == JOB_FAILED else "")
