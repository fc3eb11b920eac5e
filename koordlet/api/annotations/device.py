"""Device requests and allocations of pods, GPU partitions, vendor locks (spec 01 §5.2, §5.5, §5.9)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from koordlet.api import names
from koordlet.api.annotations._base import PER_CONTAINER, SETTING, Annotation, Map, absent
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import written
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time, WireError
from koordlet.api.meta import LabelSelector

APPLY_FOR_ALL: Final = "ApplyForAll"
REQUESTS_AS_COUNT: Final = "RequestsAsCount"
EXCLUSIVE_DEVICE_LEVEL: Final = "DeviceLevel"
EXCLUSIVE_PCIE_LEVEL: Final = "PCIeLevel"
TOPOLOGY_SCOPE_LEVELS: Final[dict[str, int]] = {"Device": 4, "PCIe": 3, "NUMANode": 2, "Node": 1}
SAME_PCIE: Final = "SamePCIe"
PARTITION_RESTRICTED: Final = "Restricted"
PARTITION_BEST_EFFORT: Final = "BestEffort"
PARTITION_HONOR: Final = "Honor"
PARTITION_PREFER: Final = "Prefer"
LOCK_LIFETIME: Final = timedelta(minutes=5)


class AllocatedVirtualFunction(Frozen):
    """A virtual function of an allocated NIC."""

    minor: int = 0
    bus_id: str = msgspec.field(default="", name="busID")


class DeviceAllocationExtension(Frozen):
    """Additional data of an allocation."""

    vfs: list[AllocatedVirtualFunction] = []
    gpu_shared_resource_template: str = ""


class PodDeviceAllocation(Frozen):
    """One device that is allocated to a pod, and the allocated amounts."""

    minor: int = written(int)
    resources: dict[str, Quantity] = written(dict)
    id: str = ""
    extension: DeviceAllocationExtension | None = None


class DeviceHint(Frozen):
    """Constraints on the devices of one type that a pod requests."""

    selector: LabelSelector | None = None
    vf_selector: LabelSelector | None = None
    allocate_strategy: str = ""
    required_topology_scope: str = ""
    exclusive_policy: str = ""


class DeviceJointAllocate(Frozen):
    """Device types that must be allocated jointly."""

    device_types: list[str] = []
    required_scope: str = ""


class GPUPartitionSpec(Frozen):
    """A pod's requirements on the GPU partition."""

    allocate_policy: str = ""
    ring_bus_bandwidth: Quantity | None = None


class GPUPartition(Frozen):
    """GPUs that may be allocated together."""

    minors: list[int] = written(list)
    gpu_link_type: str = msgspec.field(default="", name="gpuLinkType")
    ring_bus_bandwidth: Quantity | None = None
    allocation_score: int = 0


DeviceAllocations = dict[str, list[PodDeviceAllocation]]
PartitionTable = dict[int, list[GPUPartition]]

ALLOCATED: Final[Annotation[DeviceAllocations]] = Annotation(
    names.ANNOTATION_DEVICE_ALLOCATED, dict[str, list[PodDeviceAllocation]], limits=PER_CONTAINER
)
ALLOCATE_HINT: Final[Annotation[dict[str, DeviceHint]]] = Annotation(
    names.ANNOTATION_DEVICE_ALLOCATE_HINT, dict[str, DeviceHint], limits=SETTING
)
JOINT_ALLOCATE: Final[Annotation[DeviceJointAllocate]] = Annotation(
    names.ANNOTATION_DEVICE_JOINT_ALLOCATE, DeviceJointAllocate, limits=SETTING
)
_PARTITION_SPEC: Final[Annotation[GPUPartitionSpec]] = Annotation(
    names.ANNOTATION_GPU_PARTITION_SPEC, GPUPartitionSpec, limits=SETTING
)
_PARTITIONS: Final[Annotation[dict[str, list[GPUPartition]]]] = Annotation(
    names.ANNOTATION_GPU_PARTITIONS, dict[str, list[GPUPartition]], empty=absent
)


def gpu_partition_spec(annotations: Map) -> GPUPartitionSpec | None:
    """The pod's partition spec; the default policy is BestEffort. Raises WireError."""
    spec = _PARTITION_SPEC.get(annotations)
    if spec is None or spec.allocate_policy:
        return spec
    return msgspec.structs.replace(spec, allocate_policy=PARTITION_BEST_EFFORT)


def gpu_partitions(annotations: Map) -> PartitionTable | None:
    """The partitions of a Device by number of GPUs, None when missing.

    Raises WireError when malformed, `null` included, or when a size is not a number.
    """
    where = f"annotation {_PARTITIONS.key}"
    if annotations.get(_PARTITIONS.key, "").strip() == "null":
        raise WireError("must be an object, not null", where=where)
    table = _PARTITIONS.get(annotations)
    if table is None:
        return None
    for size in table:
        if not re.fullmatch(r"[0-9]{1,4}", size, re.ASCII):
            raise WireError(f"{size!r} is not a number of GPUs", where=where)
    return {int(size): partitions for size, partitions in table.items()}


def gpu_partitions_text(table: PartitionTable) -> str:
    """The annotation for a partition table."""
    return _PARTITIONS.text({str(size): partitions for size, partitions in table.items()})


def gpu_partition_policy(labels: Map) -> str:
    """`Honor` if the label of the node or device has exactly this value, else `Prefer`."""
    return PARTITION_HONOR if labels.get(names.LABEL_GPU_PARTITION_POLICY) == PARTITION_HONOR else PARTITION_PREFER


def minors_text(minors: list[int]) -> str:
    """The value of `gpu-minors`."""
    return ",".join(map(str, minors))


class VendorLock(NamedTuple):
    """The pod that holds a node's device-plugin lock, and the time since when."""

    since: Time
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.since},{self.namespace},{self.name}"

    def expired(self, now: datetime) -> bool:
        """Whether the lock may be taken over without checking whether its pod still exists."""
        return now - self.since > LOCK_LIFETIME


def vendor_lock(annotations: Map, key: str) -> VendorLock | None:
    """The lock under `ANNOTATION_HAMI_LOCK` or `ANNOTATION_CAMBRICON_LOCK`, None when free. Raises WireError."""
    text = annotations.get(key)
    if text is None:
        return None
    parts: list[Any] = text.split(",")
    if len(parts) != 3:
        raise WireError(f"{text!r} is not <time>,<namespace>,<name>", where=f"annotation {key}")
    try:
        return VendorLock(Time.parse(parts[0]), parts[1], parts[2])
    except ValueError as error:
        raise WireError(str(error), where=f"annotation {key}") from error
