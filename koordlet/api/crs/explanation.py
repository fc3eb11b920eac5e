"""ScheduleExplanation (scheduling.koordinator.sh/v1alpha1): why a pod, job or gang cannot be scheduled.

Namespaced. A user creates the object; koord-scheduler writes its status (spec 01 §3.13).
"""

from typing import Annotated, Any

import msgspec

from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc
from koordlet.api.encoding.wire import Duration, Time
from koordlet.api.meta import ApiObject


class ScheduleExplanationSpec(Struct):
    """`spec` of a ScheduleExplanation."""

    question_object_key: Annotated[str, doc("The object to explain: namespace/name, a job key or a gang group id.")] = (
        ""
    )
    question_object_template: Annotated[
        dict[str, Any] | None, doc("Template of an object that does not exist yet; not used.", preserve=True)
    ] = None
    ttl: Annotated[Duration | None, doc("Time to keep the explanation; 0: unlimited.", default="24h")] = None


class SchedulingResult(Struct):
    """A pod and a node that fits it."""

    namespace: Annotated[str, doc("Namespace of the pod.")] = ""
    name: Annotated[str, doc("Name of the pod.")] = ""
    uid: Annotated[str, doc("UID of the pod.")] = ""
    node_name: Annotated[str, doc("Node that fits.")] = ""


class NodeFailedDetail(Struct):
    """Nodes that one plugin rejected for one reason."""

    failed_plugin: Annotated[str, doc("Plugin that rejected the nodes.")] = ""
    reason: Annotated[str, doc("Reason of the rejection.")] = ""
    preempt_might_help: Annotated[bool, doc("Whether preemption may help.")] = False
    failed_nodes: Annotated[list[str], doc("Nodes, ascending.")] = []


class Explanation(Struct):
    """Whether the object is schedulable, and if not, why."""

    schedulable: Annotated[bool, doc("Whether everything fits.")] = False
    failed_message: Annotated[str, doc("Summary of the failure.")] = ""
    feasible_scheduling_result: Annotated[list[SchedulingResult], doc("Pods that fit.")] = []
    node_failed_details: Annotated[list[NodeFailedDetail], doc("Rejections by plugin and reason.")] = []


class PossibleVictim(Struct):
    """A pod that preemption would evict."""

    namespace: Annotated[str, doc("Namespace of the pod.")] = ""
    name: Annotated[str, doc("Name of the pod.")] = ""
    uid: Annotated[str, doc("UID of the pod.")] = ""
    is_nominated_pod: Annotated[bool, doc("Whether the pod is only nominated to the node.")] = False


class NodePossibleVictim(Struct):
    """Victims on one node."""

    node_name: Annotated[str, doc("The node.")] = ""
    possible_victims: Annotated[list[PossibleVictim], doc("Pods that would be evicted.")] = []


class DetailedExplanation(Struct):
    """The explanation for one topology domain."""

    topology_domain: Annotated[str, doc("Topology domain that was tried.")] = ""
    schedulable: Annotated[bool, doc("Whether everything fits.")] = False
    schedulable_after_preemption: Annotated[bool, doc("Whether everything fits after preemption.")] = False
    failed_message: Annotated[str, doc("Summary of the failure.")] = ""
    schedule_explanation: Annotated[Explanation | None, doc("Without preemption.")] = None
    node_possible_victims: Annotated[list[NodePossibleVictim], doc("Pods that preemption would evict.")] = []
    preempt_explanation: Annotated[Explanation | None, doc("With preemption.")] = None


class ScheduleExplanationStatus(Struct):
    """`status` of a ScheduleExplanation."""

    schedulable: Annotated[bool, doc("Whether everything fits.")] = False
    schedulable_after_preemption: Annotated[bool, doc("Whether everything fits after preemption.")] = False
    failed_message: Annotated[str, doc("Summary of the failure.")] = ""
    last_update_time: Annotated[Time | None, doc("Time of the last update.")] = None
    detailed_explanation: Annotated[list[DetailedExplanation], doc("By topology domain.")] = []


class ScheduleExplanation(ApiObject, api_version="scheduling.koordinator.sh/v1alpha1"):
    """Why a pod, job or gang cannot be scheduled."""

    spec: Annotated[ScheduleExplanationSpec, doc("The object to explain.")] = msgspec.field(
        default_factory=ScheduleExplanationSpec
    )
    status: Annotated[ScheduleExplanationStatus, doc("The explanation.")] = msgspec.field(
        default_factory=ScheduleExplanationStatus
    )
