"""RemovePodsViolatingTopologySpreadConstraint: how many pods leave which domains (spec 07 §10)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.descheduler.plugins.upstream.topologyspread import (
    RemovePodsViolatingTopologySpreadConstraint,
    RemovePodsViolatingTopologySpreadConstraintArgs,
    SpreadDomain,
    moves,
)
from tests.control.descheduler.world import World


def spread(max_skew: int = 1, when: str = "DoNotSchedule", **more: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"app": "web"}}
    constraint = {"maxSkew": max_skew, "topologyKey": "zone", "whenUnsatisfiable": when, "labelSelector": selector}
    return {"topologySpreadConstraints": [constraint], **more}


def zones(world: World, sizes: str, spec: dict[str, Any], **more: Any) -> None:
    """One node per zone `a`, `b`, … with as many pods as its digit."""
    for zone, size in zip("abcdef", sizes, strict=False):
        world.node(zone, "8", labels={"zone": zone})
        for number in range(int(size)):
            world.pod(f"{zone}{number}", "100m", None, on=zone, labels={"app": "web"}, spec=spec, **more)


@pytest.mark.parametrize(
    ("sizes", "max_skew", "evicted"),
    [
        ("31", 1, 1),
        ("21", 1, 0),
        ("5", 1, 0),
        ("60", 1, 3),
        ("60", 2, 2),
        ("400", 1, 2),
        ("330", 1, 2),
        ("222", 1, 0),
        ("513", 1, 2),
    ],
)
def test_how_many_pods_leave(sizes: str, max_skew: int, evicted: int) -> None:
    world = World()
    zones(world, sizes, spread(max_skew))
    assert len(world.balance(world.plugin(RemovePodsViolatingTopologySpreadConstraint))) == evicted


@pytest.mark.parametrize(
    ("args", "spec", "evicted"),
    [
        ({}, spread(when="ScheduleAnyway"), []),
        ({"constraints": ["ScheduleAnyway"]}, spread(when="ScheduleAnyway"), ["a2"]),
        ({"namespaces": {"exclude": ["default"]}}, spread(), []),
        ({"labelSelector": {"matchLabels": {"x": "y"}}}, spread(), []),
        ({}, spread(nodeSelector={"zone": "a"}), []),
        ({"topologyBalanceNodeFit": False}, spread(nodeSelector={"zone": "a"}), ["a2"]),
        ({}, {}, []),
    ],
)
def test_arguments(args: dict[str, Any], spec: dict[str, Any], evicted: list[str]) -> None:
    world = World()
    zones(world, "31", spec)
    assert world.balance(world.plugin(RemovePodsViolatingTopologySpreadConstraint, args)) == evicted


def test_who_leaves_first() -> None:
    world = World()
    world.node("a", labels={"zone": "a"})
    world.node("b", labels={"zone": "b"})
    for name, priority in (("protected", 0), ("low", 1), ("high", 9)):
        world.pod(name, on="a", priority=priority, labels={"app": "web"}, spec=spread())
    world.evictor.protected = {"protected"}
    assert world.balance(world.plugin(RemovePodsViolatingTopologySpreadConstraint)) == ["low"]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 4))
def test_domains_are_within_the_skew_afterwards_and_none_gives_and_takes(sizes: list[int], max_skew: int) -> None:
    world = World()
    domains = [
        SpreadDomain(str(index), [world.pod(f"{index}-{number}") for number in range(size)])
        for index, size in enumerate(sizes)
    ]
    leaving = moves(domains, max_skew)
    after = [len(domain.pods) for domain in domains]
    assert sum(after) == sum(sizes)
    assert max(after) - min(after) <= max_skew
    assert len({pod.uid for pod in leaving}) == len(leaving)
    gave = {int(pod.name.partition("-")[0]) for pod in leaving}
    took = {index for index, size in enumerate(sizes) if after[index] > size}
    assert gave.isdisjoint(took)
    if max(sizes) - min(sizes) <= max_skew:
        assert leaving == []


def test_invalid_arguments() -> None:
    args = RemovePodsViolatingTopologySpreadConstraintArgs(constraints=["Always"])
    assert args.check("args") == [
        'args.constraints[0]: Unsupported value: "Always": supported values: "DoNotSchedule", "ScheduleAnyway"'
    ]
