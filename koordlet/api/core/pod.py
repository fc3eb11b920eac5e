"""Pods, trimmed to the fields that are read here (core/v1).

The same struct is used for pods of the API server and of the kubelet's `/pods`. It is small because a scheduler holds
100,000 of them: probes, environment sources, security contexts and image pull details are dropped on decoding. A
decoded pod is never written back; every write is a patch.
"""

from typing import Any

import msgspec

from koordlet.api.core.selectors import Affinity, Toleration, TopologySpreadConstraint
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ApiObject, ObjectMeta

ResourceList = dict[str, Quantity]
"""Resource name -> amount."""


class ResourceRequirements(Struct):
    """Requests and limits of a container."""

    limits: ResourceList = {}
    requests: ResourceList = {}


class EnvVar(Struct):
    """A literal environment variable; one with `valueFrom` has an empty value here."""

    name: str
    value: str = ""


class ContainerPort(Struct):
    """A port that a container listens on."""

    name: str = ""
    host_port: int = 0
    container_port: int
    protocol: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")


class VolumeMount(Struct):
    """The mount of a volume in a container."""

    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""


class VolumeDevice(Struct):
    """A raw block volume of a container."""

    name: str
    device_path: str


class Container(Struct):
    """A container or an init container; `restart_policy` Always makes the latter a sidecar."""

    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    ports: list[ContainerPort] = []
    env: list[EnvVar] = []
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)
    restart_policy: str | None = None
    volume_mounts: list[VolumeMount] = []
    volume_devices: list[VolumeDevice] = []

    @property
    def is_sidecar(self) -> bool:
        """Whether this init container keeps running with the regular containers."""
        return self.restart_policy == "Always"


class PersistentVolumeClaimVolume(Struct):
    """A volume backed by a claim."""

    claim_name: str
    read_only: bool = False


class HostPathVolume(Struct):
    """A directory of the node."""

    path: str
    type: str | None = None


class EmptyDirVolume(Struct):
    """Scratch space on the node."""

    medium: str = ""
    size_limit: Quantity | None = None


class ConfigMapVolume(Struct):
    """A ConfigMap as files."""

    name: str = ""
    optional: bool | None = None


class SecretVolume(Struct):
    """A Secret as files."""

    secret_name: str = ""
    optional: bool | None = None


class CSIVolume(Struct):
    """An inline CSI volume."""

    driver: str
    volume_attributes: dict[str, str] = {}


class GCEPersistentDiskVolume(Struct):
    """A GCE persistent disk, referenced directly."""

    pd_name: str = ""
    read_only: bool = False


class AWSElasticBlockStoreVolume(Struct):
    """An AWS EBS volume, referenced directly."""

    volume_id: str = msgspec.field(default="", name="volumeID")


class ISCSIVolume(Struct):
    """An iSCSI disk, referenced directly."""

    iqn: str = ""
    read_only: bool = False


class RBDVolume(Struct):
    """A Ceph RBD image, referenced directly."""

    monitors: list[str] = []
    pool: str = "rbd"
    image: str = ""
    read_only: bool = False


class EphemeralVolume(Struct):
    """A claim created for the pod; its template is not read."""


class Volume(Struct):
    """A volume of a pod; at most one source is set, none for sources that are not read."""

    name: str
    host_path: HostPathVolume | None = None
    empty_dir: EmptyDirVolume | None = None
    secret: SecretVolume | None = None
    config_map: ConfigMapVolume | None = None
    persistent_volume_claim: PersistentVolumeClaimVolume | None = None
    csi: CSIVolume | None = None
    ephemeral: EphemeralVolume | None = None
    projected: dict[str, Any] | None = None
    gce_persistent_disk: GCEPersistentDiskVolume | None = None
    aws_elastic_block_store: AWSElasticBlockStoreVolume | None = None
    iscsi: ISCSIVolume | None = None
    rbd: RBDVolume | None = None

    @property
    def is_disk(self) -> bool:
        """Whether it references a disk directly, without a claim."""
        return bool(self.gce_persistent_disk or self.aws_elastic_block_store or self.iscsi or self.rbd)


class PodSchedulingGate(Struct):
    """A gate that must be removed before the pod may be scheduled."""

    name: str


class PodResourceClaim(Struct):
    """A resource claim of the pod: an existing one, or one that is made for the pod from a template."""

    name: str
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodResourceClaimStatus(Struct):
    """The claim that was made from a template; an empty name: none is needed."""

    name: str
    resource_claim_name: str = ""


class PodSpec(Struct):
    """`spec` of a pod."""

    volumes: list[Volume] = []
    init_containers: list[Container] = []
    containers: list[Container] = []
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    node_selector: dict[str, str] = {}
    service_account_name: str = ""
    node_name: str = ""
    host_network: bool = False
    host_pid: bool = msgspec.field(default=False, name="hostPID")
    hostname: str = ""
    affinity: Affinity | None = None
    scheduler_name: str = ""
    tolerations: list[Toleration] = []
    priority_class_name: str = ""
    priority: int | None = None
    runtime_class_name: str | None = None
    preemption_policy: str | None = None
    overhead: ResourceList = {}
    topology_spread_constraints: list[TopologySpreadConstraint] = []
    scheduling_gates: list[PodSchedulingGate] = []
    resource_claims: list[PodResourceClaim] = []
    resources: ResourceRequirements | None = None


class ContainerStateWaiting(Struct):
    """The container is not running yet, or is between restarts."""

    reason: str = ""
    message: str = ""


class ContainerStateRunning(Struct):
    """The container is running."""

    started_at: Time | None = None


class ContainerStateTerminated(Struct):
    """The container has terminated."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: Time | None = None
    finished_at: Time | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class ContainerState(Struct):
    """At most one member is set; none means waiting."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Struct):
    """The kubelet's status of one container. `container_id` is `<runtime>://<id>`, empty before creation."""

    name: str
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    started: bool | None = None


class PodCondition(Struct):
    """A condition of a pod."""

    type: str
    observed_generation: int = 0
    status: str
    last_probe_time: Time | None = None
    last_transition_time: Time | None = None
    reason: str = ""
    message: str = ""


class PodIP(Struct):
    """One address of a pod."""

    ip: str = ""


class PodStatus(Struct):
    """`status` of a pod."""

    phase: str = ""
    conditions: list[PodCondition] = []
    message: str = ""
    reason: str = ""
    nominated_node_name: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[PodIP] = msgspec.field(default_factory=list, name="podIPs")
    start_time: Time | None = None
    init_container_statuses: list[ContainerStatus] = []
    container_statuses: list[ContainerStatus] = []
    qos_class: str = ""
    resource_claim_statuses: list[PodResourceClaimStatus] = msgspec.field(default_factory=list)

    def condition(self, condition_type: str) -> PodCondition | None:
        """The condition of that type, or None."""
        return next((c for c in self.conditions if c.type == condition_type), None)


class Pod(ApiObject, api_version="v1"):
    """core/v1 Pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class PodTemplateSpec(Struct):
    """Metadata and spec of the pods that a workload creates."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
