"""`colocation-config`: how much of a node is overcommitted to batch and mid pods (spec 01 §6.4). Pure.

The strategy, its default, its bounds at run time, and the computation of one node's strategy: ConfigMap, then
annotation, then ratio labels. Used by the manager.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from koordlet.api import names
from koordlet.api.encoding.base import Frozen
from koordlet.api.encoding.fields import doc
from koordlet.api.encoding.gosyntax import parse_decimal
from koordlet.api.encoding.wire import Duration, JSONObject, WireError, decode, overlay
from koordlet.api.meta import LabelSelector
from koordlet.api.sloconfig.bounds import Bound, broken
from koordlet.api.sloconfig.merge import MergedStrategies

USAGE: Final = "usage"
REQUEST: Final = "request"
MAX_USAGE_REQUEST: Final = "maxUsageRequest"
MID_RECLAIM_STATIC: Final = "static"

USAGE_WITHOUT_PAGE_CACHE: Final = "usageWithoutPageCache"


class AggregatePolicy(Frozen):
    """The windows of reported usage percentiles."""

    durations: Annotated[list[Duration], doc("Lengths of the windows.")] = []


class PredictSettings(Frozen):
    """Copied to `spec.predictPolicy` of NodeMetric; only a proposal in Koordinator (spec 02 §11.4)."""

    resource_diff_threshold_percent: Annotated[
        int | None, doc("Change of the prediction, in percent, above which it is reported early.")
    ] = None
    cold_start_period_seconds: Annotated[
        int | None, doc("Seconds for which a new pod counts with its requests instead of a prediction.")
    ] = None


class ColocationStrategy(Frozen):
    """Co-location on one node. Percentages are whole numbers; null means the default."""

    enable: Annotated[bool | None, doc("Whether the node offers batch and mid resources.")] = None
    metric_aggregate_duration_seconds: Annotated[
        int | None, doc("Window of the average usage in NodeMetric, seconds.")
    ] = None
    metric_report_interval_seconds: Annotated[int | None, doc("Period of NodeMetric reports, seconds.")] = None
    metric_aggregate_policy: Annotated[AggregatePolicy | None, doc("Windows of the percentiles.")] = None
    metric_memory_collect_policy: Annotated[str | None, doc("Which page cache counts as memory usage.")] = None
    metric_predict_policy: Annotated[
        PredictSettings | None, doc("When a changed prediction is reported early, and the cold-start time of pods.")
    ] = None
    cpu_reclaim_threshold_percent: Annotated[
        int | None, doc("Share of the node's cpu that all pods together may use.")
    ] = None
    cpu_calculate_policy: Annotated[str | None, doc("usage or maxUsageRequest.")] = None
    memory_reclaim_threshold_percent: Annotated[
        int | None, doc("Share of the node's memory that all pods together may use.")
    ] = None
    memory_calculate_policy: Annotated[str | None, doc("usage, request or maxUsageRequest.")] = None
    degrade_time_minutes: Annotated[
        int | None, doc("Age of a NodeMetric, minutes, at which the node's batch resources are removed.")
    ] = None
    update_time_threshold_seconds: Annotated[int | None, doc("Seconds after which any difference updates a node.")] = (
        None
    )
    resource_diff_threshold: Annotated[float | None, doc("Relative change above which a node is updated.")] = None
    mid_reclaim_mode: Annotated[str | None, doc("static, or absent.")] = None
    mid_cpu_threshold_percent: Annotated[int | None, doc("Highest share of allocatable cpu for mid pods.")] = (
        msgspec.field(default=None, name="midCPUThresholdPercent")
    )
    mid_memory_threshold_percent: Annotated[int | None, doc("Highest share of allocatable memory for mid pods.")] = None
    mid_unallocated_percent: Annotated[int | None, doc("Share of unallocated resources added to mid resources.")] = None
    mid_static_cpu_reserved_percent: Annotated[int | None, doc("Share of cpu for mid pods in static mode.")] = (
        msgspec.field(default=None, name="midStaticCPUReservedPercent")
    )
    mid_static_memory_reserved_percent: Annotated[int | None, doc("Share of memory for mid pods in static mode.")] = (
        None
    )
    batch_cpu_threshold_percent: Annotated[
        int | None, doc("Highest share of the node's cpu for batch pods; may exceed 100.")
    ] = msgspec.field(default=None, name="batchCPUThresholdPercent")
    batch_memory_threshold_percent: Annotated[
        int | None, doc("Highest share of the node's memory for batch pods; may exceed 100.")
    ] = None
    extensions: Annotated[JSONObject, doc("Settings of plug-ins by name.", preserve=True)] = {}


class NodeColocationConfig(ColocationStrategy):
    """An entry of `nodeConfigs`: a selector and strategy fields."""

    name: str = ""
    node_selector: LabelSelector | None = None


class ColocationConfig(ColocationStrategy):
    """The whole document of key `colocation-config`."""

    node_configs: list[NodeColocationConfig] = []


DEFAULT: Final = ColocationStrategy(
    enable=False,
    metric_aggregate_duration_seconds=300,
    metric_report_interval_seconds=60,
    metric_aggregate_policy=AggregatePolicy(durations=[Duration("5m"), Duration("10m"), Duration("30m")]),
    metric_memory_collect_policy=USAGE_WITHOUT_PAGE_CACHE,
    cpu_reclaim_threshold_percent=60,
    cpu_calculate_policy=USAGE,
    memory_reclaim_threshold_percent=65,
    memory_calculate_policy=USAGE,
    degrade_time_minutes=15,
    update_time_threshold_seconds=300,
    resource_diff_threshold=0.1,
    mid_cpu_threshold_percent=100,
    mid_memory_threshold_percent=100,
    mid_unallocated_percent=0,
    mid_static_cpu_reserved_percent=0,
    mid_static_memory_reserved_percent=0,
)

PREDICT_BOUNDS: Final = (
    Bound("metricPredictPolicy.resourceDiffThresholdPercent", minimum=0),
    Bound("metricPredictPolicy.coldStartPeriodSeconds", minimum=0),
)
RUNTIME_BOUNDS: Final = (
    Bound("metricAggregateDurationSeconds", above=0),
    Bound("metricReportIntervalSeconds", above=0),
    *PREDICT_BOUNDS,
    Bound("cpuReclaimThresholdPercent", minimum=0),
    Bound("memoryReclaimThresholdPercent", minimum=0),
    Bound("degradeTimeMinutes", above=0),
    Bound("updateTimeThresholdSeconds", above=0),
    Bound("resourceDiffThreshold", above=0),
    Bound("midCPUThresholdPercent", minimum=0, maximum=100),
    Bound("midMemoryThresholdPercent", minimum=0, maximum=100),
    Bound("midUnallocatedPercent", minimum=0, maximum=100),
    Bound("midStaticCPUReservedPercent", minimum=0),
    Bound("midStaticMemoryReservedPercent", minimum=0),
    Bound("batchCPUThresholdPercent", minimum=0),
    Bound("batchMemoryThresholdPercent", minimum=0),
)


def problems(strategy: ColocationStrategy | None) -> dict[str, str]:
    """Field -> reason for invalid fields; empty for a valid strategy. Null fields are valid."""
    if strategy is None:
        return {"": "there is no strategy"}
    reasons = broken(strategy, RUNTIME_BOUNDS)
    if strategy.metric_memory_collect_policy == "":
        reasons["metricMemoryCollectPolicy"] = "must not be empty"
    return reasons


def merge(config: ColocationConfig) -> MergedStrategies[ColocationStrategy]:
    """The cluster strategy merged over the defaults, and each entry over it; an invalid entry becomes the cluster's."""
    merged = MergedStrategies.build(DEFAULT, config, config.node_configs)
    return merged.map_nodes(lambda strategy: merged.cluster if problems(strategy) else strategy)


