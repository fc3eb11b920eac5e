"""What NodeMetric.spec is computed from a strategy (spec 04 §4), and what a broken configuration leaves of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from control.manager.nodemetric import collect_policy, predict_policy, spec_of
from koordlet.api import names
from koordlet.api.encoding.wire import convert, to_builtins
from koordlet.api.sloconfig import colocation
from koordlet.api.sloconfig.colocation import ColocationConfig
from tests.waiting import until

DEFAULT = {
    "aggregateDurationSeconds": 300,
    "reportIntervalSeconds": 60,
    "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
    "nodeMemoryCollectPolicy": "usageWithoutPageCache",
}
OWN = {
    "enable": True,
    "metricAggregateDurationSeconds": 120,
    "metricReportIntervalSeconds": 30,
    "metricAggregatePolicy": {"durations": ["2m", "90s"]},
    "metricMemoryCollectPolicy": "usageWithPageCache",
}
POLICY = {
    "aggregateDurationSeconds": 120,
    "reportIntervalSeconds": 30,
    "nodeAggregatePolicy": {"durations": ["2m0s", "1m30s"]},
    "nodeMemoryCollectPolicy": "usageWithPageCache",
}
STRATEGIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing message": ({}, DEFAULT),
    "enabled": ({"enable": True}, DEFAULT),
    "its own": (OWN, POLICY),
    "its own, switched off": ({**OWN, "enable": False}, DEFAULT),
    "its own, out of bounds elsewhere": ({**OWN, "degradeTimeMinutes": -1}, DEFAULT),
    "one field of its own": (
        {"enable": True, "metricReportIntervalSeconds": 90},
        {**DEFAULT, "reportIntervalSeconds": 90},
    ),
}


@pytest.mark.parametrize(("section", "policy"), STRATEGIES.values(), ids=STRATEGIES)
def test_the_collect_policy(section: dict[str, Any], policy: dict[str, Any]) -> None:
    merged = colocation.merge(convert(section, ColocationConfig))
    assert to_builtins(collect_policy(colocation.for_node(merged, {}, {}))) == policy


PREDICT = {"resourceDiffThresholdPercent": 0, "coldStartPeriodSeconds": 600}
PREDICTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing message": ({"enable": True}, {}),
    "nothing in it": ({"enable": True, "metricPredictPolicy": {}}, {}),
    "both": ({"enable": True, "metricPredictPolicy": PREDICT}, {"predictPolicy": PREDICT}),
    "switched off": ({"enable": False, "metricPredictPolicy": PREDICT}, {}),
    "out of bounds": ({"enable": True, "metricPredictPolicy": {**PREDICT, "coldStartPeriodSeconds": -1}}, {}),
}


@pytest.mark.parametrize(("section", "policy"), PREDICTIONS.values(), ids=PREDICTIONS)
def test_the_predict_policy(section: dict[str, Any], policy: dict[str, Any]) -> None:
    strategy = colocation.for_node(colocation.merge(convert(section, ColocationConfig)), {}, {})
    assert spec_of(collect_policy(strategy), predict_policy(strategy)) == {"metricCollectPolicy": DEFAULT, **policy}


def test_a_nodes_annotation_changes_one_field_of_the_predict_policy() -> None:
    merged = colocation.merge(convert({"enable": True, "metricPredictPolicy": PREDICT}, ColocationConfig))
    own = {"metricPredictPolicy": {"resourceDiffThresholdPercent": 20}}
    strategy = colocation.for_node(merged, {}, {names.ANNOTATION_COLOCATION_STRATEGY: json.dumps(own)})
    assert to_builtins(predict_policy(strategy)) == {**PREDICT, "resourceDiffThresholdPercent": 20}


async def test_the_predict_policy_is_written_and_removed(cluster: Any, manager: Any) -> None:
    await cluster.config({"colocation-config": json.dumps({**OWN, "metricPredictPolicy": PREDICT})}, first=True)
    await cluster.nodes("n1")
    await manager()

    async def spec_is(expected: dict[str, Any]) -> bool:
        return bool(await cluster.spec("nodemetrics", "n1") == expected)

    await until(lambda: spec_is({"metricCollectPolicy": POLICY, "predictPolicy": PREDICT}))
    await cluster.config({"colocation-config": json.dumps({**OWN, "metricPredictPolicy": {}})})
    await until(lambda: spec_is({"metricCollectPolicy": POLICY}))


async def test_an_invalid_configuration_keeps_existing_specs(cluster: Any, manager: Any) -> None:
    """With the error state on, an existing NodeMetric is not changed; a new one gets the last good policy."""
    await cluster.config({"colocation-config": json.dumps(OWN)}, first=True)
    await cluster.nodes("n1")
    running = await manager()

    async def policy(name: str) -> Any:
        spec = await cluster.spec("nodemetrics", name)
        return spec and spec["metricCollectPolicy"]

    async def has(name: str, expected: Any) -> bool:
        return bool(await policy(name) == expected)

    await until(lambda: has("n1", POLICY))
    await cluster.config({"colocation-config": "{"})
    await until(lambda: running.manager.context.config.current.colocation_error)
    mine = {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 45}}}
    path = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics/n1"
    await cluster.admin.raw("PATCH", path, body=mine, content_type="application/merge-patch+json")
    await cluster.nodes("n2")
    await until(lambda: has("n2", POLICY))
    assert (await policy("n1"))["reportIntervalSeconds"] == 45
    await cluster.config({"colocation-config": json.dumps(OWN)})
    await until(lambda: has("n1", POLICY))
