"""Writes NodeMetric.spec: which aggregates each koordlet computes and how often it reports them (spec 04 §4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from control.manager.context import ManagerContext
from control.manager.metrics import FAILED, SUCCEEDED, ManagerMetrics
from control.manager.nodeobjects import NodeObjectController
from koordlet.api import names
from koordlet.api.core import Node
from koordlet.api.crs.nodemetric import CollectPolicy, NodeAggregatePolicy, NodeMetric, NodeMetricSpec, PredictPolicy
from koordlet.api.encoding import wire
from koordlet.api.meta import ObjectMeta
from koordlet.api.sloconfig import colocation
from koordlet.api.sloconfig.colocation import ColocationStrategy

PARSE = "getNodeMetricCollectPolicy"


def collect_policy(strategy: ColocationStrategy) -> CollectPolicy:
    """The four metric fields of a valid, enabled strategy; the defaults for any other strategy, never empty."""
    settings = colocation.metric_settings(strategy)
    windows = settings.metric_aggregate_policy
    return CollectPolicy(
        aggregate_duration_seconds=settings.metric_aggregate_duration_seconds,
        report_interval_seconds=settings.metric_report_interval_seconds,
        node_aggregate_policy=NodeAggregatePolicy(durations=list(windows.durations)) if windows is not None else None,
        node_memory_collect_policy=settings.metric_memory_collect_policy or "",
    )


def predict_policy(strategy: ColocationStrategy) -> PredictPolicy | None:
    """The prediction settings of a valid, enabled strategy; None: koordlet uses its defaults."""
    policy = colocation.metric_settings(strategy).metric_predict_policy
    if policy is None:
        return None
    return PredictPolicy(
        resource_diff_threshold_percent=policy.resource_diff_threshold_percent,
        cold_start_period_seconds=policy.cold_start_period_seconds,
    )


def spec_of(collect: CollectPolicy | None, predict: PredictPolicy | None) -> dict[str, Any]:
    """Both policies as JSON objects; an empty policy is omitted."""
    policies = {"metricCollectPolicy": collect, "predictPolicy": predict}
    written = {name: wire.to_builtins(policy) for name, policy in policies.items() if policy is not None}
    return {name: policy for name, policy in written.items() if policy}


class NodeMetricController(NodeObjectController[NodeMetric]):
    """See the module docstring. Owns `metricCollectPolicy` and `predictPolicy`."""

    name = "nodemetric"
    kind = NodeMetric
    annotations = (names.ANNOTATION_COLOCATION_STRATEGY,)

    def __init__(self, context: ManagerContext) -> None:
        metrics = ManagerMetrics.of(context.internal)
        super().__init__(context, metrics.node_metric)
        self._parsed = metrics.node_metric_parse

    def desired(self, node: Node, existing: NodeMetric | None) -> Mapping[str, Any] | None:
        config = self.context.config
        strategy = config.strategy(node)
        if strategy is None:
            return None  # no valid configuration was read yet; the first one queues every node
        if existing is not None and config.current.colocation_error:
            self._parsed.labels(FAILED, PARSE).inc()
            return self.owned(existing)
        usable = bool(strategy.enable) and not colocation.problems(strategy)
        self._parsed.labels(SUCCEEDED if usable else FAILED, PARSE).inc()
        return spec_of(collect_policy(strategy), predict_policy(strategy))

    def owned(self, existing: NodeMetric) -> Mapping[str, Any]:
        return spec_of(existing.spec.metric_collect_policy, existing.spec.predict_policy)

    def new(self, name: str, spec: Mapping[str, Any]) -> NodeMetric:
        return NodeMetric(metadata=ObjectMeta(name=name), spec=wire.convert(spec, NodeMetricSpec))
