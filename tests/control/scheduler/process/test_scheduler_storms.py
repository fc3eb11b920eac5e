"""An API server that rejects, fails, loses responses and breaks watches: every pod still gets exactly one node.

The scheduler reaches the embedded server through a door (`front`) that misbehaves as told.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from koordlet.api.core import Lease, Node, Pod
from koordlet.kube import ClientConfig
from tests.control.scheduler.process.front import Asked, Front, refusal
from tests.control.scheduler.process.lives import bindings
from tests.waiting import until

P = "gang.scheduling.koordinator.sh/"


@pytest.fixture
async def front(world: Any) -> AsyncIterator[Front]:
    async with Front(ClientConfig.load(world.server.kubeconfig_path, qps=0)) as api_front:
        yield api_front


async def nodes(world: Any) -> list[str]:
    return [node.metadata.name for node in await world.admin.list(Node)]


async def bind(world: Any, name: str, node: str) -> None:
    """As another scheduler."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    await world.admin.raw("POST", f"/api/v1/namespaces/default/pods/{name}/binding", body=body)


async def leaving(world: Any, name: str) -> bool:
    return (await world.admin.get(Pod, name, "default")).metadata.deletion_timestamp is not None


async def agrees(world: Any, running: Any) -> bool:
    """Whether the scheduler counts what the API server has, no more and no less, and nothing is on its way."""
    assembly = running.scheduler.assembly
    table, cache = assembly.table, assembly.cache
    expected: dict[str, set[str]] = {name: set() for name in await nodes(world)}
    cores: Counter[str] = Counter()
    for pod in await world.admin.list(Pod, "default"):
        if pod.spec.node_name:
            expected.setdefault(pod.spec.node_name, set()).add(pod.metadata.uid)
            cores[pod.spec.node_name] += sum(c.resources.requests["cpu"].milli_value() for c in pod.spec.containers)
    counted = {name: set(table.pods[row]) for name, row in table.rows.items()}
    milli = {name: int(table.requested[0, row]) for name, row in table.rows.items() if table.requested[0, row]}
    return counted == expected and milli == {n: c for n, c in cores.items() if c} and not cache.assumed


async def test_bindings_that_are_refused_are_tried_again_and_made_once(
    world: Any, front: Front, scheduler: Any
) -> None:
    """Each pod meets another refusal; one is bound although its answer was lost, one is bound by another scheduler
    meanwhile."""
    refusals = {
        "conflict": lambda: refusal(409, "Conflict"),
        "toomany": lambda: refusal(429, "TooManyRequests", retry_after=0),
        "broken": lambda: refusal(500, "InternalError"),
        "away": lambda: refusal(503, "ServiceUnavailable"),
    }
    met: Counter[str] = Counter()

    async def storm(request: Asked) -> web.Response | None:
        name = request.binds()
        if not name:
            return None
        met[name] += 1
        if met[name] > 1:
            return None
        if name == "lost":
            assert (await request.forward()).status == 201
            return refusal(500, "InternalError")
        if name == "taken":  # another scheduler is faster and chooses another node
            await bind(world, name, "n2")
            return await request.forward()
        return refusals[name]()

    front.rules.append(storm)
    await world.node("n1", cpu="6")
    await world.node("n2", cpu="0")  # this scheduler places no pod there
    running = await scheduler(through=front.url)
    names = [*refusals, "lost", "taken"]
    for name in names:
        await world.pod(name, cpu="1")
    await until(lambda: met.keys() == set(names))
    placed = await until(lambda: world.bound(*names))
    assert placed == {**dict.fromkeys(names, "n1"), "taken": "n2"}
    await until(lambda: agrees(world, running))
    await until(lambda: bindings(world) == dict.fromkeys(names, 1))
    assert all(met[name] >= 2 for name in refusals)


async def test_conditions_are_written_once_the_storm_is_over(world: Any, front: Front, scheduler: Any) -> None:
    raging = True
    refused: Counter[str] = Counter()

    async def storm(request: Asked) -> web.Response | None:
        name = request.status_of()
        if not name or not raging:
            return None
        refused[name] += 1
        return refusal(503, "ServiceUnavailable") if refused[name] % 2 else refusal(500, "InternalError")

    front.rules.append(storm)
    await world.node("n1", cpu="2")
    running = await scheduler(through=front.url)
    for number in range(6):
        await world.pod(f"big{number}", cpu="90")
    await until(lambda: sum(refused.values()) >= 6)
    await world.pod("small")
    await until(lambda: world.bound("small"))  # others are not held up
    assert [await world.condition(f"big{number}") for number in range(6)] == [""] * 6
    raging = False
    for number in range(6):
        assert "Insufficient cpu" in await until(lambda name=f"big{number}": world.condition(name))
    metrics = (await running.page("/metrics"))[1]
    (failures,) = re.findall(r"^scheduler_pod_status_patch_failures_total (\S+)$", metrics, re.MULTILINE)
    assert float(failures) == sum(refused.values())
    await until(lambda: agrees(world, running))


