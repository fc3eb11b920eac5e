"""GPU and RDMA totals of a node from its Device object (spec 04 §6.8, §6.9). Pure.

A total of None means that the resource is removed from the Node.
"""

from __future__ import annotations

from typing import Final

from koordlet.api import names
from koordlet.api.crs.device import GPU, RDMA, Device
from koordlet.api.encoding.quantity import Quantity

NVIDIA: Final = "nvidia"
GPU_RESOURCES: Final = (
    names.RESOURCE_GPU,
    names.RESOURCE_GPU_CORE,
    names.RESOURCE_HUAWEI_NPU_CORE,
    names.RESOURCE_HUAWEI_NPU_CPU,
    names.RESOURCE_HUAWEI_NPU_DVPP,
    names.RESOURCE_GPU_MEMORY,
    names.RESOURCE_GPU_MEMORY_RATIO,
    names.RESOURCE_GPU_SHARED,
)
GPU_LABELS: Final = (names.LABEL_GPU_VENDOR, names.LABEL_GPU_MODEL, names.LABEL_GPU_DRIVER_VERSION)

Totals = dict[str, Quantity | None]


def gpu_totals(device: Device | None, *, shared: bool) -> Totals:
    """Sums over the healthy GPUs. Resources that no GPU reports are not changed on the Node.

    `shared` is feature gate EnableSyncGPUSharedResource.
    """
    gpus = [info for info in device.spec.devices if info.type == GPU and info.health] if device is not None else []
    if device is None or not gpus:
        return dict.fromkeys(GPU_RESOURCES)
    sums: dict[str, Quantity] = {}
    for gpu in gpus:
        for name, amount in gpu.resources.items():
            sums[name] = sums[name] + amount if name in sums else amount
    if device.metadata.labels.get(names.LABEL_GPU_VENDOR, "") in ("", NVIDIA) and names.RESOURCE_GPU_CORE in sums:
        sums[names.RESOURCE_GPU] = sums[names.RESOURCE_GPU_CORE]
    if shared:
        sums[names.RESOURCE_GPU_SHARED] = Quantity.of(100 * len(gpus))
    return {name: sums[name] for name in sorted(sums) if name in GPU_RESOURCES}


def gpu_labels(device: Device | None) -> dict[str, str]:
    """The Device's labels that are copied to the Node while it has a healthy GPU; they are never removed."""
    if device is None or not any(info.type == GPU and info.health for info in device.spec.devices):
        return {}
    return {key: device.metadata.labels[key] for key in GPU_LABELS if key in device.metadata.labels}


def rdma_totals(device: Device | None) -> Totals:
    """100 for each healthy RDMA device."""
    count = sum(info.type == RDMA and info.health for info in device.spec.devices) if device is not None else 0
    return {names.RESOURCE_RDMA: Quantity.of(100 * count) if count else None}