def percent_of_ratio(text: str, *, strict_parity: bool = False) -> int | None:
    """Percent of a ratio label (`0.8` is 80), rounded to the nearest; None when it is negative or not a number.

    Koordinator, and `strict_parity`, multiply binary floats and truncate (`0.29` is 28).
    """
    try:
        ratio = parse_decimal(text)
    except ValueError:
        return None
    if ratio < 0:
        return None
    return int(float(ratio) * 100) if strict_parity else math.floor(ratio * 100 + 0.5)


_RATIO_LABELS: Final = {
    names.LABEL_CPU_RECLAIM_RATIO: "cpu_reclaim_threshold_percent",
    names.LABEL_MEMORY_RECLAIM_RATIO: "memory_reclaim_threshold_percent",
    names.LABEL_MID_STATIC_CPU_RESERVED_RATIO: "mid_static_cpu_reserved_percent",
    names.LABEL_MID_STATIC_MEMORY_RESERVED_RATIO: "mid_static_memory_reserved_percent",
}


def _from_annotation(annotations: Mapping[str, str]) -> ColocationStrategy | None:
    text = annotations.get(names.ANNOTATION_COLOCATION_STRATEGY)
    if text is None:
        return None
    try:
        return decode(text, ColocationStrategy)
    except WireError:
        return None  # spec 01 §6.3: a malformed annotation is ignored


def for_node(
    merged: MergedStrategies[ColocationStrategy],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    strict_parity: bool = False,
) -> ColocationStrategy:
    """The strategy of a node: cluster or first matching entry, then the annotation, then the ratio labels.

    An annotation that is not valid JSON and labels that are not ratios are ignored (spec 01 §6.3). An annotation with
    values out of bounds is ignored too, but Koordinator, and `strict_parity`, apply it.
    """
    strategy = merged.for_node(labels)
    from_annotation = _from_annotation(annotations)
    if from_annotation is not None and (strict_parity or not problems(from_annotation)):
        strategy = overlay(strategy, from_annotation)
    ratios = {}
    for label, field in _RATIO_LABELS.items():
        percent = percent_of_ratio(labels.get(label, ""), strict_parity=strict_parity)
        if percent is not None:
            ratios[field] = percent
    return msgspec.structs.replace(strategy, **ratios) if ratios else strategy


def metric_settings(strategy: ColocationStrategy) -> ColocationStrategy:
    """The source of NodeMetric.spec's fields: the strategy if it is valid and enabled, else the default."""
    return strategy if strategy.enable and not problems(strategy) else DEFAULT
