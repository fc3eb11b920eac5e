"""A Reservation as bounded data: amounts as integers, selectors checked (spec 06 §4.1 to §4.3). Pure.

Parsing never fails. `problem` names the malformed field; such a reservation matches no pod, and if the object itself is
invalid (`valid` is False) it is not scheduled either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from control.quota.amounts import Amounts, masked
from control.reservation.amounts import bounded
from koordlet.api import names
from koordlet.api.annotations.node import RESERVATION as INNER_RESERVED
from koordlet.api.annotations.reservation import OWNERS, RESIZE_ALLOCATABLE, RESTRICTED_OPTIONS, order
from koordlet.api.core import Pod
from koordlet.api.core.pod import PodTemplateSpec
from koordlet.api.core.podresources import is_terminated, pod_requests
from koordlet.api.core.selectors import Taint
from koordlet.api.crs.reservation import (
    ALIGNED,
    AVAILABLE,
    FAILED,
    RESTRICTED,
    SUCCEEDED,
    Reservation,
    ReservationOwner,
)
from koordlet.api.encoding.wire import WireError
from koordlet.api.meta import LabelSelector, SelectorError
from koordlet.api.resources import reserved_resources

MAX_OWNERS: Final = 256
"""Entries of `spec.owners`; each is compared with pods."""
MAX_OWNER_TERMS: Final = 256
"""Labels, expressions and values in all selectors of `spec.owners`."""
RESERVATION: Final = "Reservation"
"""The kind of a reservation that is an object of its own; the other kind is a pod in operating mode."""
POD: Final = "Pod"


@dataclass(frozen=True, slots=True)
class ReservationModel:
    """One reservation, as its object states it; what owners use is counted elsewhere."""

    name: str
    uid: str
    kind: str = RESERVATION
    namespace: str = ""
    node: str = ""
    """Empty while it has no node."""
    phase: str = ""
    valid: bool = True
    problem: str = ""
    """Field and error, empty if nothing is malformed."""
    labels: Mapping[str, str] | None = None
    owners: tuple[ReservationOwner, ...] = ()
    taints: tuple[Taint, ...] = ()
    policy: str = ""
    """Aligned, Restricted, or empty: Default."""
    allocate_once: bool = True
    unschedulable: bool = False
    terminating: bool = False
    order: int = 0
    """Lowest non-zero first."""
    allocatable: Mapping[str, int] | None = None
    """status.allocatable when available, else what its template requests, with the annotation of a resize."""
    restricted: tuple[str, ...] = ()
    """The resources that are counted (`ResourceNames`), sorted."""
    reserved: Mapping[str, int] | None = None
    """The inner reserved amount, of the counted resources."""
    pre_allocation: bool = False
    pre_allocation_required: bool = False
    pre_allocation_mode: str = ""
    several_pre_allocated: bool = False

    @property
    def amounts(self) -> Mapping[str, int]:
        return self.allocatable or {}

    @property
    def inner_reserved(self) -> Mapping[str, int]:
        return self.reserved or {}

    @property
    def terminal(self) -> bool:
        return self.phase in (SUCCEEDED, FAILED)

    @property
    def available(self) -> bool:
        """Whether it is on a node and offers its amounts."""
        return self.phase == AVAILABLE and bool(self.node)

    @property
    def matchable(self) -> bool:
        """Whether pods may use it, apart from `allocate_once`, which depends on its owner pods (spec 06 §4.3)."""
        return self.available and self.valid and not self.problem and not self.terminal


class _Problems:
    """Collects the first error of several fields."""

    def __init__(self) -> None:
        self.first = ""

    def note(self, text: str) -> None:
        self.first = self.first or text


def invalid_field(reservation: Reservation) -> str:
    """Why the object cannot be scheduled (spec 06 §4.1); empty if it can."""
    spec = reservation.spec
    if spec.template == PodTemplateSpec():
        return "spec.template: must be set"
    if not spec.owners:
        return "spec.owners: must name at least one owner"
    if spec.ttl is None and spec.expires is None:
        return "spec.ttl: must be set unless spec.expires is"
    return ""


def parse(reservation: Reservation) -> ReservationModel:
    """See the module text."""
    meta, spec, status = reservation.metadata, reservation.spec, reservation.status
    problems = _Problems()
    invalid = invalid_field(reservation)
    if invalid:
        problems.note(invalid)
    amounts = allocatable_of(reservation, problems.note)
    restricted = _restricted(meta.annotations, spec.allocate_policy, amounts, problems)
    policy = spec.pre_allocation_policy
    return ReservationModel(
        name=meta.name,
        uid=meta.uid,
        node=status.node_name,
        phase=status.phase,
        valid=not invalid,
        labels=meta.labels,
        owners=_owners(spec.owners, problems),
        taints=tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in spec.taints),
        policy=spec.allocate_policy,
        allocate_once=spec.allocate_once is not False,
        unschedulable=spec.unschedulable,
        terminating=meta.deletion_timestamp is not None,
        order=_order(meta.labels),
        allocatable=amounts,
        restricted=restricted,
        reserved=masked(_inner_reserved(meta.annotations, problems), restricted),
        pre_allocation=spec.pre_allocation,
        pre_allocation_required=meta.labels.get(names.LABEL_PRE_ALLOCATION_REQUIRED) == names.TRUE,
        pre_allocation_mode=policy.mode if policy is not None else "",
        several_pre_allocated=policy is not None and policy.enable_multiple,
        problem=problems.first,
    )


def parse_pod(pod: Pod) -> ReservationModel | None:
    """A running pod in operating mode as a reservation (spec 06 §4.10); None without owners."""
    meta = pod.metadata
    problems = _Problems()
    try:
        owners = OWNERS.get(meta.annotations)
    except WireError as error:
        owners = []
        problems.note(str(error))
    if owners is None:
        return None
    amounts = bounded(pod_requests(pod))
    ready = pod.status.condition("Ready")
    running = pod.status.phase == "Running" and ready is not None and ready.status == "True"
    model = ReservationModel(
        name=meta.name,
        uid=meta.uid,
        kind=POD,
        namespace=meta.namespace,
        node=pod.spec.node_name,
        phase=AVAILABLE if running and not is_terminated(pod) else "",
        labels=meta.labels,
        owners=_owners(owners, problems),
        policy=ALIGNED,
        terminating=meta.deletion_timestamp is not None,
        order=_order(meta.labels),
        allocatable=amounts,
        restricted=tuple(sorted(amounts)),
        reserved={},
    )
    return replace(model, problem=problems.first)


def template_requests(reservation: Reservation) -> Amounts:
    """The requests of the template, with the annotation of a resize. Raises WireError."""
    amounts = bounded(pod_requests(Pod(spec=reservation.spec.template.spec)))
    resize = RESIZE_ALLOCATABLE.get(reservation.metadata.annotations)
    return amounts if resize is None else {**amounts, **bounded(resize.resources)}


def allocatable_of(reservation: Reservation, note: Callable[[str], object] = lambda text: None) -> Amounts:
    """What the reservation offers: once it is available, its status, also if that is empty.

    `note(text)` receives the error of a malformed resize, which is ignored."""
    status = reservation.status
    if status.phase == AVAILABLE and status.node_name:
        return bounded(status.allocatable)
    try:
        return template_requests(reservation)
    except WireError as error:
        note(str(error))
        return bounded(pod_requests(Pod(spec=reservation.spec.template.spec)))


def _owners(owners: list[ReservationOwner], problems: _Problems) -> tuple[ReservationOwner, ...]:
    if len(owners) > MAX_OWNERS:
        problems.note(f"spec.owners: has {len(owners)} entries, at most {MAX_OWNERS} are allowed")
        return ()
    terms = sum(_terms(owner.label_selector) for owner in owners if owner.label_selector is not None)
    if terms > MAX_OWNER_TERMS:
        what = "labels, expressions and values in selectors"
        problems.note(f"spec.owners: has {terms} {what}, at most {MAX_OWNER_TERMS} are allowed")
        return ()
    for at, owner in enumerate(owners):
        if owner.label_selector is not None:
            try:
                owner.label_selector.validate()
            except SelectorError as error:
                problems.note(f"spec.owners[{at}].labelSelector: {error}")
    return tuple(owners)


def _terms(selector: LabelSelector) -> int:
    """Its labels, expressions and values."""
    return len(selector.match_labels) + sum(1 + len(expression.values) for expression in selector.match_expressions)


def _restricted(
    annotations: Mapping[str, str], policy: str, amounts: Mapping[str, int], problems: _Problems
) -> tuple[str, ...]:
    """The counted resources: all, or those of the restricted options that exist."""
    everything = tuple(sorted(amounts))
    if policy != RESTRICTED:
        return everything
    try:
        options = RESTRICTED_OPTIONS.get(annotations)
    except WireError as error:
        problems.note(str(error))
        return everything
    chosen = tuple(name for name in everything if options is not None and name in options.resources)
    return chosen or everything


def _inner_reserved(annotations: Mapping[str, str], problems: _Problems) -> Amounts:
    try:
        return bounded(reserved_resources(INNER_RESERVED.get(annotations)))
    except ValueError as error:  # WireError is one
        problems.note(str(error))
        return {}


def _order(labels: Mapping[str, str]) -> int:
    try:
        return order(labels)
    except WireError:
        return 0  # an invalid order is ignored (spec 06 §4.2)
