"""kill -9 between any two cycles, also while members wait at Permit: the next scheduler knows only the API server's
pods.

Nothing of what the killed one had assumed may live on, and no strict gang may be bound in part. The same with a real
process is in `process/test_killed_in_permit.py`.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.api.core import Pod
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.coscheduling.test_gang_property import (
    GANGS,
    GROUPS,
    MOVES,
    P,
    all_fit_in_the_end,
    whole_or_nothing,
)
from tests.control.scheduler.gangworld import GangWorld, RecordingReporter


class Killed(BaseException):
    """No code of the scheduler handles it."""


class Mortal(RecordingReporter):
    """Dies at the end of a cycle."""

    left: int | None = None
    """Cycles to live; None: as long as it likes."""

    def attempt(self, profile: str, result: str, seconds: float) -> None:
        super().attempt(profile, result, seconds)
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                raise Killed


class Lives:
    """One scheduler after the other over one API server."""

    def __init__(self, **nodes: str) -> None:
        self.nodes = dict(nodes)
        self.world = self._born([])

    def _born(self, pods: list[Pod]) -> GangWorld:
        world = GangWorld(*(node(name, cpu=cpu) for name, cpu in self.nodes.items()))
        world.reporter = Mortal()
        world.loop._reporter = world.reporter
        world.restore(pods)
        return world

    async def kill_after(self, cycles: int, rng: random.Random) -> list[str]:
        """Drive for `cycles` cycles and end; the pods that wait at Permit then."""
        world = self.world
        assert isinstance(world.reporter, Mortal)
        world.reporter.left = cycles
        with suppress(Killed):  # there may be less to do
            await world.drive()
        parked = world.parked()
        pods = list(world.pods.values())
        world.pods = {}  # what its tasks do from now on has no effect
        await world.stop()
        rng.shuffle(pods)
        self.world = self._born(pods)
        return parked


def member(name: str, gang: str, amount: int, policy: str) -> Pod:
    notes = {"name": gang, "min-available": str(GANGS[gang]), "waiting-time": "10s", "match-policy": policy}
    if gang in GROUPS:
        notes["groups"] = GROUPS[gang]
    return pod(name, str(amount), annotations={P + key: value for key, value in notes.items()})


@pytest.mark.parametrize("cycles", [1, 2, 3])
async def test_killed_while_so_many_wait(cycles: int) -> None:
    notes = {P + "name": "g", P + "min-available": "4"}
    lives = Lives(n0="2", n1="2")
    try:
        lives.world.create(*(pod(f"g{number}", "1", annotations=notes) for number in range(4)))
        assert len(await lives.kill_after(cycles, random.Random(cycles))) == cycles
        assert lives.world.bound() == []
        lives.world.check()
        await lives.world.pass_time(12)
        assert lives.world.bound() == ["g0", "g1", "g2", "g3"]
        lives.world.check()
    finally:
        await lives.world.stop()


STEPS = st.lists(
    st.one_of(
        *MOVES,
        st.tuples(st.just("kill"), st.just(""), st.integers(1, 6)),
    ),
    min_size=6,
    max_size=24,
)


@settings(deadline=None)
@given(STEPS, st.sampled_from(("only-waiting", "waiting-and-running", "once-satisfied")), st.randoms())
def test_whatever_comes_and_whenever_it_is_killed(
    steps: list[tuple[str, str, int]], policy: str, rng: random.Random
) -> None:
    asyncio.run(_anything(steps, policy, rng))


async def _anything(steps: list[tuple[str, str, int]], policy: str, rng: random.Random) -> None:
    lives = Lives(n0="3")
    ever: set[str] = set()
    try:
        for number, (kind, gang, amount) in enumerate(steps):
            world = lives.world
            match kind:
                case "member":
                    world.create(member(f"{gang}{number}", gang, amount, policy))
                case "single":
                    world.create(pod(f"s{number}", str(amount)))
                case "delete" if world.pods:
                    world.delete(sorted(world.pods)[amount % len(world.pods)])
                case "node":
                    lives.nodes[f"n{number}"] = str(amount)
                    world.add_node(f"n{number}", str(amount))
                case "lose" if lives.nodes:
                    name = sorted(lives.nodes)[amount % len(lives.nodes)]
                    del lives.nodes[name]
                    world.lose_node(name)
                case "time":
                    await world.pass_time(amount)
                case "kill":
                    await lives.kill_after(amount, rng)
            await lives.world.clock.settle()
            for name in GANGS:
                whole_or_nothing(lives.world, name, ever)
            lives.world.check()
        await lives.kill_after(3, rng)
        await all_fit_in_the_end(lives.world, ever if policy == "only-waiting" else set())
    finally:
        await lives.world.stop()
