"""Network trees and plans match the verified cases of spec 05 §10."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.scheduler.plugins.coscheduling.topology import NetworkDomain, build
from control.scheduler.plugins.coscheduling.topologyplanner import (
    GatherRules,
    NoPlan,
    TopologyPlanner,
    neighbours_first,
)
from koordlet.api.annotations.gang import NetworkTopologySpec
from koordlet.api.core import Node
from koordlet.api.crs.networktopology import ClusterNetworkTopology
from koordlet.api.encoding import wire
from tests.control.scheduler.build import node

BLOCKS = {"b1": "s1", "b2": "s1", "b3": "s2", "b4": "s2"}
NODES = {
    "node-8": "b1",
    "node-1": "b1",
    "node-7": "b2",
    "node-2": "b2",
    "node-6": "b3",
    "node-3": "b3",
    "node-5": "b4",
    "node-4": "b4",
}


def topology(*layers: tuple[str, str, str]) -> ClusterNetworkTopology:
    """(layer, parent, label)"""
    spec = [
        {"topologyLayer": layer, "parentTopologyLayer": up, "labelKey": [key, f"old-{key}"]}
        for layer, up, key in layers
    ]
    return wire.convert(
        {"metadata": {"name": "default"}, "spec": {"networkTopologySpec": spec}}, ClusterNetworkTopology
    )


SPINES = topology(
    ("Spine", "ClusterTopologyLayer", "spine"), ("Block", "Spine", "block"), ("NodeTopologyLayer", "Block", "")
)


def labelled(name: str, spine: str, block: str) -> Node:
    labels = {key: value for key, value in (("spine", spine), ("block", block)) if value}
    return node(name, labels=labels)


def tree(placed: dict[str, str] | None = None) -> NetworkDomain:
    root = build(SPINES, [labelled(name, BLOCKS[block], block) for name, block in (placed or NODES).items()])
    assert root is not None
    return root


def wishes(*strategies: tuple[str, str, int]) -> GatherRules:
    rules = [{"layer": layer, "strategy": how, "podCountMultiple": m} for layer, how, m in strategies]
    return GatherRules.of(wire.convert({"gatherStrategy": rules}, NetworkTopologySpec))


@pytest.mark.parametrize(
    ("each", "desired", "rules", "expected"),
    [
        (1, 4, [("Block", "PreferGather", 0)], ["node-1", "node-8", "node-2", "node-7"]),
        (1, 2, [("Block", "MustGather", 0)], ["node-1", "node-8"]),
        (2, 2, [("Block", "PreferGather", 0)], ["node-1", "node-1"]),
    ],
    ids=["four of the size of a node", "must stay in a block", "two fit one node"],
)
def test_the_verified_plans(each: int, desired: int, rules: list[tuple[str, str, int]], expected: list[str]) -> None:
    shares = TopologyPlanner(tree(), dict.fromkeys(NODES, each), wishes(*rules)).plan(desired)
    assert [name for name, number in shares for _ in range(number)] == expected


SLOTS = {"n1": 5, "n2": 7, "n3": 6, "n4": 4}
TWO = {"n1": "b1", "n2": "b1", "n3": "b2", "n4": "b2"}
NODE, BLOCK = "NodeTopologyLayer", "Block"


@pytest.mark.parametrize(
    ("multiples", "desired", "expected"),
    [
        ({}, 15, {"n2": 7, "n1": 5, "n3": 3}),
        ({NODE: 4}, 20, {"n1": 4, "n2": 4, "n3": 4, "n4": 4}),
        ({BLOCK: 8}, 20, {"n2": 7, "n1": 1, "n3": 6, "n4": 2}),
        ({NODE: 2, BLOCK: 8}, 20, {"n2": 6, "n1": 2, "n3": 6, "n4": 2}),
    ],
)
def test_the_verified_distributions(multiples: dict[str, int], desired: int, expected: dict[str, int]) -> None:
    planner = TopologyPlanner(tree(TWO), SLOTS, GatherRules(multiples, frozenset()))
    assert dict(planner.distribute(planner.root, desired)) == expected
    if sum(expected.values()) < desired:
        with pytest.raises(NoPlan):
            planner.plan(desired)


@pytest.mark.parametrize("multiples", [{NODE: 4}, {BLOCK: 8}])
def test_the_verified_sums(multiples: dict[str, int]) -> None:
    planner = TopologyPlanner(tree(TWO), SLOTS, GatherRules(multiples, frozenset()))
    slots = {domain.name: planner.slots[domain] for domain in planner.root.walk()}
    assert (slots["b1"], slots["b2"], slots["s1"]) == (8, 8, 16)


def test_a_failure_lists_the_slots_of_each_domain() -> None:
    planner = TopologyPlanner(tree(TWO), SLOTS, wishes((BLOCK, "MustGather", 8)))
    with pytest.raises(NoPlan) as failure:
        planner.plan(20)
    assert str(failure.value) == (
        "no candidate topology nodes can accommodate job, desiredOfferSlot: 20, "
        "topology topologyNode Block/b1: 8;topology topologyNode Block/b2: 8"
    )
    assert planner.constraints() == "; podCountMultiple constraints: Block=8"


def test_neighbours_go_first() -> None:
    shares = TopologyPlanner(tree(), dict.fromkeys(NODES, 1), wishes(), existing={"node-5": 1}).plan(1)
    assert shares == [("node-5", 1)]
    order = neighbours_first(tree(), ["node-1", "node-4", "node-6", "alone"], {"node-5": 3, "node-3": 1})
    assert order == ["node-4", "node-6", "node-1", "alone"]
    shares = TopologyPlanner(tree(), dict.fromkeys(NODES, 1), wishes(), cost={"node-1": 3}).plan(1)
    assert shares == [("node-2", 1)]


def test_trees_from_labels() -> None:
    nodes = [
        labelled("a", "s1", "b"),
        labelled("b", "s2", "b"),
        labelled("lonely", "s1", ""),
        labelled("out", "", "b1"),
        node("old", labels={"spine": "s1", "old-block": "b"}),
    ]
    root = build(SPINES, nodes)
    assert root is not None
    assert [leave.name for leave in root.leaves()] == ["a", "old", "lonely", "b"]
    assert [[d.name for d in leave.lineage()][1:-1] for leave in root.leaves()] == [
        ["b", "s1"],
        ["b", "s1"],
        ["lonely", "s1"],
        ["b", "s2"],
    ]


@pytest.mark.parametrize(
    "unusable",
    [
        topology(("Block", "ClusterTopologyLayer", "block")),
        topology(("NodeTopologyLayer", "Block", "")),
        topology(("NodeTopologyLayer", "A", ""), ("A", "B", "a"), ("B", "A", "b")),
        None,
    ],
    ids=["no node layer", "no parent", "a circle", "no object"],
)
def test_unusable_topologies_give_no_tree(unusable: Any) -> None:
    assert build(unusable, [labelled("a", "s1", "b1")]) is None


@given(st.dictionaries(st.sampled_from(sorted(NODES)), st.integers(0, 5)), st.integers(1, 12), st.booleans())
def test_plans_place_all_members_within_the_slots(slots: dict[str, int], desired: int, must: bool) -> None:
    planner = TopologyPlanner(tree(), slots, wishes((BLOCK, "MustGather", 0)) if must else wishes())
    blocks = {block: sum(slots.get(n, 0) for n, b in NODES.items() if b == block) for block in BLOCKS}
    possible = max(blocks.values()) if must else sum(slots.values())
    if possible < desired:
        with pytest.raises(NoPlan):
            planner.plan(desired)
        return
    shares = planner.plan(desired)
    assert sum(number for _, number in shares) == desired
    assert len(dict(shares)) == len(shares)
    assert all(0 < number <= slots[name] for name, number in shares)
    used = {NODES[name] for name, _ in shares}
    if any(blocks[block] >= desired for block in BLOCKS):
        assert len(used) == 1  # as close together as can be
    if any(slots.get(name, 0) >= desired for name in NODES):
        assert len(shares) == 1
