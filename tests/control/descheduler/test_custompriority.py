"""CustomPriority: classes, both modes, cordons, thresholds (spec 07 §7)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.component.reading import Reader
from control.descheduler.framework.limiter import EvictionLimits
from control.descheduler.plugins.custompriority.args import CustomPriorityArgs
from control.descheduler.plugins.custompriority.plugin import CustomPriority
from koordlet.kube import KubeError
from tests.control.descheduler.world import World


def class_of(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "nodeSelector": {"matchLabels": {"class": name}}, **more}


ORDER = {"evictionOrder": [class_of("gold"), class_of("silver"), class_of("iron")]}


class RecordingNodes:
    """A client that records patches of nodes, or refuses them."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.patches: list[tuple[str, Any]] = []
        self.refuses = refuses

    async def patch(self, kind: type, name: str, *, body: Any) -> None:
        if self.refuses:
            raise KubeError("refused")
        self.patches.append((name, body["spec"]["unschedulable"]))


def classes(world: World, **cpu: str) -> None:
    """Nodes `gold`, `silver`, `iron` of the classes of their names."""
    for name, amount in cpu.items():
        world.node(name, amount, labels={"class": name})


def test_the_worked_example_of_best_effort() -> None:
    world = World()
    classes(world, gold="16", silver="1")
    for number, cpu in enumerate(("100m", "400m", "2", "3", "3", "3")):
        world.pod(f"p{number}", cpu, None, on="gold")
    assert world.balance(world.plugin(CustomPriority, ORDER)) == ["p0", "p1"]
    assert world.reasons[0] == "evicting from gold priority resource to lower priority resource"


def test_a_node_is_left_after_five_misses_in_a_row() -> None:
    world = World()
    classes(world, gold="64", silver="4")
    for number in range(5):
        world.pod(f"picky{number}", f"{number + 1}0m", None, on="gold", spec={"nodeSelector": {"a": "b"}})
    world.pod("last", "1", None, on="gold")
    assert world.balance(world.plugin(CustomPriority, ORDER)) == []
    world.pod("first", "5m", None, on="gold")
    assert world.balance(world.plugin(CustomPriority, {**ORDER, "nodeFit": False}))[:1] == ["first"]


def test_pods_leave_to_any_later_class_and_not_to_earlier_ones() -> None:
    world = World()
    classes(world, gold="16", silver="16", iron="1")
    world.pod("on-gold", "2", None, on="gold")
    world.pod("on-silver", "2", None, on="silver")
    world.pod("on-iron", "500m", None, on="iron")
    world.node("other", "99")
    assert world.balance(world.plugin(CustomPriority, ORDER)) == ["on-gold"]


@pytest.mark.parametrize(
    ("args", "evicted"),
    [
        ({}, ["a"]),
        ({"paused": True}, []),
        ({"nodeSelector": {"matchLabels": {"x": "y"}}}, []),
        ({"evictableNamespaces": {"include": ["other"]}}, []),
        ({"evictionOrder": [class_of("gold", keepThreshold={"cpu": 7}), class_of("silver")]}, []),
        ({"evictionOrder": [class_of("gold", keepThreshold={"cpu": 6}), class_of("silver")]}, ["a"]),
        ({"evictionOrder": [class_of("gold"), class_of("silver", rejectThreshold={"cpu": 24})]}, []),
        ({"evictionOrder": [class_of("gold"), class_of("silver", rejectThreshold={"cpu": 25})]}, ["a"]),
        ({"evictionOrder": [class_of("gold", keepThreshold={"cpu": 7, "pods": 1}), class_of("silver")]}, []),
        ({"evictionOrder": [class_of("gold", keepThreshold={"pods": 0.5}), class_of("silver")]}, ["a"]),
        ({"evictionOrder": [class_of("gold"), class_of("silver", rejectThreshold={"pods": 0.5})]}, []),
        ({"evictionOrder": [class_of("gold"), class_of("silver", rejectThreshold={"pods": 1})]}, ["a"]),
        ({"evictionOrder": [class_of("gold"), class_of("missing")]}, []),
    ],
)
def test_arguments(args: dict[str, Any], evicted: list[str]) -> None:
    world = World()
    classes(world, gold="16", silver="4")
    world.pod("a", "1", None, on="gold")
    assert world.balance(world.plugin(CustomPriority, {**ORDER, **args})) == evicted


DRAIN = {**ORDER, "mode": "DrainNode", "autoCordon": True}


def drained(world: World, args: dict[str, Any], client: RecordingNodes) -> list[str]:
    world.client = client
    return world.balance(world.plugin(CustomPriority, {**DRAIN, **args}))


def test_a_node_is_drained_completely_or_not_at_all() -> None:
    world, client = World(), RecordingNodes()
    classes(world, gold="16", silver="4")
    world.node("gold2", "16", labels={"class": "gold"})
    for name, cpu, node in (("a", "1", "gold"), ("b", "2", "gold"), ("c", "2", "gold2"), ("d", "500m", "gold2")):
        world.pod(name, cpu, None, on=node)
    # gold takes 3 of 4 cores; gold2 needs 2.5
    assert drained(world, {}, client) == ["a", "b"]
    assert world.reasons[0] == "drain node gold (sourcePriority=gold)"
    assert client.patches == [("gold", True)]


@pytest.mark.parametrize(
    ("threshold", "evicted"),
    [({"cpu": 50}, []), ({"cpu": 75}, ["a", "b", "c"]), ({"pods": 1}, []), ({"pods": 3}, ["a", "b", "c"])],
)
def test_a_drain_never_plans_more_than_a_reject_threshold(threshold: dict[str, float], evicted: list[str]) -> None:
    """Each pod alone is below the threshold of 50 percent, and all three are above it."""
    world, client = World(), RecordingNodes()
    classes(world, gold="16", silver="4")
    for name in "abc":
        world.pod(name, "1", None, on="gold")
    order = [class_of("gold"), class_of("silver", rejectThreshold=threshold)]
    assert drained(world, {"evictionOrder": order}, client) == evicted


