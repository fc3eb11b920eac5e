"""What the reconciler observes of one job, and what it decides. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from control.descheduler.migration.decide import conditions as c
from control.descheduler.migration.decide.places import SiblingMove
from control.descheduler.migration.decide.view import FAILED
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob, PodMigrationJobStatus
from koordlet.api.crs.reservation import Reservation
from koordlet.kube.events import NORMAL, WARNING

POLL_S = 3.0
"""Seconds between two looks at a job that waits for others."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One job and the objects around it at one moment."""

    job: PodMigrationJob
    now: float
    """Unix seconds"""
    pod: Pod | None = None
    """the pod named in `spec.podRef`, whatever its UID"""
    reservation: Reservation | None = None
    """the Reservation named in `reservationRef`; None: not found, or no reference"""
    replacement: Pod | None = None
    """the first owner of the Reservation"""
    limited: bool = False
    """whether the object limiter has no room for the pod"""
    siblings: tuple[SiblingMove, ...] = ()
    """the other running jobs of the workload"""


@dataclass(frozen=True, slots=True)
class Note:
    """An Event about the job."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SetPodUid:
    """Record the UID of the pod in `spec.podRef`."""

    uid: str


@dataclass(frozen=True, slots=True)
class CreateReservation:
    """Create the Reservation of the job, or adopt the existing one, and reference it in the job."""


@dataclass(frozen=True, slots=True)
class OrderReservation:
    """Give the referenced Reservation its order label."""

    name: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Evict the pod with the UID in `spec.podRef`; with `reservation`: only if that Reservation is still available."""

    pod: Pod
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class UseReservation:
    """Reference another Reservation; with `take_over` it becomes the job's own first."""

    reservation: Reservation
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class DeleteReservation:
    """Delete the job's own Reservation, if there is one."""


Action = SetPodUid | CreateReservation | OrderReservation | EvictPod | UseReservation | DeleteReservation


@dataclass(frozen=True, slots=True)
class Decision:
    """First the action, then the status, then the events. Without any of them, nothing changes."""

    action: Action | None = None
    status: PodMigrationJobStatus | None = None
    notes: tuple[Note, ...] = ()
    again_s: float | None = None
    """seconds until the next look; None with an action or status: at once; None without: never"""


NOTHING = Decision()
WAIT = Decision(again_s=POLL_S)


def failed(seen: Observed, reason: str, message: str, *, note: bool = True) -> Decision:
    """The job fails, and its own Reservation is deleted first."""
    status = c.with_phase(seen.job.status, FAILED, reason, message)
    notes = (Note(WARNING, reason, message),) if note else ()
    return Decision(DeleteReservation(), status, notes)


def waiting(seen: Observed, condition_type: str, reason: str, message: str = "", *, kind: str = NORMAL) -> Decision:
    """The condition is False; look again later. The event occurs once per change."""
    status = c.with_condition(seen.job.status, condition_type, c.FALSE, reason, message, seen.now)
    if status is seen.job.status:
        return WAIT
    return Decision(status=status, notes=(Note(kind, reason, message),), again_s=POLL_S)


def reached(seen: Observed, condition_type: str, reason: str = "", message: str = "", *, note: str) -> Decision:
    """The condition is True; `note`: reason of the event, empty for no event."""
    status = c.with_condition(seen.job.status, condition_type, c.TRUE, reason, message, seen.now)
    return Decision(status=status, notes=(Note(NORMAL, note, message),) if note else ())
