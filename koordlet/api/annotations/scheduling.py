"""Pod annotations and labels between users, the scheduler and the descheduler (spec 01 §5.2)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from koordlet.api import names
from koordlet.api.annotations._base import (
    PER_CONTAINER,
    SETTING,
    Annotation,
    DefaultAnnotation,
    Map,
    TextLimits,
    integer,
)
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import written
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import JSONObject, Time, WireError
from koordlet.api.meta import DeleteOptions

BIND_DEFAULT: Final = "Default"
BIND_FULL_PCPUS: Final = "FullPCPUs"
BIND_SPREAD_BY_PCPUS: Final = "SpreadByPCPUs"
BIND_CONSTRAINED_BURST: Final = "ConstrainedBurst"
EXCLUSIVE_NONE: Final = "None"
EXCLUSIVE_PCPU_LEVEL: Final = "PCPULevel"
EXCLUSIVE_NUMA_NODE_LEVEL: Final = "NUMANodeLevel"
NEVER_EVICT_COST: Final = 2**31 - 1
PREEMPT_NEVER: Final = "Never"
PREEMPT_LOWER_PRIORITY: Final = "PreemptLowerPriority"

_COST = re.compile(r"0|-?[1-9][0-9]{0,10}", re.ASCII)


class ResourceSpec(Frozen):
    """A pod's requirements on its CPUs."""

    required_cpu_bind_policy: str = msgspec.field(default="", name="requiredCPUBindPolicy")
    preferred_cpu_bind_policy: str = msgspec.field(default="", name="preferredCPUBindPolicy")
    preferred_cpu_exclusive_policy: str = msgspec.field(default="", name="preferredCPUExclusivePolicy")


class NUMANodeResource(Frozen):
    """Resources of one NUMA node allocated to a pod."""

    node: int = written(int)
    resources: dict[str, Quantity] = {}


class ResourceStatus(Frozen):
    """CPUs and NUMA resources that the scheduler allocated to a pod."""

    cpuset: str = ""
    numa_node_resources: list[NUMANodeResource] = []


class NUMATopologySpec(Frozen):
    """A pod's requirements on NUMA placement."""

    numa_topology_policy: str = ""
    single_numa_node_exclusive: str = msgspec.field(default="", name="singleNUMANodeExclusive")


class SchedulingHint(Frozen):
    """A third party's hint where to place a pod."""

    node_names: list[str] = []
    preferred_node_names: list[str] = []
    extensions: JSONObject = {}


class SoftEviction(Frozen):
    """A request of the descheduler to another controller to remove the pod."""

    timestamp: Time | None = None
    delete_options: DeleteOptions | None = None
    initiator: str = ""
    reason: str = ""


RESOURCE_SPEC: Final[DefaultAnnotation[ResourceSpec]] = DefaultAnnotation(
    names.ANNOTATION_RESOURCE_SPEC, ResourceSpec, ResourceSpec, limits=SETTING
)
RESOURCE_STATUS: Final[DefaultAnnotation[ResourceStatus]] = DefaultAnnotation(
    names.ANNOTATION_RESOURCE_STATUS, ResourceStatus, ResourceStatus, limits=PER_CONTAINER
)
NUMA_TOPOLOGY_SPEC: Final[DefaultAnnotation[NUMATopologySpec]] = DefaultAnnotation(
    names.ANNOTATION_NUMA_TOPOLOGY_SPEC, NUMATopologySpec, NUMATopologySpec, limits=SETTING
)
SOFT_EVICTION: Final[Annotation[SoftEviction]] = Annotation(
    names.ANNOTATION_SOFT_EVICTION, SoftEviction, limits=SETTING
)
_SCALING_FACTORS: Final[Annotation[dict[str, int]]] = Annotation(
    names.ANNOTATION_LOAD_ESTIMATED_SCALING_FACTORS, dict[str, int], limits=SETTING
)
HINT_LIMITS: Final = TextLimits(chars=64 << 10, items=1024)
"""A hint names nodes."""
_HINTS: Final = tuple(
    Annotation[SchedulingHint](key, SchedulingHint, limits=HINT_LIMITS)
    for key in (names.ANNOTATION_SCHEDULING_HINT, names.ANNOTATION_SCHEDULING_HINT_OLD)
)


def scheduling_hint(annotations: Map) -> SchedulingHint | None:
    """The hint, from the new key if it exists, else from the old one. An empty string counts as missing.

    Raises WireError.
    """
    for annotation in _HINTS:
        if annotations.get(annotation.key):
            return annotation.get(annotations)
    return None


def eviction_cost(annotations: Map) -> int:
    """The cost of evicting the pod for the descheduler, 0 when missing; NEVER_EVICT_COST forbids it.

    Raises WireError for a value that is not an int32 without plus sign and leading zeros; callers then use 0.
    """
    key = names.ANNOTATION_EVICTION_COST
    text = annotations.get(key)
    if text is not None and not _COST.fullmatch(text):
        raise WireError(f"{text!r} is not an int32 in plain notation", where=key)
    return integer(annotations, key, bits=32) or 0


def load_scaling_factors(annotations: Map) -> dict[str, int] | None:
    """Percent by resource that scales requests to the estimated load; None when missing or malformed."""
    try:
        return _SCALING_FACTORS.get(annotations)
    except WireError:
        return None


def load_estimated_seconds(annotations: Map) -> tuple[int | None, int | None]:
    """How long the estimate is used: (seconds after scheduling, seconds after initialisation); None: unset."""

    def seconds(key: str) -> int | None:
        try:
            return integer(annotations, key)
        except WireError:
            return None

    return (
        seconds(names.ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED),
        seconds(names.ANNOTATION_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED),
    )


def preemption_policy(labels: Map) -> str:
    """The effective policy with feature gate PreemptionPolicyTransformer: a valid label, else `Never`."""
    policy = labels.get(names.LABEL_PREEMPTION_POLICY, "")
    return policy if policy in (PREEMPT_NEVER, PREEMPT_LOWER_PRIORITY) else PREEMPT_NEVER


def is_preemptible(labels: Map) -> bool:
    """Whether the pod may be a victim of reservation and gang preemption."""
    return labels.get(names.LABEL_DISABLE_PREEMPTIBLE) != names.TRUE


def quota_preemptible(labels: Map) -> bool:
    """Whether the pod counts as preemptible for its quota."""
    return labels.get(names.LABEL_QUOTA_PREEMPTIBLE) != "false"


def effective_scheduler(labels: Map, scheduler_name: str) -> str:
    """The scheduler of a pod: the label takes precedence if it exists, even if it is empty."""
    return labels.get(names.LABEL_SCHEDULER_NAME, scheduler_name)
