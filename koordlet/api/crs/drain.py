"""DrainNode and DrainNodeGroup (scheduling.koordinator.sh/v1alpha1): empty a node after planning where its pods go.

Cluster scoped. Names of fields and values: spec 07 §12.1.
"""

from typing import Annotated, Final

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc, written
from koordlet.api.encoding.wire import Duration, Time
from koordlet.api.meta import LabelSelector, ObjectMeta

CORDON_TAINT: Final = "Taint"
CORDON_LABEL: Final = "Label"
WAIT_FIRST: Final = "WaitFirst"
MIGRATE_DIRECTLY: Final = "MigrateDirectly"
WAIT_FOR_CONFIRM: Final = "WaitForConfirm"
CONFIRMED: Final = "Confirmed"
REJECTED: Final = "Rejected"
ABORT_REQUESTED: Final = "Aborted"

PENDING: Final = "Pending"
RUNNING: Final = "Running"
COMPLETE: Final = "Complete"
ABORTED: Final = "Aborted"

PLANNING: Final = "Planning"
WAITING_GROUP: Final = "Waiting"
SUCCEEDED_GROUP: Final = "Succeeded"
FAILED_GROUP: Final = "Failed"

UNMIGRATABLE: Final = "Unmigratable"
WAITING: Final = "Waiting"
READY: Final = "Ready"
AVAILABLE: Final = "Available"
UNAVAILABLE: Final = "Unavailable"
MIGRATING: Final = "Migrating"
SUCCEED: Final = "Succeed"
FAILED: Final = "Failed"
POD_PHASES: Final = (UNMIGRATABLE, WAITING, READY, AVAILABLE, UNAVAILABLE, MIGRATING, SUCCEED, FAILED)

ONCE_AVAILABLE: Final = "OnceAvailable"
UNMIGRATABLE_POD: Final = "UnmigratablePodExists"
UNEXPECTED_RESERVATION: Final = "UnexpectedReservationExists"
UNAVAILABLE_RESERVATION: Final = "UnavailableReservationExists"
FAILED_JOB: Final = "FailedMigrationJobExists"
UNEXPECTED_POD: Final = "UnexpectedPodAfterCompleteExists"

_CORDON_MODES = (CORDON_TAINT, CORDON_LABEL)


class CordonPolicy(Struct):
    """How new pods are kept from the node."""

    mode: Annotated[str, doc("Taint: add a NoSchedule taint. Label: add labels.", enum=_CORDON_MODES)]
    labels: Annotated[dict[str, str], doc("Labels that mode Label adds to the node.")] = msgspec.field(
        default_factory=dict
    )


class DrainMigrationPolicy(Struct):
    """When and how pods move."""

    mode: Annotated[
        str,
        doc("WaitFirst: give pods time to end by themselves.", enum=(WAIT_FIRST, MIGRATE_DIRECTLY), default=WAIT_FIRST),
    ] = ""
    wait_duration: Annotated[Duration | None, doc("How long WaitFirst waits; default 1h.")] = None
    job_mode: Annotated[str, doc("Mode of the PodMigrationJobs; EvictDirectly reserves nothing.")] = ""


class DrainNodeSpec(Struct):
    """`spec` of a DrainNode."""

    node_name: Annotated[str, doc("The node to empty.", min_length=1)]
    ttl: Annotated[Duration | None, doc("The drain is aborted and deleted 5m after it; absent or 0: never.")] = None
    cordon_policy: Annotated[CordonPolicy | None, doc("Absent: new pods may be placed on the node.")] = None
    migration_policy: Annotated[DrainMigrationPolicy, doc("When and how pods move.")] = msgspec.field(
        default_factory=DrainMigrationPolicy
    )
    confirm_state: Annotated[
        str,
        doc(
            "Pods move only after Confirmed. Rejected and Aborted end the drain and undo its cordon.",
            enum=(WAIT_FOR_CONFIRM, CONFIRMED, REJECTED, ABORT_REQUESTED),
            default=WAIT_FOR_CONFIRM,
        ),
    ] = ""


class PodMigration(Struct):
    """One pod of the node."""

    uid: Annotated[str, doc("UID of the pod.")]
    namespace: Annotated[str, doc("Namespace of the pod.")] = ""
    pod_name: Annotated[str, doc("Name of the pod.")] = ""
    phase: Annotated[str, doc("How far it is: " + ", ".join(POD_PHASES) + ".")] = ""
    message: Annotated[str, doc("Why it cannot move, or what it waits for.")] = ""
    start_timestamp: Annotated[Time | None, doc("When the drain first listed the pod.", nullable=True)] = None
    charted_after_drain_node_confirmed: Annotated[bool, doc("Whether it was listed after confirmation.")] = False
    reservation_name: Annotated[str, doc("The Reservation for its replacement.")] = ""
    reservation_phase: Annotated[str, doc("Phase of the Reservation.")] = ""
    target_node: Annotated[str, doc("Node of the Reservation.")] = ""
    pod_migration_job_name: Annotated[str, doc("The job that moves the pod.")] = ""
    pod_migration_job_paused: Annotated[bool, doc("Whether the job is paused.")] = False
    pod_migration_job_phase: Annotated[str, doc("Phase of the job.")] = ""


