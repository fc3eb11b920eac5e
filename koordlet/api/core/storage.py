"""CSI nodes, drivers and storage capacities, trimmed to the fields that the scheduler reads (storage.k8s.io/v1)."""

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.meta import ApiObject, LabelSelector


class VolumeNodeResources(Struct):
    """Maximum number of a driver's volumes on a node; absent: unlimited."""

    count: int | None = None


class CSINodeDriver(Struct):
    """A driver on a node."""

    name: str
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Struct):
    """`spec` of a CSINode."""

    drivers: list[CSINodeDriver] = []


class CSINode(ApiObject, api_version="storage.k8s.io/v1"):
    """storage.k8s.io/v1 CSINode; named after its node."""

    spec: CSINodeSpec = msgspec.field(default_factory=CSINodeSpec)


class CSIDriverSpec(Struct):
    """`spec` of a driver."""

    storage_capacity: bool = False


class CSIDriver(ApiObject, api_version="storage.k8s.io/v1"):
    """storage.k8s.io/v1 CSIDriver."""

    spec: CSIDriverSpec = msgspec.field(default_factory=CSIDriverSpec)


class CSIStorageCapacity(ApiObject, api_version="storage.k8s.io/v1"):
    """storage.k8s.io/v1 CSIStorageCapacity: the free capacity of a storage class on the nodes of a topology segment."""

    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None
