"""Statuses of jobs: conditions, phases and reasons (spec 07 §11.6). Pure: each change makes a new status."""

from __future__ import annotations

import copy

from koordlet.api.crs.migration import PodMigrationJobCondition, PodMigrationJobStatus
from koordlet.api.encoding.wire import Time

RESERVATION_CREATED = "ReservationCreated"
RESERVATION_SCHEDULED = "ReservationScheduled"
EVICTION = "Eviction"
POD_SCHEDULED = "PodScheduled"
POD_BOUND_RESERVATION = "PodBoundReservation"
BOUND_POD_READY = "BoundPodReady"
RESERVATION_BOUND = "ReservationBound"

TIMEOUT = "Timeout"
INVALID_POD_REF = "InvalidPodRef"
MISSING_POD = "MissingPod"
MISSING_RESERVATION = "MissingReservation"
RESERVATION_EXPIRED = "ReservationExpired"
FORBIDDEN = "ForbiddenMigratePod"
UNSCHEDULABLE = "Unschedulable"
FAILED_CREATE_RESERVATION = "FailedCreateReservation"
EVICTION_REQUESTED = "EvictionRequested"
EVICTING = "Evicting"
EVICT_COMPLETE = "EvictComplete"
WAIT_FOR_BINDING = "WaitForPodBindReservation"
WAIT_FOR_READY = "WaitForBoundPodReady"
COMPLETE = "Complete"

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


def is_true(status: PodMigrationJobStatus, condition_type: str) -> bool:
    """Whether the condition exists and is True."""
    condition = status.condition(condition_type)
    return condition is not None and condition.status == TRUE


def is_requested(status: PodMigrationJobStatus) -> bool:
    """Whether the eviction of the pod may have been sent, so that the job may be why the pod is gone."""
    return status.condition(EVICTION) is not None


def is_accepted(status: PodMigrationJobStatus) -> bool:
    """Whether the server is known to have accepted the eviction of the pod."""
    condition = status.condition(EVICTION)
    return condition is not None and condition.status != UNKNOWN


def with_condition(
    status: PodMigrationJobStatus, condition_type: str, value: str, reason: str, message: str, now: float
) -> PodMigrationJobStatus:
    """The status with the condition set and copied into its texts; the same object if nothing changes."""
    old = status.condition(condition_type)
    if old is not None and (old.status, old.reason, old.message) == (value, reason, message):
        return status
    new = copy.copy(status)
    moment = Time.from_unix(now)
    changed = old is None or old.status != value
    condition = PodMigrationJobCondition(
        type=condition_type,
        status=value,
        reason=reason,
        message=message,
        last_probe_time=moment,
        last_transition_time=moment if changed or old is None else old.last_transition_time,
    )
    if old is None:
        new.conditions = [*status.conditions, condition]
    else:
        new.conditions = [condition if each.type == condition_type else each for each in status.conditions]
    new.status, new.reason, new.message = condition_type, reason, message
    return new


def with_phase(
    status: PodMigrationJobStatus, phase: str, reason: str, message: str, *, text: str | None = None
) -> PodMigrationJobStatus:
    """The status with another phase, reason and message; `text` replaces `status.status` if it is not None."""
    new = copy.copy(status)
    new.phase, new.reason, new.message = phase, reason, message
    if text is not None:
        new.status = text
    return new
