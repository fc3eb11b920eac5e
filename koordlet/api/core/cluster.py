"""Namespaces, ConfigMaps, Secrets, Services, volumes, storage classes, priority classes and runtime classes."""

import msgspec

from koordlet.api.core.pod import ResourceList, ResourceRequirements
from koordlet.api.core.selectors import NodeSelector
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.wire import IntOrString
from koordlet.api.meta import ApiObject, LabelSelector, ObjectReference


class NamespaceStatus(Struct):
    """`status` of a namespace."""

    phase: str = ""


class Namespace(ApiObject, api_version="v1"):
    """core/v1 Namespace."""

    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)


class ConfigMap(ApiObject, api_version="v1"):
    """core/v1 ConfigMap; `binary_data` values are base64."""

    immutable: bool | None = None
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class Secret(ApiObject, api_version="v1"):
    """core/v1 Secret; `data` values are base64."""

    immutable: bool | None = None
    data: dict[str, str] = {}
    string_data: dict[str, str] = {}
    type: str = ""

    def __repr__(self) -> str:
        """Without the content, which must not be logged."""
        return f"Secret({self.metadata.key})"


class ServiceAccount(ApiObject, api_version="v1"):
    """core/v1 ServiceAccount."""


class ServicePort(Struct):
    """A port of a service."""

    name: str = ""
    protocol: str = ""
    port: int
    target_port: IntOrString | None = None
    node_port: int = 0


class ServiceSpec(Struct):
    """`spec` of a service."""

    ports: list[ServicePort] = []
    selector: dict[str, str] = {}
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    type: str = ""


class Service(ApiObject, api_version="v1"):
    """core/v1 Service."""

    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)


class EndpointAddress(Struct):
    """One address behind a service."""

    ip: str
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class EndpointPort(Struct):
    """One port of the addresses of a subset."""

    name: str = ""
    port: int
    protocol: str = ""


class EndpointSubset(Struct):
    """Addresses that share ports."""

    addresses: list[EndpointAddress] = []
    not_ready_addresses: list[EndpointAddress] = []
    ports: list[EndpointPort] = []


class Endpoints(ApiObject, api_version="v1"):
    """core/v1 Endpoints."""

    subsets: list[EndpointSubset] = []


class PersistentVolumeClaimSpec(Struct):
    """`spec` of a claim."""

    access_modes: list[str] = []
    selector: LabelSelector | None = None
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimStatus(Struct):
    """`status` of a claim."""

    phase: str = ""
    capacity: ResourceList = {}


class PersistentVolumeClaim(ApiObject, api_version="v1"):
    """core/v1 PersistentVolumeClaim."""

    spec: PersistentVolumeClaimSpec = msgspec.field(default_factory=PersistentVolumeClaimSpec)
    status: PersistentVolumeClaimStatus = msgspec.field(default_factory=PersistentVolumeClaimStatus)


class VolumeNodeAffinity(Struct):
    """Nodes that can reach a volume."""

    required: NodeSelector | None = None


class CSIPersistentVolumeSource(Struct):
    """A volume of a CSI driver."""

    driver: str
    volume_handle: str = ""


class PersistentVolumeSpec(Struct):
    """`spec` of a volume."""

    capacity: ResourceList = {}
    access_modes: list[str] = []
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    csi: CSIPersistentVolumeSource | None = None
    node_affinity: VolumeNodeAffinity | None = None


class PersistentVolumeStatus(Struct):
    """`status` of a volume."""

    phase: str = ""


class PersistentVolume(ApiObject, api_version="v1"):
    """core/v1 PersistentVolume."""

    spec: PersistentVolumeSpec = msgspec.field(default_factory=PersistentVolumeSpec)
    status: PersistentVolumeStatus = msgspec.field(default_factory=PersistentVolumeStatus)


class TopologySelectorLabelRequirement(Struct):
    """A label that a node must have with one of these values."""

    key: str
    values: list[str] = []


class TopologySelectorTerm(Struct):
    """Requirements that are ANDed."""

    match_label_expressions: list[TopologySelectorLabelRequirement] = []


class StorageClass(ApiObject, api_version="storage.k8s.io/v1"):
    """storage.k8s.io/v1 StorageClass."""

    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologySelectorTerm] = []


class PriorityClass(ApiObject, api_version="scheduling.k8s.io/v1"):
    """scheduling.k8s.io/v1 PriorityClass."""

    value: int
    global_default: bool = False
    description: str = ""
    preemption_policy: str | None = None


class RuntimeClass(ApiObject, api_version="node.k8s.io/v1"):
    """node.k8s.io/v1 RuntimeClass; only its handler is read."""

    handler: str = ""