class DrainCondition(Struct):
    """A condition of a drain."""

    type: Annotated[str, doc("Type of the condition.")]
    status: Annotated[str, doc("True, False or Unknown.")]
    last_transition_time: Annotated[Time | None, doc("When the status last changed.", nullable=True)] = None
    reason: Annotated[str, doc("Reason, in CamelCase.")] = ""
    message: Annotated[str, doc("What happened, for people.")] = ""


class DrainNodeStatus(Struct):
    """`status` of a DrainNode."""

    phase: Annotated[str, doc("Pending, Running, Complete or Aborted.")] = ""
    message: Annotated[str, doc("What the drain waits for, or how it ended.")] = ""
    pod_migrations: Annotated[list[PodMigration], doc("The pods of the node.")] = msgspec.field(default_factory=list)
    pod_migration_summary: Annotated[dict[str, int], doc("Number of pods by phase.")] = msgspec.field(
        default_factory=dict
    )
    conditions: Annotated[list[DrainCondition], doc("State of the drain as a whole.")] = msgspec.field(
        default_factory=list
    )

    def condition(self, condition_type: str) -> DrainCondition | None:
        """The condition of that type, or None."""
        return next((each for each in self.conditions if each.type == condition_type), None)

    def is_true(self, condition_type: str) -> bool:
        """Whether the condition is True."""
        condition = self.condition(condition_type)
        return condition is not None and condition.status == "True"


class DrainNode(Struct):
    """The drain of one node."""

    kind: str = written(lambda: "DrainNode")
    api_version: str = written(lambda: "scheduling.koordinator.sh/v1alpha1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: Annotated[DrainNodeSpec, doc("Which node to empty, and how.")]
    status: Annotated[DrainNodeStatus, doc("State of the drain.")] = msgspec.field(default_factory=DrainNodeStatus)


class DrainExecutionPolicy(Struct):
    """How many drains of the group run."""

    partition: Annotated[int | None, doc("How many drains may be confirmed in total; absent: all.", minimum=0)] = None
    paused: Annotated[bool, doc("Whether no further drain is confirmed.")] = False


class DrainTerminationPolicy(Struct):
    """When the group plans no further node."""

    max_node_count: Annotated[int | None, doc("Nodes to drain at most; absent: no limit.", minimum=0)] = None
    percentage_of_resource_reserved: Annotated[
        int | None, doc("Share of the remaining nodes' cpu and memory that stays free.", minimum=1, maximum=100)
    ] = None


class DrainNodeGroupSpec(Struct):
    """`spec` of a DrainNodeGroup."""

    node_selector: Annotated[LabelSelector, doc("The nodes that may be drained.")]
    ttl: Annotated[Duration | None, doc("The group is aborted and deleted 5m after it; absent or 0: never.")] = None
    cordon_node_policy: Annotated[CordonPolicy | None, doc("`cordonPolicy` of the drains.")] = None
    execution_policy: Annotated[DrainExecutionPolicy, doc("How many drains run.")] = msgspec.field(
        default_factory=DrainExecutionPolicy
    )
    termination_policy: Annotated[DrainTerminationPolicy, doc("When no further node is planned.")] = msgspec.field(
        default_factory=DrainTerminationPolicy
    )


class DrainNodeGroupStatus(Struct):
    """`status` of a DrainNodeGroup."""

    phase: Annotated[str, doc("Pending, Planning, Waiting, Running, Succeeded, Failed or Aborted.")] = ""
    message: Annotated[str, doc("What the group waits for, or how it ended.")] = ""
    total: Annotated[int, doc("Drains of the group.")] = 0
    unavailable: Annotated[int, doc("Drains whose pods have no room elsewhere.")] = 0
    available: Annotated[int, doc("Drains that wait for confirmation, with room for all pods.")] = 0
    running: Annotated[int, doc("Confirmed drains that are not complete.")] = 0
    succeeded: Annotated[int, doc("Complete drains.")] = 0
    failed: Annotated[int, doc("Aborted drains.")] = 0


class DrainNodeGroup(Struct):
    """The drains of several nodes, planned one after the other."""

    kind: str = written(lambda: "DrainNodeGroup")
    api_version: str = written(lambda: "scheduling.koordinator.sh/v1alpha1")
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: Annotated[DrainNodeGroupSpec, doc("Which nodes to empty, and how many.")]
    status: Annotated[DrainNodeGroupStatus, doc("State of the group.")] = msgspec.field(
        default_factory=DrainNodeGroupStatus
    )
