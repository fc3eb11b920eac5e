"""Annotations and labels of reservations and of the pods that use them (spec 01 §5.2, §5.8, §5.9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordlet.api import names
from koordlet.api.annotations._base import PER_CONTAINER, SETTING, Annotation, Map, absent, integer
from koordlet.api.core import NodeSelectorTerm, Toleration
from koordlet.api.crs.reservation import ReservationOwner
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.quantity import Quantity


class ReservationAllocated(Frozen):
    """The reservation that a pod consumes."""

    name: str = ""
    uid: str = ""


class ReservationSelector(Frozen):
    """Terms over a reservation's labels, ORed."""

    reservation_selector_terms: list[NodeSelectorTerm] = []


class ReservationAffinity(Frozen):
    """Which reservations a pod must use. A name takes precedence over all selectors."""

    required_during_scheduling_ignored_during_execution: ReservationSelector | None = None
    reservation_selector: dict[str, str] = {}
    tolerations: list[Toleration] = []
    name: str = ""

    @property
    def selects(self) -> bool:
        """Whether it excludes any reservation by name or labels."""
        required = self.required_during_scheduling_ignored_during_execution
        return bool(self.name or self.reservation_selector or required is not None)

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a reservation with that name and labels is selected; an empty affinity selects any."""
        if self.name:
            return self.name == name
        required = self.required_during_scheduling_ignored_during_execution
        fields = {"metadata.name": name}
        if required is not None and not any(
            term.matches(labels, fields) for term in required.reservation_selector_terms
        ):
            return False
        return all(labels.get(key) == value for key, value in self.reservation_selector.items())


class ExactMatchSpec(Frozen):
    """Resources whose reserved amounts must equal the pod's requests exactly."""

    resource_names: list[str] = []


class RestrictedOptions(Frozen):
    """Resources that a Restricted reservation restricts; empty means all reserved resources."""

    resources: list[str] = []


class ResizeAllocatable(Frozen):
    """The new size of a reservation."""

    resources: dict[str, Quantity] = {}


ALLOCATED: Final[Annotation[ReservationAllocated]] = Annotation(
    names.ANNOTATION_RESERVATION_ALLOCATED, ReservationAllocated, limits=SETTING
)
AFFINITY: Final[Annotation[ReservationAffinity]] = Annotation(
    names.ANNOTATION_RESERVATION_AFFINITY, ReservationAffinity, empty=ReservationAffinity, limits=PER_CONTAINER
)
EXACT_MATCH: Final[Annotation[ExactMatchSpec]] = Annotation(
    names.ANNOTATION_EXACT_MATCH_RESERVATION, ExactMatchSpec, empty=absent, limits=SETTING
)
OWNERS: Final[Annotation[list[ReservationOwner]]] = Annotation(
    names.ANNOTATION_RESERVATION_OWNERS, list[ReservationOwner], empty=absent, limits=PER_CONTAINER
)
RESTRICTED_OPTIONS: Final[Annotation[RestrictedOptions]] = Annotation(
    names.ANNOTATION_RESERVATION_RESTRICTED_OPTIONS, RestrictedOptions, empty=absent, limits=SETTING
)
RESIZE_ALLOCATABLE: Final[Annotation[ResizeAllocatable]] = Annotation(
    names.ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE, ResizeAllocatable, limits=SETTING
)


def without_allocated(annotations: Map, uid: str) -> dict[str, str] | None:
    """The annotations without `reservation-allocated`, or None when it names another reservation or is missing.

    Raises WireError when the annotation is malformed.
    """
    allocated = ALLOCATED.get(annotations)
    if allocated is None or allocated.uid != uid:
        return None
    return {key: value for key, value in annotations.items() if key != ALLOCATED.key}


def order(labels: Map) -> int:
    """Preference among reservations, lowest non-zero first; 0 when missing. Raises WireError."""
    return integer(labels, names.LABEL_RESERVATION_ORDER) or 0


def is_reservation_pod(labels: Map) -> bool:
    """Whether the pod itself acts as a reservation (operating mode)."""
    return labels.get(names.LABEL_OPERATING_MODE) == names.OPERATING_MODE_RESERVATION


def ignores_reservations(labels: Map) -> bool:
    """Whether the pod may use the room of any reservation without consuming it."""
    return labels.get(names.LABEL_RESERVATION_IGNORED) == names.TRUE
