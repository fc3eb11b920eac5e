"""In-place resize: what a running pod's containers count for while a resize is in progress (spec 05 §3.1).

The common `Pod` type drops the resources in container statuses. Here they are decoded, and replace the requests of the
spec before the pod enters a store: no plugin needs the statuses.
Use: `Informer(client, ResizablePod, resource=Pod, trim=lambda pod: … with_effective_requests(pod) …)`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from koordlet.api.core import Pod
from koordlet.api.core.pod import Container, ContainerStatus, PodStatus, ResourceList, ResourceRequirements

_PENDING: Final = "PodResizePending"
_INFEASIBLE: Final = "Infeasible"


class ResizableContainerStatus(ContainerStatus):
    """With the resources that the kubelet has granted and applied."""

    resources: ResourceRequirements | None = None
    allocated_resources: ResourceList = msgspec.field(default_factory=dict)


class ResizablePodStatus(PodStatus):
    """`status` of a pod, with the resources of its containers."""

    init_container_statuses: list[ResizableContainerStatus] = msgspec.field(  # type: ignore[assignment]
        default_factory=list
    )
    container_statuses: list[ResizableContainerStatus] = msgspec.field(default_factory=list)  # type: ignore[assignment]


class ResizablePod(Pod):
    """core/v1 Pod, with the resources in container statuses."""

    status: ResizablePodStatus = msgspec.field(default_factory=ResizablePodStatus)


def with_effective_requests(pod: Pod) -> Pod:
    """The pod, changed in place: requests are the largest of those in the spec, granted, and applied.

    A resize that the node cannot satisfy (`PodResizePending`, Infeasible) does not count. Init containers that end are
    not resized."""
    status = pod.status
    if not isinstance(status, ResizablePodStatus):
        return pod
    condition = status.condition(_PENDING)
    infeasible = condition is not None and condition.reason == _INFEASIBLE
    known = {entry.name: entry for entry in (*status.container_statuses, *status.init_container_statuses)}
    for container in (*pod.spec.containers, *(init for init in pod.spec.init_containers if init.is_sidecar)):
        _raise_requests(container, known.get(container.name), infeasible=infeasible)
    return pod


def _raise_requests(container: Container, status: ResizableContainerStatus | None, *, infeasible: bool) -> None:
    if status is None or status.resources is None:
        return
    own = container.resources.requests
    effective: ResourceList = {} if infeasible else dict(own)
    for amounts in (status.resources.requests, status.allocated_resources):
        for name, amount in amounts.items():
            if name not in effective or effective[name] < amount:
                effective[name] = amount
    if effective != own:
        container.resources = ResourceRequirements(limits=container.resources.limits, requests=effective)
