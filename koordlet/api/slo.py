"""The kinds of slo.koordinator.sh: NodeMetric (re-exported) and NodeSLO.

NodeSLO is cluster scoped, named like the node, written by the manager and read by koordlet; its
strategies are those of `koordlet.api.sloconfig`. Source: spec 01 §3.4.
"""

from koordlet.api.nodemetric import (
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
    "PodMetricInfo",
    "ReclaimableMetric",
    "ResourceMap",
]
