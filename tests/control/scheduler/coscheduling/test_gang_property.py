"""Strict gangs are never bound in part and leave nothing claimed, over random histories."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.control.scheduler.build import node, pod
from tests.control.scheduler.gangworld import GangWorld

P = "gang.scheduling.koordinator.sh/"
GANGS = {"f": 2, "g": 3, "h": 1}
"""Gang -> minimum; g and h are one group."""
GROUPS = {"g": '["default/g","default/h"]', "h": '["default/g","default/h"]'}
TOGETHER = {"f": ("f",), "g": ("g", "h"), "h": ("g", "h")}

MOVES = (
    st.tuples(st.just("member"), st.sampled_from(sorted(GANGS)), st.integers(1, 3)),
    st.tuples(st.just("single"), st.just(""), st.integers(1, 3)),
    st.tuples(st.just("delete"), st.just(""), st.integers(0, 20)),
    st.tuples(st.just("node"), st.just(""), st.integers(1, 4)),
    st.tuples(st.just("lose"), st.just(""), st.integers(0, 5)),
    st.tuples(st.just("time"), st.just(""), st.sampled_from((1, 3, 11))),
)
"""Events of pods and nodes."""
STEPS = st.lists(
    st.one_of(
        *MOVES,
        st.tuples(st.just("drive"), st.just(""), st.just(0)),
    ),
    min_size=4,
    max_size=24,
)


@settings(deadline=None)
@given(STEPS, st.sampled_from(("only-waiting", "waiting-and-running", "once-satisfied")))
def test_strict_gangs_are_bound_whole(steps: list[tuple[str, str, int]], policy: str) -> None:
    asyncio.run(_strict(steps, policy))


async def _strict(steps: list[tuple[str, str, int]], policy: str) -> None:
    world = GangWorld(node("n0", cpu="3"))
    ever: set[str] = set()
    nodes = 1
    try:
        for number, (kind, gang, amount) in enumerate(steps):
            if kind == "member":
                notes = {"name": gang, "min-available": str(GANGS[gang]), "waiting-time": "10s", "match-policy": policy}
                if gang in GROUPS:
                    notes["groups"] = GROUPS[gang]
                world.create(
                    pod(f"{gang}{number}", str(amount), annotations={P + key: value for key, value in notes.items()})
                )
            elif kind == "single":
                world.create(pod(f"s{number}", str(amount)))
            elif kind == "delete" and world.pods:
                world.delete(sorted(world.pods)[amount % len(world.pods)])
            elif kind == "node":
                world.add_node(f"n{nodes}", str(amount))
                nodes += 1
            elif kind == "lose":
                world.lose_node(f"n{amount % nodes}")
            if kind == "time":
                await world.pass_time(amount)
            elif number % 2 or kind == "drive":
                await world.drive()
            await world.clock.settle()
            for name in GANGS:
                whole_or_nothing(world, name, ever)
            world.check()
        await all_fit_in_the_end(world, ever if policy == "only-waiting" else set())
    finally:
        await world.stop()


def whole_or_nothing(world: GangWorld, name: str, ever: set[str]) -> None:
    if name in ever:
        return  # later members follow by themselves, and members may have gone since
    for other in TOGETHER[name]:
        if world.bound(name) and other not in ever:
            assert len(world.bound(other)) >= GANGS[other], f"{other} is bound in part"
    if world.bound(name):
        ever.update(TOGETHER[name])


async def all_fit_in_the_end(world: GangWorld, done: set[str]) -> None:
    """With room for all, every gang that can be complete is bound within the time that queues take.

    Not those that are `done`: if only waiting members count, what is left of them may wait for too few others."""
    world.add_node("huge", "200")
    for _ in range(2):
        await world.clock.advance(301)
        world.queue.flush_leftover()
        await world.pass_time(12)
    counts = {gang: sum(n.startswith(gang) for n in _names(world)) for gang in GANGS}
    for gang in GANGS:
        if gang not in done and all(counts[other] >= GANGS[other] for other in TOGETHER[gang]):
            assert len(world.bound(gang)) >= GANGS[gang], f"{gang} waits although there is room"
    singles = [name for name in _names(world) if name.startswith("s")]
    assert set(singles) <= set(world.bound())
    world.check()


def _names(world: GangWorld) -> list[str]:
    return [pod.metadata.name for pod in world.pods.values()]


@settings(deadline=None)
@given(st.integers(0, 4), st.permutations(range(4)), st.sampled_from(("once-satisfied", "waiting-and-running")))
def test_a_scheduler_killed_while_binding_leaves_no_gang_in_part(bound: int, order: list[int], policy: str) -> None:
    asyncio.run(_killed(bound, order, policy))


async def _killed(bound: int, order: list[int], policy: str) -> None:
    """All four were let go, `bound` of them had reached the API server: the next scheduler binds the rest."""
    notes = {P + "name": "f", P + "min-available": "4", P + "match-policy": policy}
    pods = [
        pod(f"f{number}", "1", annotations=notes, on="n0" if place < bound else "")
        for place, number in enumerate(order)
    ]
    world = GangWorld(node("n0", cpu="2"), node("n1", cpu="2"))
    try:
        world.cluster.table.set_node(node("n0", cpu="4"))
        world.restore(sorted(pods, key=lambda pod: pod.metadata.name))
        await world.pass_time(12)
        assert world.bound() == ["f0", "f1", "f2", "f3"]
        world.check()
    finally:
        await world.stop()


@settings(deadline=None)
@given(STEPS)
def test_non_strict_gangs_leave_nothing_behind(steps: list[tuple[str, str, int]]) -> None:
    asyncio.run(_non_strict(steps))


async def _non_strict(steps: list[tuple[str, str, int]]) -> None:
    world = GangWorld(node("n0", cpu="3"))
    try:
        for number, (kind, gang, amount) in enumerate(steps):
            if kind == "member":
                notes = {"name": gang, "min-available": str(GANGS[gang]), "waiting-time": "10s", "mode": "NonStrict"}
                world.create(
                    pod(f"{gang}{number}", str(amount), annotations={P + key: value for key, value in notes.items()})
                )
            elif kind == "delete" and world.pods:
                world.delete(sorted(world.pods)[amount % len(world.pods)])
            elif kind == "time":
                await world.pass_time(amount)
            await world.drive()
            world.check()
        await world.pass_time(12)
        for name in list(world.pods):
            world.delete(name)
        await world.clock.settle()
        assert world.cache.pods == {}
        assert world.gangs.gangs.gangs == {}
        assert world.gangs.gangs.groups == {}
        assert world.gangs.rounds._released == set()
    finally:
        await world.stop()
