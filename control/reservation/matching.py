"""Which pods may use which reservations (spec 06 §4.4). Pure.

The owners are matched first: fields of one owner are ANDed, owners are ORed. Then the pod's own conditions decide:
`conditions` parses them once per pod, `matched` compares them with one reservation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from control.reservation.model import ReservationModel
from koordlet.api.annotations.reservation import (
    AFFINITY,
    ALLOCATED,
    EXACT_MATCH,
    ReservationAffinity,
    ignores_reservations,
)
from koordlet.api.core import Pod
from koordlet.api.core.selectors import Taint
from koordlet.api.crs.reservation import ReservationControllerReference, ReservationOwner
from koordlet.api.encoding.wire import WireError
from koordlet.api.meta import ObjectReference, OwnerReference

UNSCHEDULABLE_TAINT: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_POD_API_VERSION: Final = "v1"
_REPELLING: Final = frozenset(("NoSchedule", "NoExecute"))


def owned_by(owners: Iterable[ReservationOwner], pod: Pod) -> bool:
    """Whether an owner matches the pod. An empty list matches no pod, an empty owner every pod.

    The selectors must be valid, see `ReservationModel.problem`."""
    return any(owner_matches(owner, pod) for owner in owners)


def owner_matches(owner: ReservationOwner, pod: Pod) -> bool:
    """Whether one owner matches the pod."""
    return (
        (owner.object is None or _is_object(owner.object, pod))
        and (owner.controller is None or _is_controlled(owner.controller, pod))
        and (owner.label_selector is None or owner.label_selector.holds(pod.metadata.labels))
    )


def _is_object(reference: ObjectReference, pod: Pod) -> bool:
    """Empty fields match anything; the kind is ignored."""
    meta = pod.metadata
    return (
        reference.uid in ("", meta.uid)
        and reference.name in ("", meta.name)
        and reference.namespace in ("", meta.namespace)
        and reference.api_version in ("", _POD_API_VERSION)
    )


def _is_controlled(controller: ReservationControllerReference, pod: Pod) -> bool:
    if controller.namespace not in ("", pod.metadata.namespace):
        return False
    return any(_refers(controller, reference) for reference in pod.metadata.owner_references)


def _refers(controller: ReservationControllerReference, reference: OwnerReference) -> bool:
    return (
        controller.uid in ("", reference.uid)
        and controller.name in ("", reference.name)
        and controller.kind in ("", reference.kind)
        and controller.api_version in ("", reference.api_version)
        and (controller.controller is None or controller.controller == bool(reference.controller))
    )


def allocated_uid(pod: Pod, *, strict: bool = False) -> str:
    """uid of the reservation that a bound pod uses, empty without one; the annotation of a pending pod is its author's.

    A malformed annotation names none; with `strict` it raises WireError."""
    if not pod.spec.node_name:
        return ""
    try:
        named = ALLOCATED.get(pod.metadata.annotations)
    except WireError:
        if strict:
            raise
        return ""
    return "" if named is None else named.uid


@dataclass(frozen=True, slots=True)
class PodConditions:
    """What a pod demands of reservations."""

    ignores: bool = False
    """The pod may use the room of any reservation without consuming it."""
    affinity: ReservationAffinity | None = None
    """Present: the pod must use a reservation."""
    exact: tuple[str, ...] = ()
    """Resources whose reserved amounts must equal the requests."""

    @property
    def name(self) -> str:
        """The only reservation that the pod may use; empty: any."""
        return "" if self.affinity is None else self.affinity.name


NO_CONDITIONS: Final = PodConditions()


def conditions(pod: Pod) -> PodConditions:
    """The conditions in labels and annotations. Raises WireError, which names the annotation."""
    annotations = pod.metadata.annotations
    ignores = ignores_reservations(pod.metadata.labels)
    affinity = AFFINITY.get(annotations)
    exact = EXACT_MATCH.get(annotations)
    if not ignores and affinity is None and exact is None:
        return NO_CONDITIONS
    return PodConditions(ignores, affinity, () if exact is None else tuple(exact.resource_names))


class Mismatch(Enum):
    """Why a reservation whose owners match is not for the pod; the texts follow the count (spec 06 §4.7)."""

    NAME = "didn't match the requested reservation name"
    AFFINITY = "didn't match affinity rules"
    UNSCHEDULABLE = "is unschedulable"
    EXACT = "is not exact matched"
    TAINT = "had untolerated taint"


@dataclass(frozen=True, slots=True)
class ReservationMatch:
    """`mismatch` None: the pod may use the reservation. `taint`: `{key: value}` of an untolerated taint."""

    mismatch: Mismatch | None = None
    taint: str = ""

    @property
    def ok(self) -> bool:
        return self.mismatch is None


MATCHED: Final = ReservationMatch()


def matched(
    pod_conditions: PodConditions, requests: Mapping[str, int], model: ReservationModel, node_labels: Mapping[str, str]
) -> ReservationMatch:
    """Steps 3 to 8 of spec 06 §4.4, for a reservation whose owners match. `node_labels` are overlaid by its own labels;
    pass none with feature gate OmitNodeLabelsForReservation."""
    affinity = pod_conditions.affinity
    if affinity is not None and affinity.name:
        if affinity.name != model.name:
            return ReservationMatch(Mismatch.NAME)
        return MATCHED if exactly(pod_conditions.exact, requests, model.amounts) else ReservationMatch(Mismatch.EXACT)
    tolerations = () if affinity is None else affinity.tolerations
    if (model.unschedulable or model.terminating) and not any(t.tolerates(UNSCHEDULABLE_TAINT) for t in tolerations):
        return ReservationMatch(Mismatch.UNSCHEDULABLE)
    for taint in model.taints:
        if taint.effect in _REPELLING and not any(toleration.tolerates(taint) for toleration in tolerations):
            return ReservationMatch(Mismatch.TAINT, f"{{{taint.key}: {taint.value}}}")
    selects = affinity is not None and affinity.selects
    if selects and affinity is not None and not affinity.matches(model.name, {**node_labels, **(model.labels or {})}):
        return ReservationMatch(Mismatch.AFFINITY)
    return MATCHED if exactly(pod_conditions.exact, requests, model.amounts) else ReservationMatch(Mismatch.EXACT)


def exactly(resources: Iterable[str], requests: Mapping[str, int], amounts: Mapping[str, int]) -> bool:
    """Whether the reserved amounts of these resources equal the requests; absent on both sides is equal."""
    return all(requests.get(name) == amounts.get(name) for name in resources)
