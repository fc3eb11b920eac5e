"""PodMigrationJob (scheduling.koordinator.sh/v1alpha1): moves one pod, optionally reserving resources for it first.

Cluster scoped. The reservation template is plain JSON, so that unknown fields are preserved in the Reservation that the
controller creates from it (spec 01 §3.7).
"""

from typing import Annotated, Any

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc
from koordlet.api.encoding.wire import Duration, Time
from koordlet.api.meta import ApiObject, DeleteOptions, ObjectReference

MODE_RESERVATION_FIRST = "ReservationFirst"
MODE_EVICT_DIRECTLY = "EvictDirectly"


class PreemptionOptions(Struct):
    """Empty; its presence allows preemption."""


class ReservationOptions(Struct):
    """The reservation to use, or the template to create one."""

    reservation_ref: Annotated[ObjectReference | None, doc("An existing reservation to use.")] = None
    template: Annotated[
        dict[str, Any] | None,
        doc("Metadata and spec of the Reservation to create if none is referenced.", preserve=True),
    ] = None
    preemption_options: Annotated[PreemptionOptions | None, doc("Presence allows preemption.")] = None


class PodMigrationJobSpec(Struct):
    """`spec` of a PodMigrationJob."""

    paused: Annotated[bool, doc("Whether the job is paused.")] = False
    ttl: Annotated[Duration | None, doc("Timeout of the job; absent or 0: none.")] = None
    mode: Annotated[str, doc("ReservationFirst or EvictDirectly; empty: the descheduler's default.")] = ""
    pod_ref: Annotated[ObjectReference, doc("The pod to migrate.")]
    reservation_options: Annotated[ReservationOptions | None, doc("The reservation for the new pod.")] = None
    delete_options: Annotated[DeleteOptions | None, doc("Options of the eviction.")] = None


class PodMigrationJobCondition(Struct):
    """A condition of a job."""

    type: Annotated[
        str,
        doc(
            "ReservationCreated, ReservationScheduled, Preemption, Eviction, PodScheduled, PodBoundReservation, "
            "BoundPodReady or ReservationBound."
        ),
    ]
    status: Annotated[str, doc("True, False or Unknown.")]
    last_probe_time: Annotated[Time | None, doc("When the condition was last checked.", nullable=True)] = None
    last_transition_time: Annotated[Time | None, doc("When the status last changed.", nullable=True)] = None
    reason: Annotated[str, doc("Reason of the last transition, in CamelCase.")] = ""
    message: Annotated[str, doc("What happened, for people.")] = ""


class PreemptedReservation(Struct):
    """A reservation made for a preempted pod."""

    namespace: Annotated[str, doc("Namespace of the reservation.")] = ""
    name: Annotated[str, doc("Name of the reservation.")] = ""
    node_name: Annotated[str, doc("Node of the reservation.")] = ""
    phase: Annotated[str, doc("Phase of the reservation.")] = ""
    preempted_pod_ref: Annotated[ObjectReference | None, doc("The preempted pod.")] = None
    pods_ref: Annotated[list[ObjectReference], doc("Pods that consume the reservation.")] = []


class PodMigrationJobStatus(Struct):
    """`status` of a PodMigrationJob."""

    phase: Annotated[str, doc("Pending, Running, Succeeded, Failed or Aborted.")] = ""
    status: Annotated[str, doc("Type of the last condition, or Complete.")] = ""
    reason: Annotated[str, doc("Reason of the phase, in CamelCase.")] = ""
    message: Annotated[str, doc("What happened, for people.")] = ""
    conditions: Annotated[list[PodMigrationJobCondition], doc("Steps of the migration.")] = []
    node_name: Annotated[str, doc("Node that the pod moves to.")] = ""
    pod_ref: Annotated[ObjectReference | None, doc("The new pod.")] = None
    preempted_pods_ref: Annotated[list[ObjectReference], doc("Pods that were preempted.")] = []
    preempted_pods_reservation: Annotated[
        list[PreemptedReservation], doc("Reservations made for the preempted pods.")
    ] = []

    def condition(self, condition_type: str) -> PodMigrationJobCondition | None:
        """The condition of that type, or None."""
        return next((c for c in self.conditions if c.type == condition_type), None)


class PodMigrationJob(ApiObject, api_version="scheduling.koordinator.sh/v1alpha1"):
    """The migration of one pod."""

    spec: Annotated[PodMigrationJobSpec, doc("What to migrate and how.")]
    status: Annotated[PodMigrationJobStatus, doc("State of the migration.")] = msgspec.field(
        default_factory=PodMigrationJobStatus
    )
