"""The kinds of slo.koordinator.sh: NodeMetric (re-exported) and NodeSLO.

NodeSLO is cluster scoped, named like the node, written by the manager and read by koordlet; its strategies are those of
`koordlet.api.sloconfig` (spec 01 §3.4).
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from koordlet.api.crs.nodemetric import (
    AGGREGATIONS,
    AggregatedUsage,
    CollectPolicy,
    HostApplicationMetricInfo,
    NodeAggregatePolicy,
    NodeMetric,
    NodeMetricInfo,
    NodeMetricSpec,
    NodeMetricStatus,
    NUMAUsage,
    PodMetricInfo,
    ReclaimableMetric,
    ResourceMap,
)
from koordlet.api.encoding.base import Struct
from koordlet.api.encoding.fields import doc
from koordlet.api.meta import ApiObject
from koordlet.api.sloconfig import (
    CPUBurstStrategy,
    HostApplicationSpec,
    ResourceQOSStrategy,
    ResourceThresholdStrategy,
    SystemStrategy,
)

__all__ = [
    "AGGREGATIONS",
    "AggregatedUsage",
    "CollectPolicy",
    "HostApplicationMetricInfo",
    "NUMAUsage",
    "NodeAggregatePolicy",
    "NodeMetric",
    "NodeMetricInfo",
    "NodeMetricSpec",
    "NodeMetricStatus",
    "NodeSLO",
    "NodeSLOSpec",
    "NodeSLOStatus",
    "PodMetricInfo",
    "ReclaimableMetric",
    "ResourceMap",
    "extension_values",
]


class NodeSLOSpec(Struct):
    """`spec` of a NodeSLO."""

    resource_used_threshold_with_be: Annotated[
        ResourceThresholdStrategy | None, doc("When best-effort pods are suppressed and evicted.")
    ] = msgspec.field(default=None, name="resourceUsedThresholdWithBE")
    resource_qos_strategy: Annotated[ResourceQOSStrategy | None, doc("Quality of service by QoS class.")] = (
        msgspec.field(default=None, name="resourceQOSStrategy")
    )
    cpu_burst_strategy: Annotated[CPUBurstStrategy | None, doc("How pods may exceed their cpu limits.")] = None
    system_strategy: Annotated[SystemStrategy | None, doc("Kernel parameters of the node.")] = None
    extensions: Annotated[
        dict[str, Any] | None, doc('Settings of plug-ins: {"Object": {key: value}}.', preserve=True)
    ] = None
    host_applications: Annotated[
        list[HostApplicationSpec], doc("Applications outside Kubernetes that koordlet manages.")
    ] = []


class NodeSLOStatus(Struct):
    """Empty."""


class NodeSLO(ApiObject, api_version="slo.koordinator.sh/v1alpha1"):
    """The QoS policy of a node; the object is named like the node."""

    spec: Annotated[NodeSLOSpec, doc("Strategies for the node; set by the manager.")] = msgspec.field(
        default_factory=NodeSLOSpec
    )
    status: Annotated[NodeSLOStatus, doc("Empty.")] = msgspec.field(default_factory=NodeSLOStatus)


def extension_values(extensions: Mapping[str, Any] | None) -> dict[str, Any]:
    """Key -> value of plug-ins, from `{"Object": {...}}`, the plain form, or both (spec 01 §9 A1).

    A key in both forms has the value of `Object`.
    """
    values = dict(extensions or {})
    inner = values.get("Object")
    if isinstance(inner, dict):
        del values["Object"]
        values |= inner
    return values
