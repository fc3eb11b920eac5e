"""Namespaces, ConfigMaps, Secrets, Services, volumes, storage classes, priority classes and runtime classes."""

import msgspec

from koordlet.api.core.pod import ResourceList, ResourceRequirements
from koordlet.api.core.selectors import NodeSelector
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.wire import IntOrString
from koordlet.api.meta import LabelSelector, ObjectMeta, ObjectReference


class NamespaceStatus(Struct):
    """`status` of a namespace."""

    phase: str = ""


class Namespace(Struct):
    """core/v1 Namespace."""

    kind: str = msgspec.field(default_factory=lambda: "Namespace")
    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)


class ConfigMap(Struct):
    """core/v1 ConfigMap; `binary_data` values are base64."""

    kind: str = msgspec.field(default_factory=lambda: "ConfigMap")
    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    immutable: bool | None = None
    data: dict[str, str] = msgspec.field(default_factory=dict)
    binary_data: dict[str, str] = msgspec.field(default_factory=dict)


class Secret(Struct):
    """core/v1 Secret; `data` values are base64."""

    kind: str = msgspec.field(default_factory=lambda: "Secret")
    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    immutable: bool | None = None
    data: dict[str, str] = msgspec.field(default_factory=dict)
    string_data: dict[str, str] = msgspec.field(default_factory=dict)
    type: str = ""

    def __repr__(self) -> str:
        """Without the content, which must not be logged."""
        return f"Secret({self.metadata.key})"


class ServiceAccount(Struct):
    """core/v1 ServiceAccount."""

    kind: str = msgspec.field(default_factory=lambda: "ServiceAccount")
    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class ServicePort(Struct):
    """A port of a service."""

    name: str = ""
    protocol: str = ""
    port: int
    target_port: IntOrString | None = None
    node_port: int = 0


class ServiceSpec(Struct):
    """`spec` of a service."""

    ports: list[ServicePort] = msgspec.field(default_factory=list)
    selector: dict[str, str] = msgspec.field(default_factory=dict)
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    type: str = ""


class Service(Struct):
    """core/v1 Service."""

    kind: str = msgspec.field(default_factory=lambda: "Service")
    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
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

    addresses: list[EndpointAddress] = msgspec.field(default_factory=list)
    not_ready_addresses: list[EndpointAddress] = msgspec.field(default_factory=list)
    ports: list[EndpointPort] = msgspec.field(default_factory=list)


class Endpoints(Struct):
    """core/v1 Endpoints."""

    kind: str = msgspec.field(default_factory=lambda: "Endpoints")
    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    subsets: list[EndpointSubset] = msgspec.field(default_factory=list)


class PersistentVolumeClaimSpec(Struct):
    """`spec` of a claim."""

    access_modes: list[str] = msgspec.field(default_factory=list)
    selector: LabelSelector | None = None
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None


class PersistentVolumeClaimStatus(Struct):
    """`status` of a claim."""

    phase: str = ""
    capacity: ResourceList = msgspec.field(default_factory=dict)


class PersistentVolumeClaim(Struct):
    """core/v1 PersistentVolumeClaim."""

    kind: str = msgspec.field(default_factory=lambda: "PersistentVolumeClaim")
    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
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

    capacity: ResourceList = msgspec.field(default_factory=dict)
    access_modes: list[str] = msgspec.field(default_factory=list)
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    csi: CSIPersistentVolumeSource | None = None
    node_affinity: VolumeNodeAffinity | None = None


class PersistentVolumeStatus(Struct):
    """`status` of a volume."""

    phase: str = ""


class PersistentVolume(Struct):
    """core/v1 PersistentVolume."""

    kind: str = msgspec.field(default_factory=lambda: "PersistentVolume")
    api_version: str = msgspec.field(default_factory=lambda: "v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PersistentVolumeSpec = msgspec.field(default_factory=PersistentVolumeSpec)
    status: PersistentVolumeStatus = msgspec.field(default_factory=PersistentVolumeStatus)


class TopologySelectorLabelRequirement(Struct):
    """A label that a node must have with one of these values."""

    key: str
    values: list[str] = msgspec.field(default_factory=list)


class TopologySelectorTerm(Struct):
    """Requirements that are ANDed."""

    match_label_expressions: list[TopologySelectorLabelRequirement] = msgspec.field(default_factory=list)


class StorageClass(Struct):
    """storage.k8s.io/v1 StorageClass."""

    kind: str = msgspec.field(default_factory=lambda: "StorageClass")
    api_version: str = msgspec.field(default_factory=lambda: "storage.k8s.io/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologySelectorTerm] = msgspec.field(default_factory=list)


class PriorityClass(Struct):
    """scheduling.k8s.io/v1 PriorityClass."""

    kind: str = msgspec.field(default_factory=lambda: "PriorityClass")
    api_version: str = msgspec.field(default_factory=lambda: "scheduling.k8s.io/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    value: int
    global_default: bool = False
    description: str = ""
    preemption_policy: str | None = None


class RuntimeClass(Struct):
    """node.k8s.io/v1 RuntimeClass; only its handler is read."""

    kind: str = msgspec.field(default_factory=lambda: "RuntimeClass")
    api_version: str = msgspec.field(default_factory=lambda: "node.k8s.io/v1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    handler: str = ""
