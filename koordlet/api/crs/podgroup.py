"""PodGroup (scheduling.sigs.k8s.io/v1alpha1): pods that are scheduled together or not at all.

Namespaced, no status subresource. Pods join by label; further gang parameters are annotations (spec 01 §3.10, §5.6).
"""

from typing import Annotated

import msgspec

from koordlet.api.core.pod import ResourceList
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import Int32, doc
from koordlet.api.encoding.wire import Time
from koordlet.api.meta import ApiObject


class PodGroupSpec(Struct):
    """`spec` of a PodGroup."""

    min_member: Annotated[Int32, doc("Pods that must be placed together.")] = 0
    min_resources: Annotated[ResourceList, doc("Minimum resources of the group.")] = {}
    schedule_timeout_seconds: Annotated[Int32 | None, doc("How long placed members wait for the others.")] = None


class PodGroupStatus(Struct):
    """`status` of a PodGroup."""

    phase: Annotated[
        str, doc("Pending, Running, PreScheduling, Scheduling, Scheduled, Unknown, Finished or Failed.")
    ] = ""
    occupied_by: Annotated[str, doc("Owner of the pods.")] = ""
    scheduled: Annotated[Int32, doc("Pods placed.")] = 0
    running: Annotated[Int32, doc("Pods running.")] = 0
    succeeded: Annotated[Int32, doc("Pods that succeeded.")] = 0
    failed: Annotated[Int32, doc("Pods that failed.")] = 0
    schedule_start_time: Annotated[Time | None, doc("When scheduling began.")] = None


class PodGroup(ApiObject, api_version="scheduling.sigs.k8s.io/v1alpha1"):
    """A gang of pods."""

    spec: Annotated[PodGroupSpec, doc("Requirements of the group.")] = msgspec.field(default_factory=PodGroupSpec)
    status: Annotated[PodGroupStatus, doc("State of the group.")] = msgspec.field(default_factory=PodGroupStatus)
