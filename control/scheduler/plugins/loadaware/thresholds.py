"""Usage thresholds above which a node rejects pods, by arguments or by its annotation (spec 05 §8.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from control.scheduler.config.args import LoadAwareSchedulingArgs
from control.scheduler.plugins.loadaware.estimate import capacity
from control.scheduler.plugins.loadaware.vectors import Tracked, Vector
from koordlet.api.annotations import node as node_annotations
from koordlet.api.core import Node
from koordlet.api.encoding.wire import WireError

NO_BOUND: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Thresholds:
    """In percent by resource; 0 is disabled. `prod` None: prod pods are treated like all others.

    `window`: the usage that `usual` is compared with. None: the average; else (percentile, nanoseconds).
    """

    usual: Vector
    window: tuple[str, int] | None
    prod: Vector | None


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """The capacity of a node and the largest usage within the thresholds."""

    capacity: Vector
    usual: Vector | None
    """None: all thresholds are disabled."""
    window: tuple[str, int] | None
    prod: Vector | None


def from_args(args: LoadAwareSchedulingArgs, tracked: Tracked) -> Thresholds:
    usual, window, aggregated = args.usage_thresholds, None, args.aggregated
    if aggregated is not None and aggregated.usage_thresholds and aggregated.usage_aggregation_type:
        usual = aggregated.usage_thresholds
        window = (aggregated.usage_aggregation_type, aggregated.usage_aggregated_duration.nanoseconds)
    return Thresholds(tracked.numbers(usual), window, _some(tracked.numbers(args.prod_usage_thresholds)))


def of_node(node: Node, general: Thresholds, tracked: Tracked) -> Thresholds:
    """The thresholds of a node: each group of its annotation replaces the general one."""
    annotations = node.metadata.annotations
    if not annotations:
        return general
    try:
        own = node_annotations.usage_thresholds(annotations)
    except WireError:
        return general  # malformed annotations are ignored (spec 05 §8.5)
    if own is None:
        return general
    usual, window, prod = general.usual, general.window, general.prod
    if own.usage_thresholds and window is None:
        usual = tracked.numbers(own.usage_thresholds)
    if own.aggregated_usage is not None:
        aggregated = own.aggregated_usage
        duration = aggregated.usage_aggregated_duration
        usual = tracked.numbers(aggregated.usage_thresholds)
        window = (aggregated.usage_aggregation_type, duration.nanoseconds if duration is not None else 0)
    if own.prod_usage_thresholds:
        prod = _some(tracked.numbers(own.prod_usage_thresholds))
    return Thresholds(usual, window, prod)


def node_limits(node: Node, general: Thresholds, tracked: Tracked) -> NodeLimits:
    thresholds, size = of_node(node, general, tracked), capacity(node, tracked)
    usual = bounds(size, thresholds.usual) if any(thresholds.usual) else None
    return NodeLimits(
        size, usual, thresholds.window, bounds(size, thresholds.prod) if thresholds.prod is not None else None
    )


def bounds(size: Vector, percents: Vector) -> Vector:
    """The largest usage whose percentage, rounded half up, is not above the threshold."""
    return tuple(
        (total * (2 * percent + 1) + 199) // 200 - 1 if percent and total else NO_BOUND
        for total, percent in zip(size, percents, strict=True)
    )


def _some(percents: Vector) -> Vector | None:
    return percents if any(percents) else None
