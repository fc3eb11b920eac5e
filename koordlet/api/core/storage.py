"""CSI nodes, drivers and storage capacities, trimmed to the fields that the scheduler reads (storage.k8s.io/v1)."""

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import LabelSelector, ObjectMeta


class VolumeNodeResources(Struct):
    """Maximum number of a driver's volumes on a node; absent: unlimited."""

    count: int | None = None


class CSINodeDriver(Struct):
    """A driver on a node."""

    name: str
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Struct):
    """`spec` of a CSINode."""

    drivers: list[CSINodeDriver] = msgspec.field(default_factory=list)


class CSINode(Struct):
    """storage.k8s.io/v1 CSINode; named after its node."""

    kind: str = msgspec.field(default_factory=lambda: "CSINode")
    api_version: str = msgspec.field(default_factory=lambda: "storage.k8s.io/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: CSINodeSpec = msgspec.field(default_factory=CSINodeSpec)


class CSIDriverSpec(Struct):
    """`spec` of a driver."""

    storage_capacity: bool = False


class CSIDriver(Struct):
    """storage.k8s.io/v1 CSIDriver."""

    kind: str = msgspec.field(default_factory=lambda: "CSIDriver")
    api_version: str = msgspec.field(default_factory=lambda: "storage.k8s.io/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: CSIDriverSpec = msgspec.field(default_factory=CSIDriverSpec)


class CSIStorageCapacity(Struct):
    """storage.k8s.io/v1 CSIStorageCapacity: the free capacity of a storage class on the nodes of a topology segment."""

    kind: str = msgspec.field(default_factory=lambda: "CSIStorageCapacity")
    api_version: str = msgspec.field(default_factory=lambda: "storage.k8s.io/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None
