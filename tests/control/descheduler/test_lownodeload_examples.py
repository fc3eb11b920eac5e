"""LowNodeLoad: the worked examples of spec 07 §5 and §6, bad NodeMetrics, protected pods."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control.component.reading import Reader
from control.descheduler.framework.order import eviction_key, node_score, usage_score
from control.descheduler.plugins.lownodeload.anomaly import AnomalyDetector, AnomalyDetectors, AnomalyRule
from control.descheduler.plugins.lownodeload.args import LowNodeLoadArgs
from control.descheduler.plugins.lownodeload.plugin import LowNodeLoad
from tests.control.descheduler.world import World

GIB = 1 << 30
ONCE = {"anomalyCondition": {"consecutiveAbnormalities": 1}}


def fill(world: World, node: str, evictable: int, protected: int = 0, **more: Any) -> None:
    """Pods of 400m on a node, each using what it requests; those with names in `px` may not be evicted."""
    names = [f"{node}-{number}" for number in range(evictable)] + [f"{node}-p{number}" for number in range(protected)]
    for name in names:
        world.pod(name, "400m", None, on=node, **more)
    world.evictor.protected |= {name for name in names if "-p" in name}
    world.load(node, {name: {"cpu": "400m", "memory": "0"} for name in names})


def test_example_1_node_dimension() -> None:
    world = World()
    world.node("n1", "4", "3k", 9)
    world.node("n2", "4", "3k", 10)
    world.node("n3", "4", "3k", 10, unschedulable=True)
    fill(world, "n1", 5, 3)
    fill(world, "n2", 1)
    fill(world, "n3", 0)
    plugin = world.plugin(
        LowNodeLoad, {"lowThresholds": {"cpu": 30, "pods": 30}, "highThresholds": {"cpu": 50, "pods": 50}, **ONCE}
    )
    assert len(world.balance(plugin)) == 4
    assert world.reasons[0] == (
        "node is overutilized, node cpu usage(80.00%)>threshold(50.00%), node pods usage(88.89%)>threshold(50.00%)"
    )
    assert world.reasons[3] == "node is overutilized, node pods usage(55.56%)>threshold(50.00%)"


def test_example_2_both_dimensions() -> None:
    world = World()
    for name in ("n1", "n2", "n3"):
        world.node(name, "4", "3k", 20)
    prod = {"priority": 9500}
    fill(world, "n1", 7, 3, **prod)
    fill(world, "n2", 1, **prod)
    fill(world, "n3", 6, **prod)
    plugin = world.plugin(
        LowNodeLoad,
        {
            "lowThresholds": {"cpu": 30, "pods": 50},
            "highThresholds": {"cpu": 60, "pods": 80},
            "prodLowThresholds": {"cpu": 20, "pods": 30},
            "prodHighThresholds": {"cpu": 30, "pods": 50},
            **ONCE,
        },
    )
    evicted = world.balance(plugin)
    assert [name.partition("-")[0] for name in evicted] == ["n1"] * 4 + ["n3"]
    assert world.reasons[4] == "node is overutilized, prod cpu usage(60.00%)>threshold(30.00%)"


def test_example_3_deviation_of_prod_usage() -> None:
    world = World()
    for name in ("n1", "n2", "n3"):
        world.node(name, "4", "3k", 20)
    for name, evictable, protected in (("n1", 5, 3), ("n2", 1, 0), ("n3", 2, 0)):
        fill(world, name, evictable, protected, priority=9500)
    plugin = world.plugin(
        LowNodeLoad,
        {
            "useDeviationThresholds": True,
            "lowThresholds": {"cpu": 0, "pods": 0},
            "highThresholds": {"cpu": 100, "pods": 100},
            "prodLowThresholds": {"cpu": 10, "pods": 10},
            "prodHighThresholds": {"cpu": 10, "pods": 10},
            **ONCE,
        },
    )
    assert len(world.balance(plugin)) == 3
    assert {name.partition("-")[0] for name in world.evicted} == {"n1"}


def test_the_reason_of_the_specification() -> None:
    world = World()
    world.node("n1", "96", pods=10)
    world.node("n2", "96", pods=10)
    world.pod("a", "1", None, on="n1")
    world.load("n1", {"a": {"cpu": "16"}}, {"cpu": "48"})
    world.load("n2")
    world.balance(world.plugin(LowNodeLoad, {"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 50}, **ONCE}))
    assert world.reasons == ["node is overutilized, node cpu usage(66.67%)>threshold(50.00%)"]


def two_nodes(world: World, **more: Any) -> None:
    """A hot node with pod `a` on it and an idle one."""
    world.node("hot", "4")
    world.node("idle", "4")
    world.pod("a", "1", "1Gi", on="hot", **more)
    world.load("hot", {"a": {"cpu": "3500m"}})
    world.load("idle")


HALF = {"lowThresholds": {"cpu": 30}, "highThresholds": {"cpu": 95 / 2}, **ONCE}


def test_a_pod_moves_only_if_it_fits_below_the_high_threshold_of_a_target() -> None:
    world = World()
    two_nodes(world)
    assert world.balance(world.plugin(LowNodeLoad, HALF)) == []  # 3500m are more than 47.5 percent of 4 cores
    assert world.balance(world.plugin(LowNodeLoad, {**HALF, "nodeFit": False})) == ["a"]


@pytest.mark.parametrize("node", ["hot", "idle"])
@pytest.mark.parametrize("report", ["missing", "stale", "without-time", "without-usage"])
def test_a_node_without_a_fresh_report_is_neither_source_nor_target(node: str, report: str) -> None:
    world = World()
    two_nodes(world)
    world.node("other", "4")
    world.load("other", None, {"cpu": "1500m"})  # neither hot nor idle
    plugin = world.plugin(LowNodeLoad, {**HALF, "nodeFit": False})
    usage = {"a": {"cpu": "3500m"}} if node == "hot" else {}
    match report:
        case "missing":
            world.state.remove_load(node)
        case "stale":
            world.load(node, usage, age_s=180)
        case "without-time":
            world.load(node, usage, age_s=None)
        case "without-usage":
            world.load(node, usage, info=False)
    assert world.balance(plugin) == []
    world.load(node, usage, age_s=179)
    assert world.balance(plugin) == ["a"]


@pytest.mark.parametrize(
    ("args", "evicted"),
    [
        ({}, True),
        ({"paused": True}, False),
        ({"numberOfNodes": 1}, False),
        ({"evictableNamespaces": {"exclude": ["default"]}}, False),
        ({"evictableNamespaces": {"include": ["default"]}}, True),
        ({"podSelectors": [{"name": "x", "selector": {"matchLabels": {"app": "x"}}}]}, False),
        ({"podSelectors": [{"name": "x", "selector": {"matchLabels": {"app": "a"}}}]}, True),
        ({"podSelectors": [{"name": "x"}]}, True),
        ({"nodeSelector": {"matchLabels": {"pool": "other"}}}, False),
        ({"highThresholds": {"cpu": 47.5, "memory": 1}}, True),  # memory has no low threshold: no effect
        ({"lowThresholds": {"cpu": 30, "memory": 0}}, True),  # no high threshold for memory: 100 percent
    ],
)
def test_arguments(args: dict[str, Any], evicted: bool) -> None:
    world = World()
    two_nodes(world, labels={"app": "a"})
    plugin = world.plugin(LowNodeLoad, {**HALF, "nodeFit": False, **args})
    assert world.balance(plugin) == (["a"] if evicted else [])


def test_a_dry_run_of_the_plugin_reports_and_accounts_but_evicts_nothing() -> None:
    world = World()
    two_nodes(world)
    assert world.balance(world.plugin(LowNodeLoad, {**HALF, "nodeFit": False, "dryRun": True})) == []
    ((plan,),) = [world.planned]
    assert (plan.pod, plan.dry_run, plan.reason) == (
        "default/a",
        True,
        "node is overutilized, node cpu usage(87.50%)>threshold(47.50%)",
    )


def test_a_failed_eviction_counts_for_nothing_and_the_next_pod_is_tried() -> None:
    world = World()
    two_nodes(world)
    world.pod("b", "1", "1Gi", on="hot")
    world.load("hot", {"a": {"cpu": "900m"}, "b": {"cpu": "900m"}}, {"cpu": "1"})
    world.evictor.failing = {"a"}
    assert world.balance(world.plugin(LowNodeLoad, HALF)) == ["b"]


def test_pools_have_their_own_thresholds_and_a_node_is_a_source_of_one_pool() -> None:
    world = World()
    for name in ("x1", "x2", "y1", "y2"):
        world.node(name, "4", labels={"pool": name[0]})
        world.load(name)
    for node in ("x1", "y1"):
        world.pod(f"{node}-a", "100m", None, on=node)
        world.load(node, {f"{node}-a": {"cpu": "1"}}, {"cpu": "1500m"})  # 62.5 percent
    args = {
        "nodeSelector": {"matchLabels": {"pool": "x"}},
        "lowThresholds": {"cpu": 10},
        "highThresholds": {"cpu": 70},
        **ONCE,
        "nodePools": [
            {"name": "y", "nodeSelector": {"matchLabels": {"pool": "y"}}, "highThresholds": {"cpu": 50}},
            {"name": "rest", "highThresholds": {"cpu": 60}},
        ],
    }
    plugin = world.plugin(LowNodeLoad, args)
    # y1 leaves as a source of pool y; pool `rest` has all other nodes, so x1 is over 60 percent there
    assert world.balance(plugin) == ["y1-a", "x1-a"]


def test_anomaly_timeline_of_the_specification() -> None:
    """Over-used from the first of six detections in a row; after the timeout six are needed again."""
    rule = AnomalyRule(5, 3, 60.0)
    detector = AnomalyDetector()
    results = [detector.mark(True, rule, now) for now in range(10, 190, 10)]
    assert results == [False] * 5 + [True] * 7 + [False] * 5 + [True]


def test_the_detector_is_reset_by_normal_marks_and_forgotten_after_a_while() -> None:
    rule = AnomalyRule(2, 1, 60.0)
    detector = AnomalyDetector()
    assert [detector.mark(True, rule, 0) for _ in range(3)] == [False, False, True]
    assert [detector.mark(False, rule, 0) for _ in range(2)] == [True, False]
    detectors = AnomalyDetectors(100.0)
    assert [detectors.detect(["n"], rule, now) for now in (0, 90, 191)] == [set(), set(), set()]
    assert [detectors.detect(["n"], rule, now) for now in (200, 210)] == [set(), {"n"}]
    detectors.reset(["n", "unknown"])
    detectors.mark_normal(["unknown"], rule, 210)
    assert detectors.detect(["n"], rule, 220) == set()


def test_detection_precedes_eviction_in_the_plugin() -> None:
    world = World()
    two_nodes(world)
    args = {**HALF, "nodeFit": False, "anomalyCondition": {"consecutiveAbnormalities": 2}}
    plugin = world.plugin(LowNodeLoad, args)
    evicted = []
    for _ in range(3):
        evicted.append(world.balance(plugin))
        asyncio.run(world.clock.advance(10))
    assert evicted == [[], [], ["a"]]


def test_usage_order_of_the_specification() -> None:
    excess, weights = {"cpu": 4000, "memory": 4 * GIB}, {"cpu": 1, "memory": 2}
    usages = {
        name: {"cpu": cores * 1000, "memory": gib * GIB}
        for name, cores, gib in (("p1", 2, 5), ("p2", 3, 4), ("p3", 4, 3), ("p4", 5, 2))
    }
    scores = {name: usage_score(usage, excess, weights) for name, usage in usages.items()}
    assert {name: round(score, 3) for name, score in scores.items()} == {
        "p1": 1.367,
        "p2": 1.583,
        "p3": 1.167,
        "p4": 0.933,
    }
    world = World()
    pods = [world.pod(name, on="n1") for name in ("p4", "p3", "p2", "p1", "p0")]
    ordered = sorted(pods, key=lambda pod: eviction_key(pod, scores.get(pod.name)))
    assert [pod.name for pod in ordered] == ["p2", "p1", "p3", "p4", "p0"]
    assert usage_score({"cpu": 5}, excess, {"memory": 1}) == 0.0
    assert usage_score({"cpu": 5}, {}, {"cpu": 1}) == 0.0


def test_newer_pods_go_first_and_names_break_ties() -> None:
    world = World()
    ages = {"old": "2026-01-01T00:00:00Z", "new": "2026-01-02T00:00:00Z"}
    pods = [world.pod(name, metadata={"creationTimestamp": at}) for name, at in ages.items()]
    assert [pod.name for pod in sorted(pods, key=eviction_key)] == ["new", "old"]
    pods = [world.pod(name, namespace=namespace) for name, namespace in (("b", "x"), ("a", "y"), ("a", "x"))]
    assert [pod.key for pod in sorted(pods, key=eviction_key)] == ["x/a", "x/b", "y/a"]


def test_node_scores() -> None:
    weights = {"cpu": 1, "memory": 1}
    assert node_score({"cpu": 1, "memory": 2}, {"cpu": 2, "memory": 3}, weights) == (500 + 666) // 2
    assert node_score({"cpu": 9, "memory": 0}, {"cpu": 2}, weights) == 500
    assert node_score({"pods": 9}, {"pods": 10}, weights) == 0


def checked(args: dict[str, Any]) -> list[str]:
    errors: list[str] = []
    read = Reader(errors).struct(args, LowNodeLoadArgs, "args")
    return errors or read.check("args")


def test_defaults_of_the_arguments() -> None:
    args: LowNodeLoadArgs = Reader([]).struct(
        {"anomalyCondition": {"timeout": "2m"}, "lowThresholds": {"pods": 1}}, LowNodeLoadArgs
    )
    assert args.check("args") == []
    condition = args.anomaly_condition
    assert (condition.timeout.seconds, condition.consecutive_abnormalities, condition.consecutive_normalities) == (
        120,
        5,
        3,
    )
    assert args.resource_weights == {"cpu": 1, "memory": 1, "pods": 1}
    assert (args.node_fit, args.node_metric_expiration_seconds, str(args.detector_cache_timeout)) == (True, 180, "5m0s")


def test_invalid_arguments_are_all_reported() -> None:
    assert checked(
        {
            "numberOfNodes": -1,
            "nodeMetricExpirationSeconds": 0,
            "evictableNamespaces": {"include": ["a"], "exclude": ["b"]},
            "lowThresholds": {"cpu": 60, "memory": -1},
            "highThresholds": {"cpu": 50},
            "prodHighThresholds": {"cpu": 55},
            "prodLowThresholds": {"cpu": 56},
            "anomalyCondition": {"consecutiveNormalities": -1},
            "podSelectors": [{"selector": {"matchLabels": {"-": ""}}}],
            "nodePools": [{"lowThresholds": {"cpu": 51}, "anomalyCondition": {"consecutiveAbnormalities": -2}}],
        }
    ) == [
        "args.numberOfNodes: Invalid value: -1: must be greater than or equal to 0",
        "args.nodeMetricExpirationSeconds: Invalid value: 0: must be greater than 0",
        'args.evictableNamespaces: Invalid value: {"include": ["a"], "exclude": ["b"]}: only one of both can be set',
        "args.podSelectors[0].selector: Invalid value: matchLabels[-]: '-' is not a valid label key",
        "args.anomalyCondition.consecutiveNormalities: Invalid value: -1: must be greater than 0",
        "args.lowThresholds[memory]: Invalid value: -1: must be a number greater than or equal to 0",
        "args.lowThresholds[cpu]: Invalid value: 60: must not be greater than highThresholds[cpu]",
        "args.prodHighThresholds[cpu]: Invalid value: 55: must not be greater than highThresholds[cpu]",
        "args.prodLowThresholds[cpu]: Invalid value: 56: must not be greater than prodHighThresholds[cpu]",
        "args.nodePools[0].anomalyCondition.consecutiveAbnormalities: Invalid value: -2: must be greater than 0",
        "args.nodePools[0].anomalyCondition.consecutiveNormalities: Invalid value: -1: must be greater than 0",
        "args.nodePools[0].lowThresholds[cpu]: Invalid value: 51: must not be greater than highThresholds[cpu]",
        "args.nodePools[0].prodHighThresholds[cpu]: Invalid value: 55: must not be greater than highThresholds[cpu]",
        "args.nodePools[0].prodLowThresholds[cpu]: Invalid value: 56: must not be greater than prodHighThresholds[cpu]",
    ]
    assert checked({"lowThresholds": {"cpu": float("nan")}}) == [
        "args.lowThresholds[cpu]: Invalid value: NaN: must be a number greater than or equal to 0"
    ]
