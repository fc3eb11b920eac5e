"""DrainNodeGroups: which nodes are planned and confirmed (spec 07 §12.3)."""

from __future__ import annotations

from typing import Any

import pytest

from control.descheduler.drain.groups import DrainableNode, advance_group, next_node
from koordlet.api.crs.drain import DrainNode, DrainNodeGroup
from koordlet.api.encoding import wire
from tests.control.descheduler.drain.test_drains import arguments
from tests.control.descheduler.drain.world import DrainWorld
from tests.control.descheduler.migration.world import DRAINS, GROUPS, NODES, RESERVATIONS


def room(name: str, free: int, total: int = 10) -> DrainableNode:
    return DrainableNode(name, {"cpu": total, "memory": total}, {"cpu": free, "memory": free})


def group(**spec: Any) -> DrainNodeGroup:
    phase, labels = spec.pop("phase", "Planning"), spec.pop("labels", {})
    document = {"metadata": {"name": "g", "labels": labels}, "spec": {"nodeSelector": {}, **spec}}
    return wire.convert({**document, "status": {"phase": phase}}, DrainNodeGroup)


def drain(name: str, phase: str = "Running", *true: str, confirm: str = "WaitForConfirm") -> DrainNode:
    conditions = [{"type": condition_type, "status": "True"} for condition_type in true]
    spec = {"nodeName": name, "confirmState": confirm}
    status = {"phase": phase, "conditions": conditions}
    return wire.convert({"metadata": {"name": f"g-{name}"}, "spec": spec, "status": status}, DrainNode)


EXAMPLE = (room("a", 8), room("b", 5), room("c", 2))


@pytest.mark.parametrize(
    ("reserved", "planned", "expected"),
    [(30, "", ""), (20, "", "a"), (None, "", "a"), (20, "a", ""), (1, "a", "")],
    ids=["25% is too little", "25% is enough", "no share", "15 cores do not fit on 10", "nor with a small share"],
)
def test_the_worked_example(reserved: int | None, planned: str, expected: str) -> None:
    policy = {} if reserved is None else {"percentageOfResourceReserved": reserved}
    assert [candidate.score for candidate in EXAMPLE] == [80, 50, 20]
    assert next_node(group(terminationPolicy=policy), EXAMPLE, frozenset(planned))[0] == expected


def test_the_emptiest_node_is_first_and_names_break_ties() -> None:
    rooms = (room("b", 9), room("a", 9), room("c", 3), room("d", 3))
    assert next_node(group(), rooms, frozenset())[0] == "a"
    assert next_node(group(), rooms, frozenset("a"))[0] == "b"
    assert next_node(group(), [], frozenset()) == ("", "every node is planned")


def test_planning_waits_for_each_drain_and_ends_at_the_limit() -> None:
    rooms = [room(name, 9) for name in "abc"]
    step = advance_group(group(), [drain("a")], rooms)
    assert (step.plan, step.status.message) == ("", "waits for the plan of g-a")
    assert advance_group(group(), [drain("a", "Running", "OnceAvailable")], rooms).plan == "b"
    limited = group(terminationPolicy={"maxNodeCount": 1})
    drains = [drain("a", "Running", "UnavailableReservationExists"), drain("b", "Running", "OnceAvailable")]
    step = advance_group(limited, drains, rooms)
    assert step.status.phase == "Waiting"
    assert [(each.metadata.name, state) for each, state in step.confirm] == [("g-a", "Rejected")]
    assert (step.status.total, step.status.available, step.status.unavailable) == (2, 1, 1)


@pytest.mark.parametrize(
    ("policy", "confirmed", "phase"),
    [({}, ["g-a", "g-b"], "Running"), ({"partition": 1}, ["g-a"], "Running"), ({"paused": True}, [], "Waiting"),
     ({"partition": 0}, [], "Waiting")],
)  # fmt: skip
def test_confirmations(policy: dict[str, Any], confirmed: list[str], phase: str) -> None:
    drains = [drain(name, "Running", "OnceAvailable") for name in "ba"]
    step = advance_group(group(phase="Waiting", executionPolicy=policy), drains, [])
    assert [each.metadata.name for each, state in step.confirm if state == "Confirmed"] == confirmed
    assert step.status.phase == phase


