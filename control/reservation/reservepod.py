"""The pod that is scheduled for a Reservation (spec 06 §4.3, 05 §5.8). Pure.

It exists only in the scheduler. Its uid is that of the Reservation and its name is the Reservation's, so that messages
name what users created. An invalid Reservation becomes a terminated pod, which is neither queued nor counted.
"""

from __future__ import annotations

from typing import Final

import msgspec

from control.quota.amounts import to_list
from control.reservation.model import allocatable_of, invalid_field
from koordlet.api import names
from koordlet.api.annotations._base import integer
from koordlet.api.core import Container, Pod
from koordlet.api.core.pod import PodSpec, PodStatus, ResourceRequirements
from koordlet.api.core.podresources import pod_requests
from koordlet.api.crs.reservation import AVAILABLE, FAILED, SUCCEEDED, Reservation
from koordlet.api.devicerequest import GPU_RESOURCES
from koordlet.api.encoding.wire import WireError
from koordlet.api.meta import ObjectMeta

DEFAULT_PRIORITY: Final = 2**31 - 1
"""The highest: a reserve pod is never a victim."""
DEFAULT_SCHEDULER: Final = "default-scheduler"
DEFAULT_NAMESPACE: Final = "default"
_SHARES: Final = frozenset((names.ANNOTATION_RESOURCE_STATUS, names.ANNOTATION_DEVICE_ALLOCATED))
"""What the scheduler gives: it counts from the Reservation's own annotations only, where the scheduler writes it."""
TEMPLATE_GPU_RESOURCES: Final = "internal.scheduling.koordinator.sh/template-gpu-resources"
"""Annotation of the pod: the GPU resources that the template requests. The offered amounts may have others, too (gate
ResizePod), which do not select devices."""
FAKE_CONTAINER: Final = "__internal_fake_container__"
"""Holds the amounts of a reservation whose size differs from its template."""


def reserve_pod(reservation: Reservation) -> Pod:
    """See the module text."""
    meta, template = reservation.metadata, reservation.spec.template
    node = template.spec.node_name
    written = {key: text for key, text in template.metadata.annotations.items() if key not in _SHARES}
    annotations = {
        **written,
        **meta.annotations,
        names.ANNOTATION_RESERVE_POD: names.TRUE,
        names.ANNOTATION_RESERVATION_NAME: meta.name,
    }
    annotations.pop(names.ANNOTATION_RESERVATION_ALLOCATED, None)  # a reservation is no owner of another one
    gpus = GPU_RESOURCES & pod_requests(Pod(spec=template.spec)).keys()
    if gpus:
        annotations[TEMPLATE_GPU_RESOURCES] = ",".join(sorted(gpus))
    if reservation.spec.pre_allocation:
        annotations[names.ANNOTATION_IS_PRE_ALLOCATION] = names.TRUE
    if node:
        annotations[names.ANNOTATION_RESERVATION_NODE] = node
    return Pod(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=template.metadata.namespace or DEFAULT_NAMESPACE,
            uid=meta.uid,
            resource_version=meta.resource_version,
            generation=meta.generation,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            labels={**template.metadata.labels, **meta.labels},
            annotations=annotations,
            owner_references=template.metadata.owner_references,
        ),
        spec=_sized(reservation, _placed(reservation)),
        status=PodStatus(phase=_phase(reservation)),
    )


def _placed(reservation: Reservation) -> PodSpec:
    spec, status = reservation.spec.template.spec, reservation.status
    return msgspec.structs.replace(
        spec,
        node_name=status.node_name if status.phase == AVAILABLE else "",
        priority=_priority(reservation),
        scheduler_name=spec.scheduler_name or DEFAULT_SCHEDULER,
        scheduling_gates=[],
    )


def _priority(reservation: Reservation) -> int:
    priority = reservation.spec.template.spec.priority
    if priority is not None:
        return priority
    try:
        label = integer(reservation.metadata.labels, names.LABEL_PRIORITY, bits=32)
    except WireError:
        label = None
    return DEFAULT_PRIORITY if label is None else label


def _phase(reservation: Reservation) -> str:
    phase = reservation.status.phase
    if phase in (SUCCEEDED, FAILED):
        return phase
    return FAILED if invalid_field(reservation) else "Pending"


def _sized(reservation: Reservation, spec: PodSpec) -> PodSpec:
    """One container with the offered amounts, if these are not the requests of the template."""
    amounts = to_list(allocatable_of(reservation))
    if amounts == pod_requests(Pod(spec=spec)):
        return spec
    fake = Container(name=FAKE_CONTAINER, resources=ResourceRequirements(limits=amounts, requests=amounts))

    def emptied(container: Container) -> Container:
        return msgspec.structs.replace(container, resources=ResourceRequirements())

    return msgspec.structs.replace(
        spec,
        containers=[*map(emptied, spec.containers), fake],
        init_containers=[emptied(container) for container in spec.init_containers],
        overhead={},
        resources=None,
    )
