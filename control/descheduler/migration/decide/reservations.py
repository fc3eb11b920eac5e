"""The Reservation of a job: its content, and which one belongs to a job (spec 07 §11.9). Pure.

A Reservation that this controller creates has the job as owner reference. Only such a Reservation is deleted with its
job: a job that references the Reservation of another user cannot delete it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from control.descheduler.migration.decide.pods import controller_of
from koordlet.api.core import Pod
from koordlet.api.crs.migration import PodMigrationJob
from koordlet.api.crs.reservation import Reservation, ReservationOwner
from koordlet.api.meta import ObjectReference, OwnerReference, SelectorError
from koordlet.api.names import LABEL_RESERVATION_ORDER

Json = dict[str, Any]
API_VERSION = "scheduling.koordinator.sh/v1alpha1"
CREATED_BY_LABEL = "app.kubernetes.io/created-by"
COMPONENT = "koord-descheduler"
MAX_AVOIDED_NODES = 100

_SERVER_FIELDS = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
)
"""Metadata of a pod that describes the stored object and not its scheduling."""

_ALLOCATIONS = (
    "scheduling.koordinator.sh/resource-status",
    "scheduling.koordinator.sh/device-allocated",
    "scheduling.koordinator.sh/reservation-allocated",
    "scheduling.koordinator.sh/soft-eviction",
)
"""Annotations that record what the scheduler allocated to the old pod."""


class ReservationImpossible(Exception):
    """No usable Reservation can be made for the job; the message is the reason."""


def is_own(reservation: Reservation, job: PodMigrationJob) -> bool:
    """Whether the Reservation was created for this job."""
    return any(owner.uid == job.metadata.uid for owner in reservation.metadata.owner_references)


def reservation_name(job: PodMigrationJob) -> str:
    """The name in the template, else the UID of the job."""
    template = _template(job)
    name = template.get("metadata", {}).get("name") if isinstance(template.get("metadata"), dict) else None
    return name if isinstance(name, str) and name else job.metadata.uid


def is_unscheduled(pod: Pod) -> bool:
    """Whether the pod waits for a node."""
    condition = pod.status.condition("PodScheduled")
    return pod.status.phase == "Pending" and condition is not None and condition.status == "False"


def reservation_for(
    job: PodMigrationJob,
    pod: Pod,
    document: Mapping[str, Any],
    now_ms: int,
    *,
    without_claims: bool = False,
    leaving: Iterable[str] = (),
) -> Json:
    """The Reservation to create, as JSON.

    `document` is the pod as the API server returned it, so that fields that `Pod` does not have are kept.
    `without_claims`: feature gate DisablePVCReservation. `leaving`: nodes that other pods of the workload leave; they
    are excluded, since two pods could exchange their nodes. Raises ReservationImpossible.
    """
    template = copy.deepcopy(_template(job))
    metadata, spec = _object(template, "metadata"), _object(template, "spec")
    metadata["name"] = reservation_name(job)
    metadata["labels"] = {
        **_object(metadata, "labels"),
        CREATED_BY_LABEL: COMPONENT,
        LABEL_RESERVATION_ORDER: str(now_ms),
    }
    metadata["ownerReferences"] = [owner_reference(job)]
    if not spec.get("template"):
        spec["template"] = pod_template(document)
    pod_spec = _object(_object(spec, "template"), "spec")
    pod_spec.pop("nodeName", None)
    if pod.spec.node_name:
        for node in list(dict.fromkeys((pod.spec.node_name, *leaving)))[:MAX_AVOIDED_NODES]:
            avoid_node(pod_spec, node)
    if without_claims:
        pod_spec["volumes"] = [
            each
            for each in _objects(pod_spec, "volumes")
            if "persistentVolumeClaim" not in each and "ephemeral" not in each
        ]
    if not spec.get("owners"):
        spec["owners"] = [owner_of(pod)]
    spec["allocateOnce"] = True
    if job.spec.ttl is not None and job.spec.ttl.nanoseconds > 0 and not spec.get("ttl") and not spec.get("expires"):
        spec["ttl"] = str(job.spec.ttl)
    return {"apiVersion": API_VERSION, "kind": "Reservation", "metadata": metadata, "spec": spec}


def is_for_pending(reservation: Reservation, pod: Pod) -> bool:
    """Whether only this pod itself, and no replacement, may consume it: it was made for a pod without a node."""
    owners = reservation.spec.owners
    only_objects = bool(owners) and all(
        owner.object is not None and owner.controller is None and owner.label_selector is None for owner in owners
    )
    return only_objects and any(owner.object is not None and owner.object.uid == pod.metadata.uid for owner in owners)


def may_consume(reservation: Reservation, pod: Pod) -> bool:
    """Whether a replacement of the pod may consume the Reservation: same namespace, labels and controller."""
    return any(_matches(owner, pod) for owner in reservation.spec.owners)


def consumers(reservation: Reservation) -> tuple[str, ...]:
    """UIDs of the controllers whose pods may consume the Reservation."""
    return tuple(owner.controller.uid for owner in reservation.spec.owners if owner.controller is not None)


def _matches(owner: ReservationOwner, pod: Pod) -> bool:
    meta = pod.metadata
    reference, controller = owner.object, owner.controller
    if reference is None and controller is None and owner.label_selector is None:
        return False
    if reference is not None:  # a replacement has another UID, and the same name only in a StatefulSet
        if reference.name not in ("", meta.name) or reference.namespace not in ("", meta.namespace):
            return False
        if reference.uid:
            return False
    if controller is not None:
        actual = controller_of(meta)
        if actual is None or controller.namespace not in ("", meta.namespace):
            return False
        expected_fields = (controller.kind, controller.name, controller.uid)
        pairs = zip(expected_fields, (actual.kind, actual.name, actual.uid), strict=True)
        if any(value not in ("", have) for value, have in pairs):
            return False
    if owner.label_selector is not None:
        try:
            return owner.label_selector.matches(meta.labels)
        except SelectorError:
            return False
    return True


def reference_to(reservation: Reservation) -> ObjectReference:
    """The reference that a job stores."""
    meta = reservation.metadata
    return ObjectReference(api_version=API_VERSION, kind="Reservation", name=meta.name, uid=meta.uid)


def _template(job: PodMigrationJob) -> Json:
    options = job.spec.reservation_options
    return options.template if options is not None and options.template is not None else {}


def owner_reference(job: PodMigrationJob) -> Json:
    """The owner reference of the Reservation of the job."""
    owner = OwnerReference(
        api_version=API_VERSION, kind="PodMigrationJob", name=job.metadata.name, uid=job.metadata.uid
    )
    return {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}


def pod_template(document: Mapping[str, Any]) -> Json:
    """The pod as the template of a Reservation: without what the server and the scheduler added."""
    metadata = {key: value for key, value in document.get("metadata", {}).items() if key not in _SERVER_FIELDS}
    annotations = metadata.get("annotations")
    if annotations:
        metadata["annotations"] = {key: value for key, value in annotations.items() if key not in _ALLOCATIONS}
    return copy.deepcopy({"metadata": metadata, "spec": document.get("spec", {})})


def owner_of(pod: Pod) -> Json:
    """The owner of a Reservation that the pod, or its replacement, may consume. Raises ReservationImpossible."""
    meta = pod.metadata
    if is_unscheduled(pod):
        return {"object": {"kind": "Pod", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}}
    owner = controller_of(meta)
    if owner is None:
        raise ReservationImpossible("the pod has no controller, so that no replacement could use a Reservation")
    controller: Json = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "namespace": meta.namespace,
    }
    if owner.block_owner_deletion is not None:
        controller["blockOwnerDeletion"] = owner.block_owner_deletion
    return {"controller": controller}


def avoid_node(spec: Json, node: str) -> None:
    """Exclude the node in every term of the required node affinity (spec 07 §11.9)."""
    _require(spec, "matchFields", {"key": "metadata.name", "operator": "NotIn", "values": [node]})


def avoid_label(spec: Json, label: str) -> None:
    """Exclude nodes with the label in every term of the required node affinity."""
    _require(spec, "matchExpressions", {"key": label, "operator": "DoesNotExist"})


def prefer_without_label(spec: Json, label: str, weight: int) -> None:
    """Prefer nodes without the label."""
    affinity = _object(_object(spec, "affinity"), "nodeAffinity")
    preferred = _objects(affinity, "preferredDuringSchedulingIgnoredDuringExecution")
    term = {"matchExpressions": [{"key": label, "operator": "DoesNotExist"}]}
    affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [*preferred, {"weight": weight, "preference": term}]


def _require(spec: Json, member: str, requirement: Json) -> None:
    affinity = _object(_object(spec, "affinity"), "nodeAffinity")
    required = _object(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    terms = _objects(required, "nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [{**term, member: [*_objects(term, member), requirement]} for term in terms]


def _object(parent: Json, key: str) -> Json:
    """The member, which is created if it is missing. Raises ReservationImpossible if it is not an object."""
    value = parent.get(key)
    if value is None:
        value = parent[key] = {}
    if not isinstance(value, dict):
        raise ReservationImpossible(f"{key} in spec.reservationOptions.template is not an object")
    return value


def _objects(parent: Json, key: str) -> list[Json]:
    """The list of objects, empty if it is missing. Raises ReservationImpossible if it is something else."""
    value = parent.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ReservationImpossible(f"{key} in spec.reservationOptions.template is not a list of objects")
    return value