@pytest.mark.parametrize(
    ("states", "phase"),
    [
        (["Complete"], "Succeeded"),
        (["Running"], "Running"),
        (["Complete", "Aborted"], "Failed"),
        (["Complete", "left"], "Waiting"),
        ([], "Succeeded"),
    ],
)
def test_the_end_of_a_group(states: list[str], phase: str) -> None:
    drains = [
        drain(str(number), "Running" if state == "left" else state, "OnceAvailable",
              confirm="WaitForConfirm" if state == "left" else "Confirmed")
        for number, state in enumerate(states)
    ]  # fmt: skip
    assert advance_group(group(phase="Running"), drains, []).status.phase == phase


def cluster() -> DrainWorld:
    """Three nodes with 8 cores: n1 has two pods, n2 four, n3 none."""
    world = DrainWorld(arguments(), budget=6)
    for node in world.store.objects[NODES].values():
        node["status"] = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}}
        world.store.put(NODES, node)
    world.workload("web", 6, ["n1", "n2", "n2"])
    return world


def create(world: DrainWorld, name: str = "g", **spec: Any) -> None:
    world.store.put(GROUPS, {"metadata": {"name": name}, "spec": {"nodeSelector": {}, **spec}, "status": {}})


async def test_a_group_drains_nodes_one_after_the_other() -> None:
    world = cluster()
    create(world, terminationPolicy={"maxNodeCount": 2}, cordonNodePolicy={"mode": "Taint"})
    create(world, "later")
    await world.settle(2)
    assert list(world.store.objects[DRAINS]) == ["g-n1"]
    assert world.store.objects[GROUPS]["later"]["status"]["message"] == "waits for DrainNodeGroup g"
    del world.store.objects[GROUPS]["later"]
    await world.settle(60, seconds=6.0)
    status = world.store.objects[GROUPS]["g"]["status"]
    assert (status["phase"], status["succeeded"], status["total"]) == ("Succeeded", 2, 2)
    assert world.on("n1") == [] and world.on("n2") == [] and len(world.on("n3")) == 6
    assert len({pod["metadata"]["uid"] for pod in world.evictions}) == len(world.evictions) == 6
    assert world.violations == []
    world.store.objects[GROUPS]["g"]["metadata"]["labels"] = {"drain.descheduler.koordinator.sh/clean-taint": "true"}
    world.store.put(GROUPS, world.store.objects[GROUPS]["g"])
    await world.settle(3)
    assert not world.is_cordoned("n1")


async def test_an_aborted_group_leaves_nothing() -> None:
    world = cluster()
    create(world, executionPolicy={"paused": True}, terminationPolicy={"maxNodeCount": 1})
    await world.settle(10)
    assert world.store.objects[GROUPS]["g"]["status"]["message"] == "executionPolicy is paused"
    world.store.objects[GROUPS]["g"]["metadata"]["labels"] = {"drain.descheduler.koordinator.sh/abort": "true"}
    world.store.put(GROUPS, world.store.objects[GROUPS]["g"])
    await world.settle(4)
    assert world.store.objects[GROUPS]["g"]["status"]["phase"] == "Aborted"
    assert not any(world.is_cordoned(name) for name in ("n1", "n2", "n3"))
    assert world.store.objects[RESERVATIONS] == {} and world.evictions == []


async def test_a_group_is_deleted_after_its_time() -> None:
    world = cluster()
    create(world, ttl="1m", executionPolicy={"paused": True})
    await world.settle(6)
    await world.clock.advance(360.0)
    await world.settle(4)
    assert world.store.objects[GROUPS] == {}
    assert not any(world.is_cordoned(name) for name in ("n1", "n2", "n3"))
