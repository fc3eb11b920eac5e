"""When a Reservation expires, what its status should be, and when it may be deleted (spec 06 §4.3, §4.8). Pure.

Differences from Koordinator, as spec 06 §8 requires: a Reservation without a node expires, too, and a failed one is
deleted for whatever reason it failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from control.quota.amounts import to_list
from control.reservation.amounts import allocated, bounded
from control.reservation.expiry import expiry
from koordlet.api.crs.reservation import (
    AVAILABLE,
    CONDITION_READY,
    FAILED,
    SUCCEEDED,
    Reservation,
    ReservationCondition,
    ReservationStatus,
)
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ObjectReference

EXPIRED: Final = "Expired"
MIN_REQUEUE_S: Final = 3.0
MAX_REQUEUE_S: Final = 15.0
TERMINAL: Final = (SUCCEEDED, FAILED)


@dataclass(frozen=True, slots=True)
class ConsumingPod:
    """A pod that consumes a Reservation. `requests`: its whole request."""

    namespace: str
    name: str
    uid: str
    requests: Mapping[str, int]


def requeue_after(reservation: Reservation, now: float) -> float | None:
    """Seconds until a Reservation must be considered again; None: only events can change it."""
    moment = None if reservation.status.phase in TERMINAL else expiry(reservation)
    return None if moment is None else min(max(moment - now, MIN_REQUEUE_S), MAX_REQUEUE_S)


def next_status(
    reservation: Reservation, owners: Sequence[ConsumingPod], now: float, *, node_exists: bool, may_expire: bool = True
) -> ReservationStatus:
    """The status that it should have; the present one if nothing changes. `node_exists`: whether the node of
    `status.nodeName` does. `may_expire`: whether `now` is trusted."""
    status = reservation.status
    if status.phase in TERMINAL:
        return status
    moment = expiry(reservation)
    if status.node_name and not node_exists:
        return _failed(status, f"node {status.node_name} was deleted", now)
    if may_expire and moment is not None and now >= moment:
        return _failed(status, "", now)
    if status.phase != AVAILABLE or not status.node_name:
        return status
    return _consumed(reservation, owners, now)


def _failed(status: ReservationStatus, message: str, now: float) -> ReservationStatus:
    return msgspec.structs.replace(
        status, phase=FAILED, conditions=_not_ready(status.conditions, EXPIRED, message, now, renew=True)
    )


def _consumed(reservation: Reservation, owners: Sequence[ConsumingPod], now: float) -> ReservationStatus:
    """With its present owners; a Reservation that may be used once has ended with the first of them."""
    status = reservation.status
    offered = bounded(status.allocatable)
    used = to_list(allocated((owner.requests for owner in owners), offered))
    references = [
        ObjectReference(namespace=owner.namespace, name=owner.name, uid=owner.uid)
        for owner in sorted(owners, key=lambda owner: owner.uid)
    ]
    result = status
    if references != status.current_owners or bounded(used) != bounded(status.allocated):
        result = msgspec.structs.replace(status, allocated=used, current_owners=references)
    if not owners or reservation.spec.allocate_once is False:
        return result
    conditions = _not_ready(status.conditions, SUCCEEDED, "", now, renew=False)
    return msgspec.structs.replace(result, phase=SUCCEEDED, conditions=conditions)


def _not_ready(
    conditions: Sequence[ReservationCondition], reason: str, message: str, now: float, *, renew: bool
) -> list[ReservationCondition]:
    """The conditions with Ready=False. `renew`: the transition time of one that was True becomes now."""
    at = Time.from_unix(now)
    result = []
    present = False
    for condition in conditions:
        if condition.type == CONDITION_READY:
            present = True
            transition = (
                at if (renew and condition.status == "True") or condition.last_transition_time is None else None
            )
            condition = msgspec.structs.replace(
                condition,
                status="False",
                reason=reason,
                message=message,
                last_probe_time=at,
                last_transition_time=transition or condition.last_transition_time,
            )
        result.append(condition)
    if not present:
        result.append(
            ReservationCondition(
                type=CONDITION_READY,
                status="False",
                reason=reason,
                message=message,
                last_probe_time=at,
                last_transition_time=at,
            )
        )
    return result


def collectable(reservation: Reservation, now: float, gc_s: float, *, node_exists: bool) -> bool:
    """Whether a Reservation that has ended may be deleted: it ended long enough ago, or its node is gone."""
    status = reservation.status
    if status.phase not in TERMINAL:
        return False
    if status.node_name and not node_exists:
        return True
    return now - _over_since(reservation) > gc_s


def _over_since(reservation: Reservation) -> float:
    """Unix seconds: of a succeeded one the last probe, of a failed one the last transition of a condition."""
    status, created = reservation.status, reservation.metadata.creation_timestamp
    ready = [condition for condition in status.conditions if condition.type == CONDITION_READY]
    moments = [
        condition.last_probe_time if status.phase == SUCCEEDED else condition.last_transition_time
        for condition in ready
    ]
    if not ready:
        moments = [condition.last_transition_time for condition in status.conditions]
    known = [moment.unix for moment in moments if moment is not None]
    return max(known) if known else (created.unix if created is not None else float("inf"))
