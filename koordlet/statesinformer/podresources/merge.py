"""Devices that the scheduler gave a pod, added to what the kubelet tells of it (spec 08 §6, 02 §3.10). Pure.

They go to the first container, which then has its devices in the order of their resources' names. What nothing is added
to stays as it is, to the byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from koordlet.api.annotations.device import ALLOCATED, DeviceAllocation
from koordlet.api.core import Pod
from koordlet.api.crs.device import GPU, RDMA
from koordlet.api.names import RESOURCE_NVIDIA_GPU, RESOURCE_RDMA
from koordlet.api.podresources.api_pb2 import ContainerDevices, PodResources
from koordlet.metriccache.facts import GpuInfo, XpuInfo

Devices = list[tuple[str, list[str]]]
"""Resource name -> ids, in the order of the annotation."""

_VENDORS = {
    "cambricon": "cambricon.com/mlu",
    "iluvatar": "iluvatar.com/gpu",
    "kunlun": "kunlunxin.com/xpu",
    "metax": "metax-tech.com/gpu",
}
"""What the vendors' own device plugins call one of theirs."""
_ASCEND = re.compile(r"Ascend-?(310P|310|910)")


def vendor_resource(vendor: str, model: str) -> str:
    """What consumers of the kubelet's API know these accelerators by; NVIDIA's name for whoever is not known."""
    if vendor == "huawei":
        found = _ASCEND.match(model)
        return f"huawei.com/Ascend{found[1]}" if found else RESOURCE_NVIDIA_GPU
    return _VENDORS.get(vendor, RESOURCE_NVIDIA_GPU)


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The node's, as its Device object lists them: XPUs where there are any, else GPUs (spec 08 §4.2)."""

    gpus: Sequence[GpuInfo] = ()
    xpus: Sequence[XpuInfo] = ()

    def resource(self, minor: int) -> str:
        """By what name the device goes; one that is not known is taken to be like the first."""
        for device in (*(one for one in self.xpus if one.minor == minor), *self.xpus[:1]):
            return vendor_resource(device.vendor, device.model)
        return RESOURCE_NVIDIA_GPU

    def uuid(self, minor: int) -> str:
        """ "" when there is none."""
        return next((one.uuid for one in self.xpus or self.gpus if one.minor == minor), "")


def devices_of(pod: Pod, accelerators: Accelerators) -> Devices:
    """What the scheduler gave `pod`. Types of no known resource and allocations without an id add nothing. Raises
    WireError for an annotation that can't be read."""
    found: dict[str, list[str]] = {}
    for kind, allocations in (ALLOCATED.get(pod.metadata.annotations) or {}).items():
        for one in allocations:
            if kind == GPU:
                found.setdefault(accelerators.resource(one.minor), []).extend(_ids(one, accelerators.uuid))
            elif kind == RDMA:
                found.setdefault(RESOURCE_RDMA, []).extend(_ids(one))
    return [(resource, ids) for resource, ids in found.items() if ids]


def _ids(one: DeviceAllocation, uuid: Callable[[int], str] = lambda _: "") -> Iterable[str]:
    """Its virtual functions, else the device itself."""
    functions = [] if one.extension is None else [function.bus_id for function in one.extension.vfs]
    return [name for name in functions or [one.id or uuid(one.minor)] if name]


def add(to: PodResources, devices: Devices) -> bool:
    """Whether there was something to add and a container to add it to."""
    if not devices or not to.containers:
        return False
    first = to.containers[0]
    first.devices.extend(ContainerDevices(resource_name=resource, device_ids=ids) for resource, ids in devices)
    first.devices.sort(key=lambda one: one.resource_name)
    return True
