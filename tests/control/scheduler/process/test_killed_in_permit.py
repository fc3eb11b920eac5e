"""kill -9 exactly while members of a strict gang wait at Permit, or while their bindings are in progress.

A strict gang waits only as long as its turn takes, so an extender of the test's own keeps the last member's answer
back: the others stay at Permit, the scheduler's page shows it, and the process is killed then. Bindings are held at a
door in front of the API server.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from koordlet.kube import ClientConfig
from tests.control.scheduler.process.front import Asked, Front, kubeconfig
from tests.control.scheduler.process.lives import Picky, agrees, begin, bindings
from tests.waiting import until

P = "gang.scheduling.koordinator.sh/"
NODES = {"n1": 2, "n2": 2}


async def member(world: Any, name: str, gang: str = "f", **more: str) -> None:
    await world.pod(name, annotations={P + "name": gang, P + "min-available": "4", P + "mode": "Strict", **more})


async def parked(world: Any, door: Path, number: int) -> None:
    """A scheduler in which `number` members of gang f wait at Permit, and which is then killed."""
    async with Picky("f", number) as picky:
        life = await begin(world.tmp, door, picky.url)
        try:

            async def there() -> bool:
                waiting = await life.waiting("f")
                return len(picky.held) == 1 and waiting == sorted(picky.requested[:number])

            await until(there)
        finally:
            await life.kill()


async def test_killed_while_members_wait_none_is_bound_and_nothing_stays_claimed(world: Any) -> None:
    for name, cpu in NODES.items():
        await world.node(name, cpu=str(cpu))
    names = [f"f{number}" for number in range(4)]
    for name in names:
        await member(world, name)
    admin = world.server.kubeconfig_path
    await parked(world, admin, 3)
    assert not bindings(world)
    assert set((await world.placed()).values()) == {""}
    await world.delete_pod("f3")  # now there are too few
    life = await begin(world.tmp, admin)
    try:
        await until(lambda: agrees(world, life, NODES))
        await world.pod("single", cpu="2")  # gets a whole node: the three that waited hold nothing
        await until(lambda: world.bound("single"))
        await until(lambda: bindings(world) == {"single": 1})
        assert await life.waiting("f") == []
        await member(world, "f3")
        await until(lambda: told(world, names))  # two of four have room
        assert bindings(world) == {"single": 1}
        await world.delete_pod("single")
        await until(lambda: world.bound(*names))
        await until(lambda: agrees(world, life, NODES))
    finally:
        assert await life.end() == 0
    await until(lambda: bindings(world) == {"single": 1, **dict.fromkeys(names, 1)})


async def told(world: Any, names: list[str]) -> bool:
    """Whether one of these has heard that a node was sought in vain."""
    return any([(await world.condition(name)).startswith("0/2 nodes are available") for name in names])


async def test_killed_while_members_wait_beside_bound_ones_and_between_two_bindings(world: Any) -> None:
    """The gang was whole, two members were replaced; policy waiting-and-running has the new ones wait together.

    The first process dies while one of them waits, the second when one binding has arrived and one is held."""
    for name, cpu in NODES.items():
        await world.node(name, cpu=str(cpu))
    policy = {P + "match-policy": "waiting-and-running"}
    for name, node in (("f0", "n1"), ("f1", "n2")):
        await world.pod(name, on=node, annotations={P + "name": "f", P + "min-available": "4", **policy})
    for name in ("f2", "f3"):
        await member(world, name, **policy)
    admin = world.server.kubeconfig_path
    await parked(world, admin, 1)
    assert {name for name, node in (await world.placed()).items() if node} == {"f0", "f1"}
    assert not bindings(world)
    passed, held = await cut_short(world)
    await until(lambda: bindings(world) == {passed: 1})
    life = await begin(world.tmp, admin)
    try:
        placed = await until(lambda: world.bound("f2", "f3"))
        assert {placed["f2"], placed["f3"]} == {"n1", "n2"}
        await until(lambda: agrees(world, life, NODES))
    finally:
        assert await life.end() == 0
    await until(lambda: bindings(world) == {passed: 1, held: 1})


async def cut_short(world: Any) -> tuple[str, str]:
    """A scheduler that lets the gang go and dies when one binding has arrived and one is held: (that, this)."""
    passed: list[str] = []
    held: list[str] = []

    async def cut(request: Asked) -> web.Response | None:
        if not (name := request.binds()):
            return None
        if not passed:
            passed.append(name)
            return None
        held.append(name)
        await asyncio.Event().wait()  # until the caller is gone
        return None

    async with Front(ClientConfig.load(world.server.kubeconfig_path, qps=0), [cut]) as front:
        door = world.tmp / "front.kubeconfig"
        door.write_text(kubeconfig(front))
        life = await begin(world.tmp, door)
        try:
            await until(lambda: held)
            await until(lambda: world.bound(*passed))
        finally:
            await life.kill()
    return passed[0], held[0]
