"""The merge patch that makes the stored Device equal to a device status (spec 08 §4.6). Pure.

koordlet owns the entries of the types in `NodeDevices.types`, and the labels and the annotation that describe GPUs.
Entries of other types and other labels and annotations are kept and never cause a write. A merge patch replaces the
list `spec.devices` as a whole, so the patch names the resourceVersion that it was made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from koordlet.api.core import Node
from koordlet.api.crs.device import Device, DeviceInfo, DeviceSpec
from koordlet.api.encoding.wire import to_builtins
from koordlet.api.meta import Condition
from koordlet.api.names import LABEL_GPU_VENDOR
from koordlet.statesinformer.devices.status import NVIDIA, PARTITION_LABEL, PARTITIONS, NodeDevices, sort_key
from koordlet.statesinformer.ownobject import owned_by


def new_object(node: Node, status: NodeDevices) -> Device | None:
    """The object to create; None if there is no device."""
    if not status.devices:
        return None
    labels = {key: value for key, value in status.labels.items() if value is not None}
    annotations = {PARTITIONS: status.partitions} if status.partitions is not None else {}
    return Device(
        metadata=owned_by(node, labels=labels, annotations=annotations), spec=DeviceSpec(devices=list(status.devices))
    )


def patch_for(stored: Device, status: NodeDevices) -> dict[str, Any]:
    """The merge patch that updates `stored`; empty if it is up to date."""
    labels = dict(status.labels)
    annotations: dict[str, str | None] = {}
    if _owns_partitions(stored, status):
        labels.setdefault(PARTITION_LABEL, None)
        annotations[PARTITIONS] = status.partitions
    meta: dict[str, Any] = {}
    for part, desired, current in (
        ("labels", labels, stored.metadata.labels),
        ("annotations", annotations, stored.metadata.annotations),
    ):
        changed = {key: value for key, value in desired.items() if current.get(key) != value}
        if changed:
            meta[part] = changed
    patch: dict[str, Any] = {}
    devices = merged(stored.spec.devices, status)
    if devices != sorted((_ordered(device) for device in stored.spec.devices), key=sort_key):
        patch["spec"] = {"devices": to_builtins(devices)}
    if meta or patch:
        patch["metadata"] = {**meta, "resourceVersion": stored.metadata.resource_version}
    return patch


def merged(stored: Sequence[DeviceInfo], status: NodeDevices) -> list[DeviceInfo]:
    """The devices of `status` with the transition times of their stored conditions, and the stored devices of types
    that `status` does not cover."""
    stored_by_id = {(device.type, device.id): device for device in stored}
    foreign = [_ordered(device) for device in stored if device.type not in status.types]
    updated = [_with_times(device, stored_by_id.get((device.type, device.id))) for device in status.devices]
    return sorted([*updated, *foreign], key=sort_key)


def _owns_partitions(stored: Device, status: NodeDevices) -> bool:
    """True if koordlet reports partitions, or reported those of another vendor's accelerators earlier. Partitions of
    NVIDIA GPUs belong to other writers."""
    old_vendor = stored.metadata.labels.get(LABEL_GPU_VENDOR, "")
    return status.partitioned or (LABEL_GPU_VENDOR in status.labels and old_vendor not in ("", NVIDIA))


def _with_times(device: DeviceInfo, old: DeviceInfo | None) -> DeviceInfo:
    """A condition whose status did not change keeps its transition time."""
    old_conditions = {} if old is None else {condition.type: condition for condition in old.conditions}
    conditions = [_with_time(condition, old_conditions.get(condition.type)) for condition in device.conditions]
    return _ordered(msgspec.structs.replace(device, conditions=conditions))


def _with_time(condition: Condition, old: Condition | None) -> Condition:
    if old is None or old.status != condition.status:
        return condition
    return msgspec.structs.replace(condition, last_transition_time=old.last_transition_time)


def _ordered(device: DeviceInfo) -> DeviceInfo:
    return msgspec.structs.replace(device, conditions=sorted(device.conditions, key=lambda condition: condition.type))
