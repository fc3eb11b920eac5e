"""FragmentationAware: the worked examples of spec 07 §8, and arguments."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.descheduler.plugins.fragmentationaware import FragmentationAware, FragmentationAwareArgs, imbalance
from tests.control.descheduler.world import World

AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.integers(0, 10**6))


@given(AMOUNTS, AMOUNTS)
def test_imbalance_is_the_deviation_of_the_shares(requested: dict[str, int], allocatable: dict[str, int]) -> None:
    names = ["cpu", "memory", "gpu"]
    shares = [requested.get(name, 0) / allocatable[name] for name in names if allocatable.get(name)]
    expected = statistics.pstdev(shares) if len(shares) > 1 else 0.0
    assert imbalance(requested, allocatable, names) == pytest.approx(expected)


def test_imbalance_examples() -> None:
    assert imbalance({"cpu": 3000, "memory": 1000}, {"cpu": 4000, "memory": 4000}, ["cpu", "memory"]) == 0.25
    assert imbalance({"gpu": 1}, {"gpu": 2, "cpu": 1000}, ["gpu", "cpu"]) == 0.25
    assert imbalance({"cpu": 1}, {"cpu": 2}, ["cpu", "memory"]) == 0.0


def world_of_the_example() -> World:
    world = World()
    for name in ("n1", "n2"):
        world.node(name, "4", "4000")
    world.pod("first", "2500m", "500", on="n1")
    world.pod("second", "500m", "500", on="n1")
    return world


@pytest.mark.parametrize(
    ("args", "evicted"),
    [
        ({}, ["first"]),
        ({"paused": True}, []),
        ({"imbalanceThreshold": 0.25}, []),
        ({"minImprovementThreshold": 0.25}, []),
        ({"resources": ["cpu"]}, []),
        ({"evictableNamespaces": {"exclude": ["default"]}}, []),
        ({"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "n1"}}}, []),  # the other node is not selected
        ({"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "n1"}}, "nodeFit": False}, ["first"]),
    ],
)
def test_the_worked_example(args: dict[str, Any], evicted: list[str]) -> None:
    world = world_of_the_example()
    assert world.balance(world.plugin(FragmentationAware, args)) == evicted
    if evicted:
        assert world.reasons == ["fragmentation reduction: stdBefore=0.2500 stdAfter=0.0000 gain=0.2500"]


def test_one_pod_per_node_that_all_filters_accept() -> None:
    world = world_of_the_example()
    world.pod("third", "1", None, on="n1")
    plugin = world.plugin(FragmentationAware)
    assert world.balance(plugin) == ["first"]  # one pod per node and pass
    world.evictor.protected = {"first"}
    assert world.balance(plugin) == ["third"]
    world.evictor.not_now = {"third"}
    assert world.balance(plugin) == []
    dry = world_of_the_example()
    assert dry.balance(dry.plugin(FragmentationAware, {"dryRun": True})) == []
    assert [eviction.pod for eviction in dry.planned] == ["default/first"]


def test_invalid_arguments() -> None:
    args = FragmentationAwareArgs(
        resources=["cpu", "cpu"], imbalance_threshold=-1, min_improvement_threshold=float("nan")
    )
    assert args.check("args") == [
        'args.resources[1]: Duplicate value: "cpu"',
        "args.imbalanceThreshold: Invalid value: -1: must be a number greater than or equal to 0",
        "args.minImprovementThreshold: Invalid value: NaN: must be a number greater than or equal to 0",
    ]
    assert FragmentationAwareArgs(resources=[]).check("args") == ["args.resources: Required value"]
