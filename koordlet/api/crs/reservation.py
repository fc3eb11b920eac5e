"""Reservation (scheduling.koordinator.sh/v1alpha1): resources reserved for future pods.

Cluster scoped. `spec.template` is decoded as a (trimmed) pod template because the scheduler places it like a pod; its
schema preserves unknown fields (spec 01 §3.5).
"""

from typing import Annotated

import msgspec

from koordlet.api.core.pod import PodTemplateSpec, ResourceList
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc
from koordlet.api.encoding.wire import Duration, Time
from koordlet.api.meta import ApiObject, LabelSelector, ObjectReference

PENDING = "Pending"
AVAILABLE = "Available"
SUCCEEDED = "Succeeded"
WAITING = "Waiting"
FAILED = "Failed"

CONDITION_SCHEDULED = "Scheduled"
CONDITION_READY = "Ready"

ALIGNED = "Aligned"
RESTRICTED = "Restricted"


class ReservationControllerReference(Struct):
    """An owner reference that pods must have; empty members match anything."""

    api_version: Annotated[str, doc("API version of the controller.")]
    kind: Annotated[str, doc("Kind of the controller.")]
    name: Annotated[str, doc("Name of the controller.")]
    uid: Annotated[str, doc("UID of the controller.")]
    controller: Annotated[bool | None, doc("Whether the reference must be the managing controller.")] = None
    block_owner_deletion: Annotated[bool | None, doc("Ignored.")] = None
    namespace: Annotated[str, doc("Namespace of the pods.")] = ""


class ReservationOwner(Struct):
    """Pods that may consume a reservation; members are ANDed."""

    object: Annotated[ObjectReference | None, doc("The pod itself; empty members match anything.")] = None
    controller: Annotated[ReservationControllerReference | None, doc("A controller of the pod.", atomic=True)] = None
    label_selector: Annotated[LabelSelector | None, doc("Labels of the pod; absent is no constraint.")] = None


class PreAllocationPolicy(Struct):
    """How to wait for resources that other pods still use."""

    mode: Annotated[str, doc("Where candidates are searched.", enum=("Default", "Cluster"), default="Default")] = ""
    enable_multiple: Annotated[bool, doc("Whether several pods may be pre-allocated.", default=False)] = False


class ReservationTaint(Struct):
    """A taint of the reservation. NoExecute does not evict."""

    key: Annotated[str, doc("Key of the taint.")]
    value: Annotated[str, doc("Value of the taint.")] = ""
    effect: Annotated[str, doc("NoSchedule, PreferNoSchedule or NoExecute.")]
    time_added: Annotated[Time | None, doc("When a NoExecute taint was added.")] = None


class ReservationSpec(Struct):
    """`spec` of a Reservation."""

    template: Annotated[
        PodTemplateSpec,
        doc("Scheduling requirements, as a pod template; spec.nodeName pins the node.", preserve=True),
    ]
    owners: Annotated[
        list[Annotated[ReservationOwner, doc("Members are ANDed.", min_properties=1)]],
        doc("Pods that may consume the reservation; entries are ORed.", min_items=1),
    ]
    ttl: Annotated[
        Duration | None,
        doc("Time to live from creation; 0 disables expiry.", default="24h"),
    ] = None
    expires: Annotated[Time | None, doc("When the reservation expires.")] = None
    pre_allocation: Annotated[bool, doc("Reserve without checking free resources, then wait for them.")] = False
    pre_allocation_policy: Annotated[PreAllocationPolicy | None, doc("How to pre-allocate.")] = None
    allocate_once: Annotated[
        bool | None, doc("Whether only the first owner may consume it; absent means true.", default=True)
    ] = None
    allocate_policy: Annotated[
        str,
        doc(
            "Aligned: owners may use the reservation and the node together. Restricted: reserved resources "
            "come from the reservation only. Empty is Aligned.",
            enum=("Aligned", "Restricted"),
        ),
    ] = ""
    unschedulable: Annotated[bool, doc("Whether new owners are rejected.")] = False
    taints: Annotated[list[ReservationTaint], doc("Taints that owners must tolerate.")] = []


class ReservationCondition(Struct):
    """A condition of a reservation."""

    type: Annotated[str, doc("Scheduled or Ready.")] = ""
    status: Annotated[str, doc("True, False or Unknown.")] = ""
    reason: Annotated[str, doc("Scheduled, Unschedulable, Available, Succeeded or Expired.")] = ""
    message: Annotated[str, doc("What happened, for people.")] = ""
    last_probe_time: Annotated[Time | None, doc("When the condition was last checked.", nullable=True)] = None
    last_transition_time: Annotated[Time | None, doc("When the status last changed.", nullable=True)] = None


class ReservationStatus(Struct):
    """`status` of a Reservation."""

    phase: Annotated[str, doc("Pending, Available, Succeeded, Waiting or Failed.", default="Pending")] = ""
    conditions: Annotated[list[ReservationCondition], doc("Conditions of the reservation.")] = []
    current_owners: Annotated[list[ObjectReference], doc("Pods that consume it.")] = []
    node_name: Annotated[str, doc("Node of the reservation.")] = ""
    allocatable: Annotated[ResourceList, doc("Reserved resources.")] = {}
    allocated: Annotated[ResourceList, doc("Resources consumed by owners.")] = {}


class Reservation(ApiObject, api_version="scheduling.koordinator.sh/v1alpha1"):
    """Resources of a node, reserved for future pods."""

    spec: Annotated[ReservationSpec, doc("Resources to reserve, their owners, the time to live.")]
    status: Annotated[ReservationStatus, doc("State of the reservation.")] = msgspec.field(
        default_factory=ReservationStatus
    )