def test_a_node_without_pods_that_may_go_is_not_cordoned() -> None:
    world, client = World(), RecordingNodes()
    classes(world, gold="16", silver="4")
    assert drained(world, {}, client) == []
    assert client.patches == []


def test_slots_for_pods_are_counted() -> None:
    world, client = World(), RecordingNodes()
    world.node("gold", "16", labels={"class": "gold"})
    world.node("silver", "16", pods=2, labels={"class": "silver"})
    world.pod("there", "1", None, on="silver")
    for name in ("a", "b"):
        world.pod(name, "100m", None, on="gold")
    assert drained(world, {}, client) == []
    assert client.patches == []


@pytest.mark.parametrize(
    ("cordoned", "failing", "evicted", "patches"),
    [
        pytest.param(False, "a", [], [("gold", True), ("gold", None)], id="no pod left: its cordon is undone"),
        pytest.param(True, "a", [], [], id="the cordon of others stays"),
        pytest.param(False, "b", ["a"], [("gold", True)], id="in progress: the node stays cordoned"),
    ],
)
def test_a_failed_eviction_ends_the_pass(
    cordoned: bool, failing: str, evicted: list[str], patches: list[tuple[str, bool | None]]
) -> None:
    world, client = World(), RecordingNodes()
    world.node("gold", "16", labels={"class": "gold"}, unschedulable=cordoned)
    world.node("silver", "16", labels={"class": "silver"})
    for name in ("a", "b", "c"):
        world.pod(name, "100m", None, on="gold")
    world.evictor.failing = {failing}
    assert drained(world, {}, client) == evicted
    assert client.patches == patches


def test_a_drain_that_meets_a_limit_goes_on_in_the_next_pass() -> None:
    world, client = World(EvictionLimits(per_node=2)), RecordingNodes()
    classes(world, gold="16", silver="16")
    for name in ("a", "b", "c"):
        world.pod(name, "100m", None, on="gold")
    assert drained(world, {}, client) == ["a", "b"]
    assert client.patches == [("gold", True)]
    for name in ("a", "b"):
        world.state.remove_pod(world.state.pods[f"default/{name}"].pod)
    world.limiter.reset()
    world.node("gold", "16", labels={"class": "gold"}, unschedulable=True)
    assert drained(world, {}, client) == ["c"]
    assert client.patches == [("gold", True)]


def test_dry_runs_and_refused_cordons() -> None:
    for world, args, client, evicted in (
        (World(), {"dryRun": True}, RecordingNodes(), []),
        (World(dry_run=True), {}, RecordingNodes(), []),
        (World(), {}, RecordingNodes(refuses=True), ["a"]),
        (World(), {"autoCordon": False}, RecordingNodes(), ["a"]),
    ):
        classes(world, gold="16", silver="16")
        world.pod("a", "100m", None, on="gold")
        assert drained(world, args, client) == evicted
        assert client.patches == []
        assert len(world.planned) == 1


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_a_drain_never_plans_more_than_the_targets_have(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    for number in range(rng.randint(2, 6)):
        name = rng.choice(("gold", "silver", "iron"))
        world.node(f"n{number}", str(rng.randint(1, 4)), "4Gi", rng.randint(1, 4), labels={"class": name})
        for _ in range(rng.randint(0, 3)):
            world.pod("", f"{rng.randint(0, 15)}00m", rng.choice((None, "1Gi")), on=f"n{number}")
    room = dict.fromkeys(("cpu", "memory", "pods"), 0)
    for node in world.state.nodes.values():
        if node.labels["class"] != "gold":
            for name in room:
                used = len(node.pods) if name == "pods" else node.requested.get(name, 0)
                room[name] += max(0, node.allocatable[name] - used)
    drained(
        world,
        {"autoCordon": False, "evictionOrder": [class_of("gold"), class_of("silver"), class_of("iron")]},
        RecordingNodes(),
    )
    moved = [pod for pod, _ in world.evictor.evicted if world.state.nodes[pod.node].labels["class"] == "gold"]
    for name, free in room.items():
        assert sum(1 if name == "pods" else pod.requests.get(name, 0) for pod in moved) <= free
    for node in world.state.nodes.values():
        left = {pod.name for pod in node.pods.values()} - set(world.evicted)
        assert not left or len(left) == len(node.pods)


def test_invalid_arguments() -> None:
    errors: list[str] = []
    order = [{"name": "Gold"}, class_of("a", keepThreshold={"cpu": 101}), class_of("a"), {"nodeSelector": {}}]
    args = {"mode": "Fast", "podSelectors": [{"selector": {}}], "evictionOrder": order}
    read: CustomPriorityArgs = Reader(errors).struct(args, CustomPriorityArgs, "args")
    assert errors + read.check("args") == [
        "args.podSelectors[0].name: Required value",
        'args.mode: Unsupported value: "Fast": supported values: "BestEffort", "DrainNode"',
        'args.evictionOrder[0].name: Invalid value: "Gold": must be a DNS label',
        "args.evictionOrder[0].nodeSelector: Required value",
        "args.evictionOrder[1].keepThreshold[cpu]: Invalid value: 101: must be between 0 and 100",
        'args.evictionOrder[2].name: Duplicate value: "a"',
        "args.evictionOrder[3].name: Required value",
    ]
    assert CustomPriorityArgs().check("args") == [
        "args.evictionOrder: Invalid value: 0: must have at least two classes"
    ]
