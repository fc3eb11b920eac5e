"""PodMigrationJob (scheduling.koordinator.sh/v1alpha1): move one pod, reserving its new place first.

Cluster scoped. The reservation template is kept as plain JSON: the controller creates a Reservation
from it and must not lose fields that it does not know. Source: spec 01 §3.7.
"""

from typing import Annotated, Any

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc, written
from koordlet.api.encoding.wire import Duration, Time
from koordlet.api.meta import DeleteOptions, ObjectMeta, ObjectReference

MODE_RESERVATION_FIRST = "ReservationFirst"
MODE_EVICT_DIRECTLY = "EvictDirectly"


class PreemptionOptions(Struct):
    """Empty; its presence allows preemption."""


class ReservationOptions(Struct):
    """Which reservation to use, or how to make one."""

    reservation_ref: Annotated[ObjectReference | None, doc("An existing reservation to use.")] = None
    template: Annotated[
        dict[str, Any] | None,
        doc("Metadata and spec of the Reservation to create when none is given.", preserve=True),
    ] = None
    preemption_options: Annotated[PreemptionOptions | None, doc("Presence allows preemption.")] = None


class PodMigrationJobSpec(Struct):
    """`spec` of a PodMigrationJob."""

    paused: Annotated[bool, doc("Whether the job waits.")] = False
    ttl: Annotated[Duration | None, doc("Time to finish; absent or 0 is no timeout.")] = None
    mode: Annotated[str, doc("ReservationFirst or EvictDirectly; empty takes the descheduler's default.")] = ""
    pod_ref: Annotated[ObjectReference, doc("The pod to migrate.")]
    reservation_options: Annotated[ReservationOptions | None, doc("The reservation of the new place.")] = None
    delete_options: Annotated[DeleteOptions | None, doc("Options handed to the eviction.")] = None


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
    pods_ref: Annotated[list[ObjectReference], doc("Pods that consume the reservation.")] = msgspec.field(
        default_factory=list
    )


class PodMigrationJobStatus(Struct):
    """`status` of a PodMigrationJob."""

    phase: Annotated[str, doc("Pending, Running, Succeeded, Failed or Aborted.")] = ""
    status: Annotated[str, doc("Type of the last condition, or Complete.")] = ""
    reason: Annotated[str, doc("Why the job stands where it stands, in CamelCase.")] = ""
    message: Annotated[str, doc("What happened, for people.")] = ""
    conditions: Annotated[list[PodMigrationJobCondition], doc("Steps of the migration.")] = msgspec.field(
        default_factory=list
    )
    node_name: Annotated[str, doc("Node that the pod moves to.")] = ""
    pod_ref: Annotated[ObjectReference | None, doc("The new pod.")] = None
    preempted_pods_ref: Annotated[list[ObjectReference], doc("Pods that were preempted.")] = msgspec.field(
        default_factory=list
    )
    preempted_pods_reservation: Annotated[
        list[PreemptedReservation], doc("Reservations made for the preempted pods.")
    ] = msgspec.field(default_factory=list)

    def condition(self, type_: str) -> PodMigrationJobCondition | None:
        """The condition of that type, or None."""
        return next((c for c in self.conditions if c.type == type_), None)


class PodMigrationJob(Struct):
    """The migration of one pod."""

    kind: str = written(lambda: "PodMigrationJob")
    api_version: str = written(lambda: "scheduling.koordinator.sh/v1alpha1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: Annotated[PodMigrationJobSpec, doc("What to migrate and how.")]
    status: Annotated[PodMigrationJobStatus, doc("Where the migration stands.")] = msgspec.field(
        default_factory=PodMigrationJobStatus
    )
