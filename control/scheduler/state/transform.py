"""Changes to objects before plugins see them: deprecated names replaced, node reservations subtracted (spec 05 §1.6).

Applied before objects enter a store. The objects come fresh from the decoder and are modified in place.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from koordlet.api import names
from koordlet.api.annotations.device import ALLOCATED
from koordlet.api.annotations.node import RESERVATION
from koordlet.api.annotations.pod import apply_replaced, replaced_resources
from koordlet.api.annotations.scheduling import effective_scheduler, preemption_policy
from koordlet.api.core import Node, Pod
from koordlet.api.crs.device import Device
from koordlet.api.crs.quota import ElasticQuota
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import WireError
from koordlet.api.priority import default_value, priority_class
from koordlet.api.resources import DEPRECATED, without_deprecated, without_reserved
from koordlet.app.gates import FeatureGates
from koordlet.app.logging import get_logger

log = get_logger(__name__)

ResourceList = dict[str, Quantity]
Change = Callable[[ResourceList], ResourceList]


def renamed(resources: ResourceList) -> ResourceList:
    """The resources with deprecated names replaced; the argument itself if it has none."""
    return resources if DEPRECATED.keys().isdisjoint(resources) else without_deprecated(resources)


def transform_pod(pod: Pod, gates: FeatureGates) -> Pod:
    """Rename resources, set priority and preemption policy (both behind gates), and apply the scheduler label."""
    _each_list(pod, renamed)
    _rename_allocated(pod)
    meta, spec = pod.metadata, pod.spec
    if gates.enabled("ReplaceResourcesTransformer"):
        replacements = replaced_resources(meta.annotations)
        if replacements:
            _each_list(pod, lambda resources: _replaced(resources, replacements))
    if gates.enabled("PriorityTransformer") and not spec.priority:
        spec.priority = default_value(priority_class(pod))
    if gates.enabled("PreemptionPolicyTransformer"):
        spec.preemption_policy = preemption_policy(meta.labels)
    if names.LABEL_SCHEDULER_NAME in meta.labels:
        original, key = spec.scheduler_name, names.ANNOTATION_ORIGINAL_SCHEDULER_NAME
        spec.scheduler_name = effective_scheduler(meta.labels, original)
        if spec.scheduler_name != original:
            meta.annotations = {**meta.annotations, key: original}
    return pod


def transform_node(node: Node) -> Node:
    """Subtract the node reservation from allocatable, and replace deprecated names."""
    status = node.status
    try:
        status.allocatable = without_reserved(status.allocatable, RESERVATION.get(node.metadata.annotations))
    except (WireError, ValueError) as error:
        log.once(
            f"reservation:{node.metadata.name}",
            "Ignoring an invalid node reservation",
            node=node.metadata.name,
            err=error,
        )
    status.allocatable = renamed(status.allocatable)
    status.capacity = renamed(status.capacity)
    return node


def transform_device(device: Device) -> Device:
    """Replace deprecated names."""
    for info in device.spec.devices:
        info.resources = renamed(info.resources)
    return device


def transform_quota(quota: ElasticQuota) -> ElasticQuota:
    """Replace deprecated names."""
    spec = quota.spec
    spec.min, spec.max = renamed(spec.min), renamed(spec.max)
    return quota


def _each_list(pod: Pod, change: Change) -> None:
    spec = pod.spec
    for container in (*spec.init_containers, *spec.containers):
        container.resources.requests = change(container.resources.requests)
        container.resources.limits = change(container.resources.limits)
    spec.overhead = change(spec.overhead)
    if spec.resources is not None:
        spec.resources.requests = change(spec.resources.requests)
        spec.resources.limits = change(spec.resources.limits)


def _replaced(resources: ResourceList, replacements: dict[str, str | None]) -> ResourceList:
    """The resources with `replacements` applied, except where the new name is present already."""
    applicable = {
        old: new for old, new in replacements.items() if old in resources and (new is None or new not in resources)
    }
    return apply_replaced(resources, applicable) if applicable else resources


def _rename_allocated(pod: Pod) -> None:
    """Replace deprecated names in the device-allocated annotation. An invalid annotation is left unchanged."""
    text = pod.metadata.annotations.get(ALLOCATED.key)
    if text is None or not any(f'"{old}"' in text for old in DEPRECATED):
        return
    try:
        allocations = ALLOCATED.get(pod.metadata.annotations)
    except WireError:
        return
    changed = {
        kind: [msgspec.structs.replace(device, resources=renamed(device.resources)) for device in devices]
        for kind, devices in (allocations or {}).items()
    }
    pod.metadata.annotations = ALLOCATED.put(pod.metadata.annotations, changed)
