"""Node annotations and labels (spec 01 §5.3, §5.10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from koordlet.api import names
from koordlet.api.annotations._base import Annotation, DefaultAnnotation, Map, boolean
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import written
from koordlet.api.encoding.gosyntax import parse_decimal
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Duration, WireError, encode, format_ratio

BIND_NONE: Final = "None"
BIND_FULL_PCPUS_ONLY: Final = "FullPCPUsOnly"
BIND_SPREAD_BY_PCPUS: Final = "SpreadByPCPUs"
NUMA_MOST_ALLOCATED: Final = "MostAllocated"
NUMA_LEAST_ALLOCATED: Final = "LeastAllocated"

RATIO_DIFFERENCE: Final = 0.01
"""Normalization ratios that differ by no more than this count as equal."""


class NodeReservation(Frozen):
    """Resources reserved on a node for its system. `koordlet.api.resources` converts it to amounts."""

    resources: dict[str, Quantity] = {}
    reserved_cpus: str = msgspec.field(default="", name="reservedCPUs")
    apply_policy: str = ""


class SystemQOSResource(Frozen):
    """CPUs for pods of class SYSTEM."""

    cpuset: str = ""
    cpuset_exclusive: bool | None = None

    @property
    def exclusive(self) -> bool:
        """Whether other pods must not use these CPUs; the default."""
        return self.cpuset_exclusive is not False


class OriginAllocatable(Frozen):
    """Batch allocatable before subtracting third-party allocations."""

    resources: dict[str, Quantity] = {}


class ThirdPartyAllocation(Frozen):
    """Resources that one third party (for example YARN) uses on the node."""

    name: str = written(str)
    priority: str = written(str)
    resources: dict[str, Quantity] = {}


class ThirdPartyAllocations(Frozen):
    """Resources that all third parties use."""

    allocations: list[ThirdPartyAllocation] = []

    def total(self, priority_class: str) -> dict[str, Quantity]:
        """The sum of a priority class."""
        total: dict[str, Quantity] = {}
        for allocation in self.allocations:
            if allocation.priority == priority_class:
                for name, amount in allocation.resources.items():
                    total[name] = total[name] + amount if name in total else amount
        return total


class AggregatedUsageThresholds(Frozen):
    """Thresholds against a percentile instead of the last average."""

    usage_thresholds: dict[str, int] = {}
    usage_aggregation_type: str = ""
    usage_aggregated_duration: Duration | None = None


class UsageThresholds(Frozen):
    """Percent of capacity by resource above which no more pods are scheduled to a node."""

    usage_thresholds: dict[str, int] = {}
    prod_usage_thresholds: dict[str, int] = {}
    aggregated_usage: AggregatedUsageThresholds | None = None


RESERVATION: Final[Annotation[NodeReservation]] = Annotation(names.ANNOTATION_NODE_RESERVATION, NodeReservation)
RAW_ALLOCATABLE: Final[Annotation[dict[str, Quantity]]] = Annotation(
    names.ANNOTATION_RAW_ALLOCATABLE, dict[str, Quantity]
)
ORIGIN_ALLOCATABLE: Final[Annotation[OriginAllocatable]] = Annotation(
    names.ANNOTATION_ORIGIN_EXTENDED_ALLOCATABLE, OriginAllocatable
)
THIRD_PARTY: Final[DefaultAnnotation[ThirdPartyAllocations]] = DefaultAnnotation(
    names.ANNOTATION_THIRD_PARTY_ALLOCATIONS, ThirdPartyAllocations, ThirdPartyAllocations
)
_SYSTEM_QOS: Final[DefaultAnnotation[SystemQOSResource]] = DefaultAnnotation(
    names.ANNOTATION_SYSTEM_QOS_RESOURCE, SystemQOSResource, SystemQOSResource
)
_THRESHOLDS: Final[Annotation[UsageThresholds]] = Annotation(names.ANNOTATION_USAGE_THRESHOLDS, UsageThresholds)
_AMPLIFICATION: Final[Annotation[dict[str, float]]] = Annotation(
    names.ANNOTATION_RESOURCE_AMPLIFICATION_RATIO, dict[str, float]
)


def system_qos_resource(annotations: Map | None) -> SystemQOSResource | None:
    """CPUs of class SYSTEM: None without annotations, an empty value without the key. Raises WireError."""
    return None if annotations is None else _SYSTEM_QOS.get(annotations)


def usage_thresholds(annotations: Map) -> UsageThresholds | None:
    """The node's own thresholds, None when missing. Raises WireError; callers then use the plug-in's arguments.

    `aggregatedUsage` without both thresholds and type is dropped.
    """
    thresholds = _THRESHOLDS.get(annotations)
    if thresholds is None or thresholds.aggregated_usage is None:
        return thresholds
    aggregated = thresholds.aggregated_usage
    if aggregated.usage_thresholds and aggregated.usage_aggregation_type:
        return thresholds
    return msgspec.structs.replace(thresholds, aggregated_usage=None)


def cpu_bind_policy(labels: Map, kubelet_policy: str, kubelet_options: Mapping[str, str]) -> str:
    """The CPU bind policy of a node: by its label, or by the kubelet's static policy with full-pcpus-only."""
    label = labels.get(names.LABEL_CPU_BIND_POLICY, "")
    static = kubelet_policy == "static" and kubelet_options.get("full-pcpus-only") == names.TRUE
    if label == BIND_FULL_PCPUS_ONLY or static:
        return BIND_FULL_PCPUS_ONLY
    return BIND_SPREAD_BY_PCPUS if label == BIND_SPREAD_BY_PCPUS else BIND_NONE


def numa_topology_policy(labels: Map, reported: str) -> str:
    """The node's NUMA policy: its label, or the policy that NodeResourceTopology reports."""
    return labels.get(names.LABEL_NUMA_TOPOLOGY_POLICY, "") or reported


def normalization_enabled(labels: Map) -> bool | None:
    """The label that overrides the strategy, None when missing. Raises WireError."""
    return boolean(labels, names.LABEL_CPU_NORMALIZATION_ENABLED)


def normalization_ratio(annotations: Map) -> float | None:
    """The node's cpu normalization ratio, None when unset. Raises WireError when it is not a number above 0."""
    text = annotations.get(names.ANNOTATION_CPU_NORMALIZATION_RATIO)
    if text is None:
        return None
    try:
        ratio = parse_decimal(text)
        if ratio <= 0:
            raise ValueError(text)
    except ValueError as error:
        where = f"annotation {names.ANNOTATION_CPU_NORMALIZATION_RATIO}"
        raise WireError(f"{text!r} is not a ratio above 0", where=where) from error
    return ratio


def amplification_ratios(annotations: Map) -> dict[str, float] | None:
    """Ratios by resource, None when missing. Raises WireError."""
    return _AMPLIFICATION.get(annotations)


def amplification_text(ratios: Mapping[str, float]) -> str:
    """The annotation: sorted, two decimals, unquoted (`{"cpu":1.50,"memory":1.20}`)."""
    pairs = (f"{encode(name).decode()}:{format_ratio(ratio)}" for name, ratio in sorted(ratios.items()))
    return f"{{{','.join(pairs)}}}"
