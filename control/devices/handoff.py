"""What vendors' device plugins read of a pod in addition to `device-allocated` (spec 06 §3.10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from control.devices.inventory import DeviceInventory
from control.devices.room import DeviceHolding, HeldDevice
from koordlet.api import names
from koordlet.api.annotations.device import minors_text
from koordlet.api.crs.device import GPU

HUAWEI: Final = "huawei"
ASCEND_DUO: Final = "Ascend-310P3-300I-DUO"
CAMBRICON: Final = "cambricon"
METAX: Final = "metax"
LOCKS: Final = {CAMBRICON: names.ANNOTATION_CAMBRICON_LOCK, METAX: names.ANNOTATION_HAMI_LOCK}
"""Vendor -> annotation of a Node whose device plugin works for one pod at a time."""
_MEMORY_UNIT: Final = {CAMBRICON: 256 << 20, METAX: 1 << 20}
"""Bytes in which the device plugin counts memory."""


def refused_by(vendor: str, holding: DeviceHolding) -> str:
    """Why the vendor's device plugin can't attach these devices; "" if it can."""
    gpus, unit = holding.get(GPU, ()), _MEMORY_UNIT.get(vendor)
    if not gpus or unit is None:
        return ""
    if vendor == CAMBRICON and len(gpus) > 1:
        return f"the device plugin of {vendor} attaches one device to a pod, not {len(gpus)}"
    if not all(gpu.amounts.get(names.RESOURCE_GPU_CORE) for gpu in gpus):
        return f"the device plugin of {vendor} needs {names.RESOURCE_GPU_CORE}"
    if not all(gpu.amounts.get(names.RESOURCE_GPU_MEMORY, 0) >= unit for gpu in gpus):
        return f"the device plugin of {vendor} needs {unit >> 20}Mi of {names.RESOURCE_GPU_MEMORY}"
    return ""


def annotations_for(holding: DeviceHolding, inventory: DeviceInventory, now_ns: int) -> dict[str, str]:
    """`now_ns`: Unix time in nanoseconds."""
    annotations = {names.ANNOTATION_BIND_TIMESTAMP: str(now_ns)}
    gpus = holding.get(GPU, ())
    if not gpus:
        return annotations
    minors = [gpu.minor for gpu in gpus]
    annotations[names.ANNOTATION_GPU_MINORS] = minors_text(minors)
    if inventory.vendor == HUAWEI:
        annotations[names.ANNOTATION_PREDICATE_TIME] = str(now_ns)
        if inventory.model == ASCEND_DUO:
            annotations[names.ANNOTATION_HUAWEI_ASCEND_310P] = ",".join(f"Ascend310P-{minor}" for minor in minors)
        else:
            template = gpus[0].template
            whole = minors_text(minors)
            annotations[names.ANNOTATION_HUAWEI_NPU_CORE] = f"{minors[0]}-{template}" if template else whole
    elif inventory.vendor == CAMBRICON:
        core, memory = _core_and_memory(gpus[0], CAMBRICON)
        annotations[names.ANNOTATION_CAMBRICON_DSMLU_ASSIGNED] = "false"
        annotations[names.ANNOTATION_CAMBRICON_DSMLU_PROFILE] = f"{minors[0]}_{core}_{memory}"
    elif inventory.vendor == METAX:
        annotations[names.ANNOTATION_METAX_GPU_DEVICES_ALLOCATED] = _metax_text(gpus, inventory)
    return annotations


def _core_and_memory(gpu: HeldDevice, vendor: str) -> tuple[int, int]:
    """Percent of the cores, and memory in the vendor's unit."""
    amounts = gpu.amounts
    memory = amounts.get(names.RESOURCE_GPU_MEMORY, 0) // _MEMORY_UNIT[vendor]
    return amounts.get(names.RESOURCE_GPU_CORE, 0), memory


def _metax_text(gpus: Sequence[HeldDevice], inventory: DeviceInventory) -> str:
    units = inventory.units.get(GPU, {})
    listed = []
    for gpu in gpus:
        core, memory = _core_and_memory(gpu, METAX)
        uuid = units[gpu.minor].id if gpu.minor in units else ""
        listed.append({"uuid": uuid, "compute": core, "vRam": memory})
    return msgspec.json.encode([listed]).decode()


def labels_for(holding: DeviceHolding, labels: Mapping[str, str], node: str) -> dict[str, str]:
    """Labels that the pod gets."""
    if GPU not in holding or labels.get(names.LABEL_GPU_ISOLATION_PROVIDER) != names.GPU_ISOLATION_HAMI_CORE:
        return {}
    return {names.LABEL_HAMI_VGPU_NODE: node}
