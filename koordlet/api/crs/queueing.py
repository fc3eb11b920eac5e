"""Queue and QueueUnit (scheduling.x-k8s.io/v1alpha1): jobs that wait for their quota before their pods exist.

Namespaced, with status subresources (spec 05 §14). `spec.blocking`, the members of `podSets` and `status.quota` are
this project's: the design does not name them.
"""

from typing import Annotated, Final

import msgspec

from koordlet.api.core.pod import ResourceList
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import Int32, doc
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ApiObject, LabelSelector, ObjectReference

FIFO: Final = "FIFO"
PRIORITY: Final = "Priority"

ENQUEUED: Final = "Enqueued"
RESERVED: Final = "Reserved"
DEQUEUED: Final = "Dequeued"
RUNNING: Final = "Running"
TIMEOUT_BACKOFF: Final = "TimeoutBackoff"
SUCCEED: Final = "Succeed"
FAILED: Final = "Failed"
ADMITTED: Final = (RESERVED, DEQUEUED, RUNNING)
"""Phases in which a unit counts against its quota."""
ENDED: Final = (SUCCEED, FAILED)
MAX_RESOURCES: Final = 128
"""Names of resources in a unit; every pass reads all units."""

CHECK_READY: Final = "Ready"


class QueueAdmissionCheck(Struct):
    """A check of an external controller."""

    name: Annotated[str, doc("Name that the controller reports.")]
    label_selector: Annotated[LabelSelector | None, doc("Units that need the check; default: all.")] = None


class QueueSpec(Struct):
    """`spec` of a Queue."""

    queue_policy: Annotated[str, doc("Order of the units.", enum=(FIFO, PRIORITY))] = FIFO
    blocking: Annotated[bool | None, doc("Policy Priority: no unit overtakes another; default true.")] = None
    priority: Annotated[Int32 | None, doc("Queues with a higher priority come first.")] = None
    priority_class_name: Annotated[str, doc("PriorityClass of units without their own.")] = ""
    admission_checks: Annotated[list[QueueAdmissionCheck], doc("External checks before a unit starts.")] = []


class QueueItem(Struct):
    """A waiting unit."""

    name: Annotated[str, doc("Name of the QueueUnit.")]
    namespace: Annotated[str, doc("Namespace of the QueueUnit.")]
    priority: Annotated[Int32, doc("Priority of the unit.")] = 0
    position: Annotated[Int32, doc("Place in the queue, from 1.")] = 0


class QueueStatus(Struct):
    """`status` of a Queue."""

    queue_item_details: Annotated[dict[str, list[QueueItem]], doc("Waiting units: active, and in backoff.")] = {}


class Queue(ApiObject, api_version="scheduling.x-k8s.io/v1alpha1"):
    """An order in which jobs get quotas."""

    spec: Annotated[QueueSpec, doc("Order and checks.")] = msgspec.field(default_factory=QueueSpec)
    status: Annotated[QueueStatus, doc("Waiting units.")] = msgspec.field(default_factory=QueueStatus)


class QueuePodSet(Struct):
    """Equal pods of a job."""

    name: Annotated[str, doc("Name of the set.")]
    count: Annotated[Int32, doc("Number of pods.", minimum=0)] = 1
    request: Annotated[ResourceList, doc("Requests of one pod.", max_properties=MAX_RESOURCES)] = {}


class QueueUnitSpec(Struct):
    """`spec` of a QueueUnit."""

    consumer_ref: Annotated[ObjectReference | None, doc("The job.")] = None
    priority: Annotated[Int32 | None, doc("Priority; default: that of the class.")] = None
    priority_class_name: Annotated[str, doc("PriorityClass of the job.")] = ""
    queue: Annotated[str, doc("Queue in which the job waits.")] = ""
    pod_sets: Annotated[list[QueuePodSet], doc("Pods of the job: 1 to 8 sets, immutable.", max_items=8)] = []
    request: Annotated[ResourceList, doc("Requests of all pods.", max_properties=MAX_RESOURCES)] = {}


class QueueUnitCheck(Struct):
    """State of an external check."""

    name: Annotated[str, doc("Name of the check.")]
    state: Annotated[str, doc("Ready: passed. Anything else: pending.")] = ""
    message: Annotated[str, doc("Explanation of the controller.")] = ""


class QueueUnitAdmission(Struct):
    """What a pod set was admitted with."""

    name: Annotated[str, doc("Name of the pod set.")]
    replicas: Annotated[Int32, doc("Admitted pods.")] = 0
    resources: Annotated[ResourceList, doc("Requests of these pods together.")] = {}
    running: Annotated[Int32, doc("Running pods.")] = 0
    reclaim_state: Annotated[str, doc("Unused: nothing is reclaimed before a job ends.")] = ""


class QueueUnitStatus(Struct):
    """`status` of a QueueUnit."""

    phase: Annotated[str, doc("Enqueued, Reserved, Dequeued, Running, TimeoutBackoff, Succeed or Failed.")] = ""
    attempts: Annotated[Int32, doc("How often the job was not running in time.")] = 0
    message: Annotated[str, doc("Why the job waits.")] = ""
    last_update_time: Annotated[Time | None, doc("When the phase changed.")] = None
    admission_checks: Annotated[list[QueueUnitCheck], doc("States of the external checks.")] = []
    admissions: Annotated[list[QueueUnitAdmission], doc("What was admitted.")] = []
    last_allocate_time: Annotated[Time | None, doc("When the job was last admitted.")] = None
    quota: Annotated[str, doc("The ElasticQuota that admitted the job.")] = ""


class QueueUnit(ApiObject, api_version="scheduling.x-k8s.io/v1alpha1"):
    """A job in a queue."""

    spec: Annotated[QueueUnitSpec, doc("The job and its requests.")] = msgspec.field(default_factory=QueueUnitSpec)
    status: Annotated[QueueUnitStatus, doc("Progress.")] = msgspec.field(default_factory=QueueUnitStatus)
