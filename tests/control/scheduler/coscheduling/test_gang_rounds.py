"""Gangs in whole cycles: the example round of spec 05 §9.4, and the other members when one fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from koordlet.api.core import Pod
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.gangworld import GangWorld

Make = Callable[..., GangWorld]
P = "gang.scheduling.koordinator.sh/"


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    worlds: list[GangWorld] = []

    def made(*nodes: Any, **more: Any) -> GangWorld:
        worlds.append(GangWorld(*nodes, **more))
        return worlds[-1]

    yield made
    for world in worlds:
        await world.stop()


def member(name: str, gang: str = "g", minimum: int = 3, cpu: str = "1", **notes: str) -> Pod:
    annotations = {P + "name": gang, P + "min-available": str(minimum)}
    return pod(name, cpu, annotations=annotations | {P + key.replace("_", "-"): value for key, value in notes.items()})


async def test_the_worked_round(make: Make) -> None:
    world = make(node("n1", cpu="2"))
    world.create(member("a"), member("b"))
    await world.drive()
    assert world.queue.counts()["gated"] == 2
    world.create(member("c"))
    await world.drive()
    assert world.bound() == []
    assert world.parked() == []
    assert world.gangs.rounds.current is None
    text = (
        'GangGroup "default/g" gets rejected due to member Pod "default/b" is unschedulable with reason '
        '"0/1 nodes are available: 1 Insufficient cpu.", alreadyWaitForBound: 2'
    )
    refused = f"0/1 nodes are available: 1 {text}."
    assert world.reporter.messages == {"b": "0/1 nodes are available: 1 Insufficient cpu.", "a": refused, "c": refused}
    world.check()
    world.add_node("n2", "1")
    await world.pass_time(3)
    assert world.bound() == ["a", "b", "c"]
    world.check()


async def test_binding_annotations_name_the_group_and_its_size(make: Make) -> None:
    world = make(node("n1", cpu="8"))
    world.create(member("a", minimum=2), member("b", minimum=2))
    await world.drive()
    expected = {
        f"{prefix}scheduling.koordinator.sh/{key}": value
        for prefix in ("internal.", "")
        for key, value in (("bind-gang-group-id", "default/g"), ("bind-gang-member-count", "2"))
    }
    for name in ("a", "b"):
        assert expected.items() <= world.bound_with[name].items()
    world.check()


async def test_a_group_of_gangs_is_one(make: Make) -> None:
    both = '["default/g","default/h"]'
    world = make(node("n1", cpu="8"))
    world.create(member("a", "g", 1, groups=both))
    await world.drive()
    assert world.bound() == []
    world.create(*(member(name, "h", 2, groups=both) for name in ("b", "c")))
    await world.drive()
    assert world.bound() == ["a", "b", "c"]
    assert world.bound_with["a"]["scheduling.koordinator.sh/bind-gang-group-id"] == "default/g,default/h"
    assert world.bound_with["a"]["scheduling.koordinator.sh/bind-gang-member-count"] == "3"


async def test_others_are_scheduled_while_a_gang_can_t_be(make: Make) -> None:
    world = make(node("n1", cpu="2"))
    world.create(member("a"), member("b"), member("c"), pod("single", "1"))
    await world.drive()
    assert world.bound() == ["single"]
    world.check()


async def test_two_gangs_without_room_do_not_wake_each_other_for_ever(make: Make) -> None:
    world = make(node("n1", cpu="2"))
    world.create(*(member(f"{gang}{number}", gang) for gang in "gh" for number in range(3)))
    await world.drive()  # it ends
    assert world.bound() == []
    world.create(pod("single", "2"))
    await world.drive()
    assert world.bound() == ["single"]
    world.add_node("n2", "6")
    await world.pass_time(12)
    assert len(world.bound()) == 7
    world.check()


async def test_members_beyond_the_minimum_follow(make: Make) -> None:
    world = make(node("n1", cpu="8"))
    world.create(*(member(name, minimum=2) for name in "abcde"))
    await world.pass_time(3)
    assert world.bound() == list("abcde")
    world.create(member("late", minimum=2))
    await world.drive()
    assert "late" in world.bound()
    world.check()


@pytest.mark.parametrize("policy", ["only-waiting", "waiting-and-running", "once-satisfied"])
async def test_members_beyond_the_minimum_follow_under_every_policy(make: Make, policy: str) -> None:
    world = make(node("n1", cpu="8"))
    world.create(*(member(name, minimum=2, match_policy=policy) for name in "abcd"))
    await world.pass_time(3)
    assert world.bound()[:2] == ["a", "b"]
    if policy != "only-waiting":  # there, two more wait for each other, and go together
        assert world.bound() == list("abcd")
    world.check()


async def test_a_strict_gang_releases_its_nodes_after_the_timeout(make: Make) -> None:
    world = make(node("n1", cpu="8"))
    both = '["default/g","default/h"]'
    world.create(member("a", "g", 2, groups=both, waiting_time="10s"), member("b", "g", 2, groups=both))
    world.create(member("c", "h", 1, groups=both, cpu="9"))
    await world.pass_time(1)
    assert world.bound() == []
    assert world.cache.assumed == set()
    world.check()


async def test_a_non_strict_gang_keeps_its_nodes_until_the_timeout(make: Make) -> None:
    world = make(node("n1", cpu="2"))
    world.create(*(member(name, mode="NonStrict", waiting_time="10s") for name in "abc"))
    await world.drive()
    assert world.parked() == ["a", "c"]
    assert world.reporter.messages == {"b": "0/1 nodes are available: 1 Insufficient cpu."}
    world.add_node("n2", "1")
    await world.pass_time(5)
    assert world.bound() == ["a", "b", "c"]
    world.check()


async def test_a_non_strict_gang_may_release_its_nodes_at_the_end_of_a_round(make: Make) -> None:
    """As in Koordinator: members that follow a failed one are not tried, and none keeps a node."""
    world = make(node("n1", cpu="2"), non_strict_gangs_wait=False)
    world.create(member("a", mode="NonStrict"), member("b", mode="NonStrict", cpu="3"), member("c", mode="NonStrict"))
    await world.drive()
    assert world.parked() == []
    assert world.cache.assumed == set()
    assert {name for name, text in world.reporter.messages.items() if "gets rejected due to member Pod" in text} >= {
        "a"
    }
    world.add_node("n2", "3")
    await world.pass_time(15)
    assert world.bound() == ["a", "b", "c"]
    world.check()


async def test_a_non_strict_gang_releases_its_nodes_after_the_timeout(make: Make) -> None:
    world = make(node("n1", cpu="2"))
    world.create(*(member(name, mode="NonStrict", waiting_time="10s") for name in "abc"))
    await world.drive()
    await world.clock.advance(10)
    await world.clock.settle()
    assert world.parked() == []
    assert world.cache.assumed == set()
    text = "rejected due to timeout after waiting 10s at plugin Coscheduling"
    assert world.reporter.messages["a"] == f"0/1 nodes are available: 1 {text}."
    world.check()


async def test_the_rest_wakes_when_the_root_cause_is_deleted(make: Make) -> None:
    world = make(node("n1", cpu="2"))
    world.create(member("a", minimum=2), member("b", minimum=2), member("d", minimum=2, cpu="5"))
    world.create(member("e", minimum=2, cpu="5"))
    await world.pass_time(2)
    for key in ("default/d", "default/e"):
        world.delete(key)
    await world.pass_time(12)
    assert world.bound() == ["a", "b"]
    world.check()


async def test_a_refused_binding_is_tried_again(make: Make) -> None:
    world = make(node("n1", cpu="8"))
    world.refused = {"b"}
    world.create(*(member(name) for name in "abc"))
    await world.drive()
    assert world.bound() == ["a", "c"]
    world.refused = set()
    await world.pass_time(3)
    assert world.bound() == ["a", "b", "c"]
    world.check()


async def test_pods_without_a_gang_are_left_alone(make: Make) -> None:
    world = make(node("n1", cpu="8"))
    world.create(pod("x"), pod("y"))
    await world.drive()
    assert world.bound() == ["x", "y"]
    assert world.gangs.gangs.gangs == {}
