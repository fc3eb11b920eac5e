"""The Reservation for the replacement of one pod of a drained node: its content, and what its state means. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from control.descheduler.migration.decide import reservations
from control.descheduler.migration.decide.conditions import UNSCHEDULABLE
from koordlet.api.core import Pod
from koordlet.api.crs import reservation as r
from koordlet.api.crs.drain import AVAILABLE, READY, UNAVAILABLE, DrainNode
from koordlet.api.crs.reservation import Reservation
from koordlet.api.names import (
    LABEL_DRAIN_GROUP,
    LABEL_DRAIN_NODE,
    LABEL_DRAIN_PLANNING,
    LABEL_DRAIN_POD_NAME,
    LABEL_DRAIN_POD_NAMESPACE,
    LABEL_RESERVATION_ORDER,
)

Json = dict[str, Any]
NAME_MAX = 253 - len("-12345678")
LABEL_VALUE_MAX = 63
GROUP_WEIGHT = 100
NEVER_EXPIRES = "0s"


class ReservationState(NamedTuple):
    """What a Reservation means for its pod."""

    phase: str
    """Ready (no decision yet), Available or Unavailable"""
    message: str = ""
    replace: bool = False
    """whether it can never be used, so that a new one is needed"""


def object_name(drain: DrainNode, pod_uid: str) -> str:
    """Name of the first Reservation and of the job of a pod: `<drain>-<first 8 characters of the UID>`."""
    return f"{drain.metadata.name[:NAME_MAX]}-{pod_uid[:8].strip('-')}"


def drain_owner(drain: DrainNode) -> Json:
    """The owner reference of what a drain creates."""
    meta = drain.metadata
    return {"apiVersion": reservations.API_VERSION, "kind": "DrainNode", "name": meta.name, "uid": meta.uid}


def drain_labels(drain: DrainNode, pod: Pod) -> dict[str, str]:
    """The labels of what a drain creates; long names are cut to what a label may hold."""
    meta = pod.metadata
    texts = {
        LABEL_DRAIN_NODE: drain.metadata.name,
        LABEL_DRAIN_POD_NAMESPACE: meta.namespace,
        LABEL_DRAIN_POD_NAME: meta.name,
    }
    return {key: text[:LABEL_VALUE_MAX].rstrip("-.") for key, text in texts.items()}


def drain_reservation(drain: DrainNode, pod: Pod, name: str, document: Mapping[str, Any], now_ms: int) -> Json:
    """The Reservation to create (spec 07 §12.2, phase Ready), for the pod's controller and on no node that is drained.

    `document` is the pod as the API server returned it. It does not expire: it is deleted with the drain.
    Raises ReservationImpossible.
    """
    template = reservations.pod_template(document)
    pod_spec = template["spec"]
    pod_spec.pop("nodeName", None)
    reservations.avoid_node(pod_spec, pod.spec.node_name)
    reservations.avoid_label(pod_spec, LABEL_DRAIN_PLANNING)
    reservations.prefer_without_label(pod_spec, LABEL_DRAIN_GROUP, GROUP_WEIGHT)
    labels = {
        **drain_labels(drain, pod),
        reservations.CREATED_BY_LABEL: reservations.COMPONENT,
        LABEL_RESERVATION_ORDER: str(now_ms),
    }
    metadata = {
        "name": name,
        "labels": labels,
        "ownerReferences": [drain_owner(drain)],
    }
    spec = {
        "template": template,
        "owners": [reservations.owner_of(pod)],
        "allocateOnce": True,
        "ttl": NEVER_EXPIRES,
    }
    return {"apiVersion": reservations.API_VERSION, "kind": "Reservation", "metadata": metadata, "spec": spec}


def is_owned(owners: list[Any], drain: DrainNode) -> bool:
    """Whether an object with these owner references was created for the drain."""
    return any(owner.uid == drain.metadata.uid for owner in owners)


def state_of(reservation: Reservation, drain: DrainNode, pod: Pod, *, target_is_drained: bool) -> ReservationState:
    """The state of the Reservation of a pod for which no job exists yet."""
    status, name = reservation.status, reservation.metadata.name
    if not is_owned(reservation.metadata.owner_references, drain):
        return ReservationState(UNAVAILABLE, f"Reservation {name} exists and is not one of this drain")
    if reservation.metadata.deletion_timestamp is not None:
        return ReservationState(UNAVAILABLE, f"Reservation {name} is being deleted")
    if status.phase in ("", r.PENDING, r.WAITING):
        scheduled = next((each for each in status.conditions if each.type == r.CONDITION_SCHEDULED), None)
        if scheduled is not None and scheduled.reason == UNSCHEDULABLE:
            return ReservationState(UNAVAILABLE, f"no room: {scheduled.message}")
        return ReservationState(READY, f"Reservation {name} waits for koord-scheduler")
    if status.phase != r.AVAILABLE or status.current_owners:
        why = "was consumed by another pod" if status.current_owners else f"is {status.phase}"
        return ReservationState(UNAVAILABLE, f"Reservation {name} {why}", replace=True)
    if status.node_name in ("", pod.spec.node_name):
        return ReservationState(UNAVAILABLE, f"Reservation {name} is on the pod's own node", replace=True)
    if target_is_drained:
        return ReservationState(UNAVAILABLE, f"node {status.node_name} is drained, too", replace=True)
    return ReservationState(AVAILABLE)
