"""Objects as plugins are to see them: old names renamed, node reservations subtracted (spec 05 §1.6).

Applied to everything before it enters a store. Objects come fresh from the decoder and are changed in place.
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
    """Deprecated names replaced; the list itself when it has none."""
    return resources if DEPRECATED.keys().isdisjoint(resources) else without_deprecated(resources)


def transform_pod(pod: Pod, gates: FeatureGates) -> Pod:
    """Rename resources; behind gates replace them, set priority and preemption policy; then the scheduler's name."""
    _each_list(pod, renamed)
    _rename_allocated(pod)
    meta, spec = pod.metadata, pod.spec
    if gates.enabled("ReplaceResourcesTransformer"):
        table = replaced_resources(meta.annotations)
        if table:
            _each_list(pod, lambda given: _replaced(given, table))
    if gates.enabled("PriorityTransformer") and not spec.priority:
        spec.priority = default_value(priority_class(pod))
    if gates.enabled("PreemptionPolicyTransformer"):
        spec.preemption_policy = preemption_policy(meta.labels)
    if names.LABEL_SCHEDULER_NAME in meta.labels:
        original, key = spec.scheduler_name, names.ANNOTATION_ORIGINAL_SCHEDULER_NAME
        spec.scheduler_name = effective_scheduler(meta.labels, original)
        meta.annotations = {**meta.annotations, key: original}
    return pod


def transform_node(node: Node) -> Node:
    """Allocatable less what is reserved for others, and names that are current."""
    status = node.status
    try:
        status.allocatable = without_reserved(status.allocatable, RESERVATION.get(node.metadata.annotations))
    except (WireError, ValueError) as error:
        log.once(f"reservation:{node.metadata.name}", "Ignoring a node reservation", node=node.metadata.name, err=error)
    status.allocatable = renamed(status.allocatable)
    status.capacity = renamed(status.capacity)
    return node


def transform_device(device: Device) -> Device:
    """Names that are current."""
    for one in device.spec.devices:
        one.resources = renamed(one.resources)
    return device


def transform_quota(quota: ElasticQuota) -> ElasticQuota:
    """Names that are current."""
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


def _replaced(given: ResourceList, table: dict[str, str | None]) -> ResourceList:
    """`table` applied, but for names whose new name is there already."""
    wanted = {old: new for old, new in table.items() if old in given and (new is None or new not in given)}
    return apply_replaced(given, wanted) if wanted else given


def _rename_allocated(pod: Pod) -> None:
    """Old names inside the device-allocated annotation; one that can't be read is left to whoever reads it."""
    text = pod.metadata.annotations.get(ALLOCATED.key)
    if text is None or not any(f'"{old}"' in text for old in DEPRECATED):
        return
    try:
        found = ALLOCATED.get(pod.metadata.annotations)
    except WireError:
        return
    changed = {
        kind: [msgspec.structs.replace(one, resources=renamed(one.resources)) for one in several]
        for kind, several in (found or {}).items()
    }
    pod.metadata.annotations = ALLOCATED.put(pod.metadata.annotations, changed)
