"""Device (scheduling.koordinator.sh/v1alpha1): GPUs, NICs and other accelerators of one node.

Cluster scoped, named like the node, no status subresource. koordlet writes it, manager and scheduler read it.
`DeviceInfo` is shared with NodeMetric, where `resources` is usage instead of capacity (spec 01 §3.2, §3.6).
"""

from typing import Annotated

import msgspec

from koordlet.api.core.pod import ResourceList
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import Int32, doc, written
from koordlet.api.meta import ApiObject, Condition

GPU = "gpu"
RDMA = "rdma"
FPGA = "fpga"

CONDITION_HEALTHY = "Healthy"


class DeviceTopology(Struct):
    """The location of a device."""

    socket_id: Annotated[Int32, doc("CPU socket; -1 when koordlet does not know it.")] = msgspec.field(name="socketID")
    node_id: Annotated[Int32, doc("NUMA node.")] = msgspec.field(name="nodeID")
    pcie_id: Annotated[str, doc("PCIe switch or root port.")] = msgspec.field(name="pcieID")
    bus_id: Annotated[str, doc("PCI address, domain:bus:device.function.")] = msgspec.field(default="", name="busID")


class VirtualFunction(Struct):
    """One virtual function of a device."""

    minor: Annotated[Int32, doc("Index of the function; -1 for one that was discovered.")]
    bus_id: Annotated[str, doc("PCI address, domain:bus:device.function.")] = msgspec.field(default="", name="busID")


class VirtualFunctionGroup(Struct):
    """Virtual functions with the same properties."""

    labels: Annotated[dict[str, str], doc("Properties, matched by device hints.")] = {}
    vfs: Annotated[list[VirtualFunction], doc("The functions, sorted by busID.")] = []


class DeviceInfo(Struct):
    """One device: type, location, and capacity (in a Device) or usage (in a NodeMetric)."""

    type: Annotated[str, doc("Type of the device: gpu, rdma, fpga; an open set.")] = ""
    labels: Annotated[dict[str, str], doc("Properties, matched by device hints.")] = {}
    id: Annotated[str, doc("UUID (GPU) or PCI address (RDMA).")] = ""
    minor: Annotated[Int32 | None, doc("Index of the device, from 0.")] = None
    module_id: Annotated[Int32 | None, doc("Physical slot.")] = msgspec.field(default=None, name="moduleID")
    health: Annotated[bool, doc("Whether the device works.", default=False, required=True)] = written(bool)
    resources: Annotated[ResourceList, doc("Capacity of the device, or its usage in a NodeMetric.")] = {}
    topology: Annotated[DeviceTopology | None, doc("Location of the device.")] = None
    vf_groups: Annotated[list[VirtualFunctionGroup], doc("Virtual functions of the device.")] = []
    conditions: Annotated[list[Condition], doc("Conditions of the device; Healthy is the known type.")] = []


class DeviceAllocationItem(Struct):
    """Devices held by one pod."""

    name: Annotated[str, doc("Name of the pod.")] = ""
    namespace: Annotated[str, doc("Namespace of the pod.")] = ""
    uuid: Annotated[str, doc("UID of the pod.")] = ""
    minors: Annotated[list[Int32], doc("Indexes of the devices.")] = []


class DeviceAllocation(Struct):
    """Devices of one type that are allocated."""

    type: Annotated[str, doc("Type of the devices.")] = ""
    entries: Annotated[list[DeviceAllocationItem], doc("Holders.")] = []


class DeviceSpec(Struct):
    """`spec` of a Device."""

    devices: Annotated[list[DeviceInfo], doc("Devices of the node, sorted by type and then minor.")] = []


class DeviceStatus(Struct):
    """`status` of a Device; not written."""

    allocations: Annotated[list[DeviceAllocation], doc("Devices that are allocated.")] = []


class Device(ApiObject, api_version="scheduling.koordinator.sh/v1alpha1"):
    """The devices of one node; the object is named like the node."""

    spec: Annotated[DeviceSpec, doc("Devices of the node.")] = msgspec.field(default_factory=DeviceSpec)
    status: Annotated[DeviceStatus, doc("Allocations.")] = msgspec.field(default_factory=DeviceStatus)
