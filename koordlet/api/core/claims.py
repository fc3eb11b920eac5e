"""Resource claims, device classes and resource slices, trimmed to the fields that the scheduler reads and writes
(resource.k8s.io/v1).
"""

from typing import Any

import msgspec

from koordlet.api.core.selectors import NodeSelector, Taint, Toleration
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ApiObject

GROUP_VERSION = "resource.k8s.io/v1"
EXACT_COUNT, ALL = "ExactCount", "All"
"""Allocation modes; an empty mode is ExactCount."""


class CELSelector(Struct):
    """An expression over `device`."""

    expression: str


class DeviceSelector(Struct):
    """A condition that a device must meet."""

    cel: CELSelector | None = None


class ExactDeviceRequest(Struct):
    """Devices of one class."""

    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool = False
    tolerations: list[Toleration] = []
    capacity: Any = None
    """Consumable capacity; only its presence is read."""


class DeviceSubRequest(ExactDeviceRequest):
    """One of several alternatives."""

    name: str = ""


class DeviceRequest(Struct):
    """Exactly one of `exactly` and `first_available` is set."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] = []


class DeviceConstraint(Struct):
    """A rule over the devices of some requests; no names: of all requests."""

    requests: list[str] = []
    match_attribute: str = ""
    distinct_attribute: str = ""


class DeviceClaim(Struct):
    """What a claim requests. `config` is copied into the allocation."""

    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    config: list[dict[str, Any]] = []


class ResourceClaimSpec(Struct):
    """`spec` of a ResourceClaim."""

    devices: DeviceClaim = msgspec.field(default_factory=DeviceClaim)


class DeviceRequestAllocationResult(Struct):
    """One allocated device. `request` is `name` or `name/alternative`."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    tolerations: list[Toleration] = []


class DeviceAllocationResult(Struct):
    """The devices of a claim, and what their drivers need to know."""

    results: list[DeviceRequestAllocationResult] = []
    config: list[dict[str, Any]] = []


class AllocationResult(Struct):
    """`node_selector`: where the devices can be used; None: on every node."""

    devices: DeviceAllocationResult = msgspec.field(default_factory=DeviceAllocationResult)
    node_selector: NodeSelector | None = None
    allocation_timestamp: Time | None = None


class ResourceClaimConsumer(Struct):
    """A pod that may use the claim."""

    api_group: str = ""
    resource: str
    name: str
    uid: str


class ResourceClaimStatus(Struct):
    """`status` of a ResourceClaim."""

    allocation: AllocationResult | None = None
    reserved_for: list[ResourceClaimConsumer] = []


class ResourceClaim(ApiObject, api_version=GROUP_VERSION):
    """Devices for one pod or several."""

    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)


class DeviceClassSpec(Struct):
    """`spec` of a DeviceClass."""

    selectors: list[DeviceSelector] = []
    config: list[dict[str, Any]] = []
    extended_resource_name: str = ""
    """The resource by which pods without a claim may request devices of the class."""


class DeviceClass(ApiObject, api_version=GROUP_VERSION):
    """Devices that an administrator offers under one name."""

    spec: DeviceClassSpec = msgspec.field(default_factory=DeviceClassSpec)


class DeviceAttribute(Struct):
    """Exactly one member is set."""

    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class DeviceCapacity(Struct):
    """An amount of a device."""

    value: Quantity


class SliceDevice(Struct):
    """A device of a pool. Attribute and capacity names without a domain belong to the driver's."""

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    taints: list[Taint] = []
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    consumes_counters: list[Any] = []
    allow_multiple_allocations: bool = False
    binds_to_node: bool = False
    binding_conditions: list[str] = []


class ResourcePool(Struct):
    """A pool may have several slices; those of its highest generation count."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Struct):
    """`spec` of a ResourceSlice."""

    driver: str = ""
    pool: ResourcePool = msgspec.field(default_factory=ResourcePool)
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[SliceDevice] = []


class ResourceSlice(ApiObject, api_version=GROUP_VERSION):
    """Devices that a driver offers on one node or several."""

    spec: ResourceSliceSpec = msgspec.field(default_factory=ResourceSliceSpec)
