"""NodeResourcesFitPlus, ScarceResourceAvoidance and SchedulingHint hold to spec 05 §13."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from control.scheduler.config.args import (
    NodeResourcesFitPlusArgs,
    ResourcesType,
    ScarceResourceAvoidanceArgs,
    SchedulingHintArgs,
)
from control.scheduler.framework.plugin import CycleState
from control.scheduler.framework.status import Code
from control.scheduler.plugins.noderesourcesfitplus import NodeResourcesFitPlus
from control.scheduler.plugins.scarceresourceavoidance import ScarceResourceAvoidance
from control.scheduler.plugins.schedulinghint import SchedulingHintPlugin
from koordlet.api.core import Pod
from tests.control.scheduler.build import Cluster, node, pod

GPU = "nvidia.com__gpu"
FIT = NodeResourcesFitPlusArgs(
    resources={
        "nvidia.com/gpu": ResourcesType("MostAllocated", 2),
        "cpu": ResourcesType("LeastAllocated", 1),
        "memory": ResourcesType("LeastAllocated", 1),
    }
)


def scores(plugin: Any, cluster: Cluster, pod: Pod) -> list[int]:
    points: list[int] = plugin.score(CycleState(), cluster.info(pod), cluster.table.all).tolist()
    rows = np.arange(cluster.table.size)[::-1]
    assert plugin.score(CycleState(), cluster.info(pod), rows).tolist() == points[::-1]
    return points


def gpus(count: int, **more: Any) -> dict[str, Any]:
    return {GPU: str(count), **more}


def test_fit_plus_as_verified() -> None:
    cluster = Cluster(*(node(name, "96", "512Gi", **gpus(8)) for name in ("used", "empty")))
    cluster.put(pod(cpu="16", memory="32Gi", on="used", **gpus(4)))
    plugin = NodeResourcesFitPlus(FIT, cluster.handle)
    assert scores(plugin, cluster, pod(cpu="16", memory="32Gi", **gpus(2))) == [75, 56]
    assert scores(plugin, cluster, pod(cpu=None, memory=None)) == [100, 100]
    assert scores(NodeResourcesFitPlus(None, cluster.handle), cluster, pod()) == [100, 100]


def test_a_container_without_requests_counts_with_the_default() -> None:
    cluster = Cluster(node("n", "1", "100Gi"))
    args = NodeResourcesFitPlusArgs(resources={"cpu": ResourcesType("LeastAllocated", 1)})
    containers = [
        {"name": "main", "image": "i", "resources": {"requests": {"cpu": "500m"}}},
        {"name": "helper", "image": "i"},
    ]
    candidate = pod(spec={"containers": containers})
    assert scores(NodeResourcesFitPlus(args, cluster.handle), cluster, candidate) == [40]  # 500 m + 100 m of 1 core


def test_overhead_is_milli_cores_and_sidecars_count() -> None:
    cluster = Cluster(node("n", "10", "100Gi"))
    args = NodeResourcesFitPlusArgs(resources={"cpu": ResourcesType("LeastAllocated", 1)})
    sidecar = {"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    init = {"name": "i", "image": "i", "resources": {"requests": {"cpu": "3"}}}
    candidate = pod(cpu="1", spec={"overhead": {"cpu": "1"}, "initContainers": [sidecar, init]})
    assert scores(NodeResourcesFitPlus(args, cluster.handle), cluster, candidate) == [50]  # 3 + 1 + 1 of 10


def test_scarce_resources_as_verified() -> None:
    extra: dict[str, Any] = {"example.com__xx": "1"}
    cluster = Cluster(node("gpu", **gpus(8), **extra), node("plain"), node("none", **gpus(0), **extra))
    plugin = ScarceResourceAvoidance(ScarceResourceAvoidanceArgs(resources=["nvidia.com/gpu"]), cluster.handle)
    # `pods` and amounts of 0, as of node `none`, do not count as resources of a node
    assert scores(plugin, cluster, pod()) == [50, 100, 100]
    assert scores(plugin, cluster, pod(**gpus(1))) == [100, 100, 100]
    cluster.table.remove_node("gpu")
    cluster.table.set_node(node("other"))
    assert scores(plugin, cluster, pod()) == [100, 100, 100]
    cluster.table.set_node(node("late", **gpus(1)))
    assert scores(plugin, cluster, pod()) == [100, 100, 100, 0]
    cluster.use(profile="another")
    assert scores(ScarceResourceAvoidance(None, cluster.handle), cluster, pod()) == [100] * 4


def hinted(text: str, key: str = "internal.scheduling.koordinator.sh/scheduling-hint") -> Pod:
    return pod(annotations={key: text})


def hinting(**args: Any) -> tuple[Cluster, SchedulingHintPlugin]:
    cluster = Cluster(*(node(f"n{number}") for number in range(1, 5)))
    return cluster, SchedulingHintPlugin(SchedulingHintArgs(**args), cluster.handle)


@pytest.mark.parametrize(
    ("subject", "rows"),
    [
        (hinted('{"nodeNames":["n3","n1","unknown"]}'), [0, 2]),
        (hinted('{"nodeNames":["n2"]}', "scheduling.koordinator.sh/scheduling-hint"), [1]),
        (hinted('{"nodeNames":["unknown"]}'), []),
        (hinted('{"nodeNames":[]}'), None),
        (hinted(""), None),
        (pod(), None),
    ],
    ids=["three", "old key", "unknown", "no names", "empty", "no hint"],
)
def test_a_hint_names_the_only_nodes(subject: Pod, rows: list[int] | None) -> None:
    cluster, plugin = hinting()
    state, info = CycleState(), cluster.info(subject)
    assert plugin.before_pre_filter(state, info).ok
    result = plugin.pre_filter(state, info)
    assert result.status.skipped is (rows is None)
    assert (result.rows.tolist() if result.rows is not None else None) == rows


def test_a_malformed_hint_is_an_error() -> None:
    cluster, plugin = hinting()
    status = plugin.before_pre_filter(CycleState(), cluster.info(hinted("{")))
    assert status.code is Code.ERROR
    assert "scheduling-hint" in status.message


@pytest.mark.parametrize(
    ("limit", "allowed", "expected"),
    [(100, None, [2, 0]), (100, [0, 1], [0]), (1, None, [2]), (1, [0, 1], [])],
    ids=["all", "within the result of PreFilter", "counted", "none"],
)
def test_preferred_nodes(limit: int, allowed: list[int] | None, expected: list[int]) -> None:
    cluster, plugin = hinting(max_hint_nodes=limit)
    state, info = CycleState(), cluster.info(hinted('{"preferredNodeNames":["n3","n1"],"extensions":{"X":{"a":1}}}'))
    plugin.before_pre_filter(state, info)
    rows = None if allowed is None else np.array(allowed, np.intp)
    assert list(plugin.prefer_nodes(state, info, rows)) == expected
    assert state.data["SchedulingHint"].extensions == {"X": {"a": 1}}
    assert list(plugin.prefer_nodes(CycleState(), info, rows)) == []
