"""Adds the devices that the scheduler allocated to a pod to the kubelet's pod resources (spec 08 §6, 02 §3.10). Pure.

They are added to the first container, whose devices are then sorted by resource name. A message to which nothing is
added stays byte-identical.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from koordlet.api.annotations.device import ALLOCATED, PodDeviceAllocation
from koordlet.api.core import Pod
from koordlet.api.crs.device import GPU, RDMA
from koordlet.api.names import RESOURCE_NVIDIA_GPU, RESOURCE_RDMA
from koordlet.api.podresources.api_pb2 import ContainerDevices, PodResources
from koordlet.metriccache.facts import GpuInfo, XpuInfo

Devices = list[tuple[str, list[str]]]
"""(resource name, ids), in the order of the annotation."""

_VENDOR_RESOURCES = {
    "cambricon": "cambricon.com/mlu",
    "iluvatar": "iluvatar.com/gpu",
    "kunlun": "kunlunxin.com/xpu",
    "metax": "metax-tech.com/gpu",
}
"""Vendor -> extended resource of the vendor's own device plugin."""
_ASCEND = re.compile(r"Ascend-?(310P|310|910)")


def vendor_resource(vendor: str, model: str) -> str:
    """The resource name by which consumers of the kubelet's API know these accelerators; NVIDIA's for an unknown
    vendor."""
    if vendor == "huawei":
        match = _ASCEND.match(model)
        return f"huawei.com/Ascend{match[1]}" if match else RESOURCE_NVIDIA_GPU
    return _VENDOR_RESOURCES.get(vendor, RESOURCE_NVIDIA_GPU)


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The node's accelerators as in its Device object: XPUs if there are any, else GPUs (spec 08 §4.2)."""

    gpus: Sequence[GpuInfo] = ()
    xpus: Sequence[XpuInfo] = ()

    def resource(self, minor: int) -> str:
        """The device's resource name; an unknown device is assumed to be like the first."""
        for xpu in (*(xpu for xpu in self.xpus if xpu.minor == minor), *self.xpus[:1]):
            return vendor_resource(xpu.vendor, xpu.model)
        return RESOURCE_NVIDIA_GPU

    def uuid(self, minor: int) -> str:
        """Empty for an unknown device."""
        return next((device.uuid for device in self.xpus or self.gpus if device.minor == minor), "")


def devices_of(pod: Pod, accelerators: Accelerators) -> Devices:
    """The devices that the scheduler allocated to `pod`, without types that have no known resource and allocations
    that have no id. Raises WireError for an annotation that can't be decoded."""
    ids_by_resource: dict[str, list[str]] = {}
    for kind, allocations in (ALLOCATED.get(pod.metadata.annotations) or {}).items():
        for allocation in allocations:
            if kind == GPU:
                ids = ids_by_resource.setdefault(accelerators.resource(allocation.minor), [])
                ids.extend(_ids(allocation, accelerators.uuid(allocation.minor)))
            elif kind == RDMA:
                ids_by_resource.setdefault(RESOURCE_RDMA, []).extend(_ids(allocation, uuid=""))
    return [(resource, ids) for resource, ids in ids_by_resource.items() if ids]


def _ids(allocation: PodDeviceAllocation, uuid: str) -> Iterable[str]:
    """Its virtual functions, else the device itself."""
    functions = [] if allocation.extension is None else [function.bus_id for function in allocation.extension.vfs]
    return [name for name in functions or [allocation.id or uuid] if name]


def add(resources: PodResources, devices: Devices) -> bool:
    """Add `devices` to the first container. Returns whether there were a device and a container."""
    if not devices or not resources.containers:
        return False
    first = resources.containers[0]
    first.devices.extend(ContainerDevices(resource_name=resource, device_ids=ids) for resource, ids in devices)
    first.devices.sort(key=lambda device: device.resource_name)
    return True
