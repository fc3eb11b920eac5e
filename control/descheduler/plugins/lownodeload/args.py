"""LowNodeLoadArgs (spec 07 §2.3), and the pools that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from control.component.errors import invalid
from control.descheduler.config.selectors import selector_errors
from control.descheduler.plugins.selectionargs import SelectionArgs
from koordlet.api.encoding.times import Duration
from koordlet.api.meta import LabelSelector

DEFAULT_POOL: Final = "__default_node_pool__"
DEFAULT_ABNORMALITIES: Final = 5
DEFAULT_NORMALITIES: Final = 3
DEFAULT_TIMEOUT: Final = Duration("1m")
Percentages = dict[str, float]
"""Resource -> percent of the node's raw allocatable."""


class AnomalyCondition(msgspec.Struct, rename="camel"):
    """How often a node must be over its thresholds before pods are evicted; 0 stands for the default."""

    timeout: Duration = Duration("0s")
    consecutive_abnormalities: int = 0
    consecutive_normalities: int = 0

    def completed(self, timeout: Duration, abnormalities: int, normalities: int) -> AnomalyCondition:
        return AnomalyCondition(
            self.timeout if self.timeout.nanoseconds else timeout,
            self.consecutive_abnormalities or abnormalities,
            self.consecutive_normalities or normalities,
        )

    def errors(self, path: str) -> list[str]:
        return [
            invalid(f"{path}.{name}", count, "must be greater than 0")
            for name, count in (
                ("consecutiveAbnormalities", self.consecutive_abnormalities),
                ("consecutiveNormalities", self.consecutive_normalities),
            )
            if count <= 0
        ]


class NodePoolArgs(msgspec.Struct, rename="camel"):
    """A pool of nodes with thresholds of its own; what is missing is taken from the top level."""

    name: str = ""
    node_selector: LabelSelector | None = None
    use_deviation_thresholds: bool = False
    high_thresholds: Percentages | None = None
    low_thresholds: Percentages | None = None
    prod_high_thresholds: Percentages | None = None
    prod_low_thresholds: Percentages | None = None
    resource_weights: dict[str, int] | None = None
    anomaly_condition: AnomalyCondition | None = None


class LowNodeLoadArgs(SelectionArgs):
    """Arguments of LowNodeLoad."""

    number_of_nodes: int = 0
    node_metric_expiration_seconds: int = 180
    use_deviation_thresholds: bool = False
    high_thresholds: Percentages = msgspec.field(default_factory=dict)
    low_thresholds: Percentages = msgspec.field(default_factory=dict)
    prod_high_thresholds: Percentages = msgspec.field(default_factory=dict)
    prod_low_thresholds: Percentages = msgspec.field(default_factory=dict)
    resource_weights: dict[str, int] = msgspec.field(default_factory=dict)
    anomaly_condition: AnomalyCondition = msgspec.field(default_factory=AnomalyCondition)
    detector_cache_timeout: Duration = Duration("5m")
    node_pools: list[NodePoolArgs] = msgspec.field(default_factory=list)

    def check(self, path: str) -> list[str]:
        self.anomaly_condition = self.anomaly_condition.completed(
            DEFAULT_TIMEOUT, DEFAULT_ABNORMALITIES, DEFAULT_NORMALITIES
        )
        self.resource_weights = completed_weights(self.resource_weights, self.low_thresholds, self.high_thresholds)
        errors: list[str] = []
        if self.number_of_nodes < 0:
            errors.append(invalid(f"{path}.numberOfNodes", self.number_of_nodes, "must be greater than or equal to 0"))
        if self.node_metric_expiration_seconds <= 0:
            seconds = self.node_metric_expiration_seconds
            errors.append(invalid(f"{path}.nodeMetricExpirationSeconds", seconds, "must be greater than 0"))
        errors += super().check(path)
        first, *further = self.pools()
        errors += first.condition.errors(f"{path}.anomalyCondition")
        errors += _threshold_errors(first, path)
        for index, pool in enumerate(further):
            where = f"{path}.nodePools[{index}]"
            errors += selector_errors(pool.selector, f"{where}.nodeSelector")
            errors += pool.condition.errors(f"{where}.anomalyCondition")
            errors += _threshold_errors(pool, where)
        return errors

    def pools(self) -> list[NodePool]:
        """The pools in the order in which they are balanced: the default pool first."""
        default = NodePool(
            DEFAULT_POOL,
            self.node_selector,
            self.use_deviation_thresholds,
            self.low_thresholds,
            self.high_thresholds,
            self.prod_low_thresholds,
            self.prod_high_thresholds,
            self.resource_weights,
            self.anomaly_condition,
        )
        return [default, *(_pool(pool, default) for pool in self.node_pools)]


@dataclass(frozen=True)
class NodePool:
    """One pool with everything resolved."""

    name: str
    selector: LabelSelector | None
    deviation: bool
    """Whether thresholds are distances from the average usage of the pool."""
    low: Percentages
    high: Percentages
    prod_low: Percentages
    prod_high: Percentages
    weights: Mapping[str, int]
    condition: AnomalyCondition


def _pool(own: NodePoolArgs, default: NodePool) -> NodePool:
    low = default.low if own.low_thresholds is None else own.low_thresholds
    high = default.high if own.high_thresholds is None else own.high_thresholds
    condition = default.condition
    if own.anomaly_condition is not None:
        condition = own.anomaly_condition.completed(
            DEFAULT_TIMEOUT, condition.consecutive_abnormalities, condition.consecutive_normalities
        )
    return NodePool(
        own.name,
        own.node_selector,
        own.use_deviation_thresholds,
        low,
        high,
        default.prod_low if own.prod_low_thresholds is None else own.prod_low_thresholds,
        default.prod_high if own.prod_high_thresholds is None else own.prod_high_thresholds,
        completed_weights(default.weights if own.resource_weights is None else own.resource_weights, low, high),
        condition,
    )


def completed_weights(weights: Mapping[str, int], *thresholds: Percentages) -> dict[str, int]:
    """Weights of all resources with thresholds and of cpu and memory; missing ones and those up to 0 are 1."""
    names = {"cpu", "memory", *weights, *(name for percents in thresholds for name in percents)}
    return {name: weights[name] if weights.get(name, 0) > 0 else 1 for name in sorted(names)}


def _threshold_errors(pool: NodePool, path: str) -> list[str]:
    maps = {
        "lowThresholds": pool.low,
        "highThresholds": pool.high,
        "prodLowThresholds": pool.prod_low,
        "prodHighThresholds": pool.prod_high,
    }
    errors = [
        invalid(f"{path}.{name}[{resource}]", percent, "must be a number greater than or equal to 0")
        for name, percents in maps.items()
        for resource, percent in percents.items()
        if not 0 <= percent < float("inf")
    ]
    for lesser, greater in (
        ("lowThresholds", "highThresholds"),
        ("prodHighThresholds", "highThresholds"),
        ("prodLowThresholds", "prodHighThresholds"),
    ):
        errors += [
            invalid(f"{path}.{lesser}[{resource}]", percent, f"must not be greater than {greater}[{resource}]")
            for resource, percent in maps[lesser].items()
            if resource in maps[greater] and percent > maps[greater][resource]
        ]
    return errors
