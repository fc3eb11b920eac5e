"""The Reservations of jobs that move pods of one workload at the same time. Pure.

A Reservation is for a controller, so the replacement of one pod may consume the Reservation that was made for another
pod of the workload. Two rules keep such jobs from undoing each other:

* A pod is not evicted while a Reservation for its workload is free on its own node: its replacement would come back.
* A job whose Reservation was consumed before its pod was evicted takes over the Reservation of the job whose
  replacement did that, and that job continues with the consumed one.
"""

from __future__ import annotations

from dataclasses import dataclass

from control.descheduler.migration.decide import conditions as c
from control.descheduler.migration.decide.reservations import is_own, may_consume
from koordlet.api.core import Pod
from koordlet.api.crs import reservation as r
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.reservation import Reservation


@dataclass(frozen=True, slots=True)
class SiblingMove:
    """Another running job of the same workload."""

    job: PodMigrationJob
    reservation: Reservation | None = None
    """the one that the job references"""
    created: Reservation | None = None
    """the one that was created for the job"""


def is_free(reservation: Reservation) -> bool:
    """Whether a pod may consume the Reservation now."""
    return (
        reservation.status.phase == r.AVAILABLE
        and not reservation.status.current_owners
        and not reservation.spec.unschedulable
        and reservation.metadata.deletion_timestamp is None
    )


def would_return(pod: Pod, siblings: tuple[SiblingMove, ...]) -> bool:
    """Whether the replacement of the pod may consume a Reservation on the node that the pod is to leave."""
    places = (each.reservation for each in siblings)
    return any(
        place is not None
        and place.status.node_name == pod.spec.node_name
        and is_free(place)
        and may_consume(place, pod)
        for place in places
    )


def spare_place(job: PodMigrationJob, pod: Pod, siblings: tuple[SiblingMove, ...]) -> Reservation | None:
    """The free Reservation of a job that has evicted its pod, for a job whose own Reservation was consumed."""
    for each in siblings:
        place = each.reservation
        if place is None or not c.is_accepted(each.job.status) or not is_free(place):
            continue
        # The second case: a process that was killed had taken it over already, but had not recorded it in the job.
        is_created = is_own(place, each.job) or is_own(place, job)
        if is_created and place.status.node_name not in ("", pod.spec.node_name) and may_consume(place, pod):
            return place
    return None


def consumed_instead(
    job: PodMigrationJob, reservation: Reservation, siblings: tuple[SiblingMove, ...]
) -> Reservation | None:
    """The consumed Reservation of the job that has taken over this job's Reservation."""
    if is_own(reservation, job):
        return None
    for each in siblings:
        taken = each.reservation is not None and each.reservation.metadata.uid == reservation.metadata.uid
        if taken and is_own(reservation, each.job) and each.created is not None and each.created.status.current_owners:
            return each.created
    return None
