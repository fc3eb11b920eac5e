"""From a device status to what is written: does the stored Device differ, and by which patch (spec 08 §4.6). Pure.

Ours are the entries of the types that we know of, the labels and the annotation that tell what GPUs these are.
Entries of other types, labels and annotations of others stay and never cause a write. `spec.devices` is a list and
therefore written whole, so the patch names the resourceVersion that it was made for.
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
from koordlet.statesinformer.devices.status import NVIDIA, PARTITION_LABEL, PARTITIONS, DeviceStatus, order
from koordlet.statesinformer.ownobject import owned_by


def new_object(node: Node, status: DeviceStatus) -> Device | None:
    """The object to create; None while there is no device to tell of."""
    if not status.devices:
        return None
    labels = {key: value for key, value in status.labels.items() if value is not None}
    annotations = {PARTITIONS: status.partitions} if status.partitions is not None else {}
    return Device(
        metadata=owned_by(node, labels=labels, annotations=annotations), spec=DeviceSpec(devices=list(status.devices))
    )


def patch_for(stored: Device, status: DeviceStatus) -> dict[str, Any]:
    """The merge patch that brings `stored` up to date; empty when it is."""
    labels = dict(status.labels)
    annotations: dict[str, str | None] = {}
    if _partitions_are_ours(stored, status):
        labels.setdefault(PARTITION_LABEL, None)
        annotations[PARTITIONS] = status.partitions
    meta: dict[str, Any] = {}
    for part, wanted, there in (
        ("labels", labels, stored.metadata.labels),
        ("annotations", annotations, stored.metadata.annotations),
    ):
        changed = {key: value for key, value in wanted.items() if there.get(key) != value}
        if changed:
            meta[part] = changed
    patch: dict[str, Any] = {}
    devices = merged(stored.spec.devices, status)
    if devices != sorted((_ordered(one) for one in stored.spec.devices), key=order):
        patch["spec"] = {"devices": to_builtins(devices)}
    if meta or patch:
        patch["metadata"] = {**meta, "resourceVersion": stored.metadata.resource_version}
    return patch


def merged(stored: Sequence[DeviceInfo], status: DeviceStatus) -> list[DeviceInfo]:
    """Our devices with the times at which their conditions came to be, and those of types that we do not know of."""
    known = {(one.type, one.id): one for one in stored}
    foreign = [_ordered(one) for one in stored if one.type not in status.types]
    ours = [_with_times(one, known.get((one.type, one.id))) for one in status.devices]
    return sorted([*ours, *foreign], key=order)


def _partitions_are_ours(stored: Device, status: DeviceStatus) -> bool:
    """Also where accelerators of files were there before; what stands beside NVIDIA's GPUs was put there by others."""
    before = stored.metadata.labels.get(LABEL_GPU_VENDOR, "")
    return status.partitioned or (LABEL_GPU_VENDOR in status.labels and before not in ("", NVIDIA))


def _with_times(device: DeviceInfo, old: DeviceInfo | None) -> DeviceInfo:
    """A condition whose status did not change keeps its time."""
    before = {} if old is None else {one.type: one for one in old.conditions}
    conditions = [_with_time(one, before.get(one.type)) for one in device.conditions]
    return _ordered(msgspec.structs.replace(device, conditions=conditions))


def _with_time(condition: Condition, old: Condition | None) -> Condition:
    if old is None or old.status != condition.status:
        return condition
    return msgspec.structs.replace(condition, last_transition_time=old.last_transition_time)


def _ordered(device: DeviceInfo) -> DeviceInfo:
    return msgspec.structs.replace(device, conditions=sorted(device.conditions, key=lambda one: one.type))