async def test_preemption_goes_on_when_victims_could_not_be_deleted_at_first(
    world: Any, front: Front, scheduler: Any
) -> None:
    tried: Counter[str] = Counter()

    async def storm(request: Asked) -> web.Response | None:
        if request.method != "DELETE" or "/pods/" not in request.path:
            return None
        tried[request.path] += 1
        return refusal(500, "InternalError") if tried[request.path] <= 2 else None

    front.rules.append(storm)
    await world.apply({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"},
                       "value": 1000})  # fmt: skip
    await world.node("n1", cpu="1")
    running = await scheduler(through=front.url)
    await world.pod("victim")
    await until(lambda: world.bound("victim"))
    await world.pod("important", priorityClassName="high")
    await until(lambda: leaving(world, "victim"))
    assert list(tried.values()) == [3]
    await world.delete_pod("victim")  # there is no kubelet to end it
    await until(lambda: world.bound("important"))
    await until(lambda: agrees(world, running))


async def test_changes_between_two_schedulers_are_recovered(world: Any, front: Front, scheduler: Any) -> None:
    """Watches break and versions are forgotten; meanwhile nodes and pods come, go, are replaced, are bound by hand."""
    sight = asyncio.Event()
    waiting_to_watch: set[str] = set()

    async def gap(request: Asked) -> web.Response | None:
        """A watch that is begun in the gap hears at its end that its version is too old."""
        if not request.watch or sight.is_set():
            return None
        waiting_to_watch.add(request.path)
        await sight.wait()
        return refusal(410, "Expired")

    for name in ("n1", "n2", "n3"):
        await world.node(name, cpu="4")
    running = await scheduler(through=front.url)
    for name in ("stays", "leaves", "replaced"):
        await world.pod(name)
    await world.pod("waits", cpu="100")
    half = {P + "name": "half", P + "min-available": "2", P + "mode": "NonStrict"}
    await world.pod("half-a", annotations=half)
    await world.pod("half-b", cpu="100", annotations=half)
    await until(lambda: world.bound("stays", "leaves", "replaced"))
    waiting = running.scheduler.assembly.waiting
    await until(lambda: [pod.name for pod in waiting.waiting_pods()] == ["half-a"])
    await until(lambda: world.condition("waits"))

    front.rules.append(gap)
    front.end_watches()
    await until(lambda: {"/api/v1/pods", "/api/v1/nodes"} <= waiting_to_watch)
    for name in ("leaves", "replaced", "waits", "half-a"):
        await world.delete_pod(name)
    await world.pod("replaced", cpu="3")
    await world.pod("by-hand", cpu="2", schedulerName="other-scheduler", on="n3")
    await world.pod("waits", cpu="2")
    await world.node("n4", cpu="8")
    await world.admin.delete(Node, "n2")
    sight.set()

    await until(lambda: world.bound("replaced", "waits", "by-hand"))
    await until(lambda: agrees(world, running))
    assert not list(waiting.waiting_pods())  # its wait ended with it
    await world.pod("half-a", annotations=half)
    await until(lambda: [pod.name for pod in waiting.waiting_pods()] == ["half-a"])
    metrics = (await running.page("/metrics"))[1]
    assert 'reason="gone"' in metrics


async def test_bindings_of_the_last_leader_that_arrive_late(world: Any, front: Front, scheduler: Any) -> None:
    """The leader loses its lease while its bindings are on the way; they arrive when the next one has bound all."""
    arrive = asyncio.Event()
    late: dict[str, asyncio.Task[int]] = {}

    async def slow(request: Asked) -> web.Response | None:
        if not (name := request.binds()):
            return None

        async def deliver() -> int:
            await arrive.wait()
            return (await request.forward()).status

        late[name] = asyncio.create_task(deliver())
        await asyncio.Event().wait()  # an answer never comes
        return None

    front.rules.append(slow)
    for name in ("n1", "n2"):
        await world.node(name, cpu="3")
    names = [f"p{number}" for number in range(6)]
    lease = ("--leader-elect-lease-duration=20s", "--leader-elect-renew-deadline=15s",
             "--leader-elect-retry-period=200ms")  # fmt: skip
    first = await scheduler(*lease, through=front.url)
    for name in names:
        await world.pod(name)
    await until(lambda: late.keys() == set(names))
    second = await scheduler(*lease, wait=False)

    async def held_by(name: str) -> None:
        await world.admin.patch(Lease, "koord-scheduler", "koordinator-system", body={"spec": {"holderIdentity": name}})

    async def lost() -> bool:
        """A renewal that is under way may win over us: then it is taken again."""
        await held_by("other")
        await asyncio.sleep(0.1)
        return bool(first.task.done())

    await until(lost)
    assert await first.task == 1
    await held_by("")
    await second.leading()
    await until(lambda: world.bound(*names))
    arrive.set()
    assert await asyncio.gather(*late.values()) == [409] * len(names)
    await until(lambda: bindings(world) == dict.fromkeys(names, 1))
    await until(lambda: agrees(world, second))
