"""The migration controller under faults: kill -9 at any request, refused and lost requests, Reservations that expire,
pods that die meanwhile. Limits hold, every job ends, and no pod is evicted without a Reservation."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.descheduler.framework.plugin import EvictOptions
from control.descheduler.migration.decide.args import MigrationControllerArgs, ObjectLimit
from koordlet.api.core import Node
from koordlet.api.encoding import wire
from koordlet.api.encoding.wire import Duration
from tests.control.descheduler.migration.build import NOW
from tests.control.descheduler.migration.world import JOBS, PODS, RESERVATIONS, Killed, World, no_faults

FAST = {"workload": ObjectLimit(duration=Duration("1s"), max_migrating=1)}


def arguments(limits: dict[str, ObjectLimit] = FAST, **settings: Any) -> MigrationControllerArgs:
    return MigrationControllerArgs(object_limiters=limits, evict_qps=1000, evict_burst=1000, **settings)


async def request_all(world: World) -> int:
    """A plugin requests the eviction of every pod; returns how many jobs it got."""
    world.deliver()
    return sum([await world.plugin.evict(pod, EvictOptions("Test", "load")) for pod in list(world.state.pods.values())])


async def settle(world: World, rounds: int = 40, seconds: float = 3.0) -> None:
    """A cluster in which everything works; `seconds` pass per round."""
    for _ in range(rounds):
        world.deliver()
        await world.migration.arbitrate()
        await world.run_jobs()
        world.schedule_reservations("n9")
        world.finish_terminations()
        await world.clock.advance(seconds)
        world.check_limits()


@pytest.mark.parametrize("mode", ["ReservationFirst", "EvictDirectly"])
async def test_pods_move_one_after_the_other(mode: str) -> None:
    world = World(arguments(default_job_mode=mode, max_migrating_per_node=1))
    world.workload("web", 6, ["n1", "n2"])
    before = {pod["metadata"]["uid"] for pod in world.store.objects[PODS].values()}
    assert await request_all(world) == 2  # two of six may migrate
    await settle(world)
    assert [job["status"]["phase"] for job in world.jobs()] == ["Succeeded"] * 2
    assert {pod["metadata"]["uid"] for pod in world.evictions} <= before
    assert len(world.evictions) == 2
    assert world.violations == []
    if mode == "ReservationFirst":
        nodes = [pod["spec"]["nodeName"] for pod in world.store.objects[PODS].values()]
        assert nodes.count("n9") == 2


@pytest.mark.parametrize("scheduler", [True, False], ids=["no room", "no scheduler runs"])
async def test_without_a_place_no_pod_is_evicted_and_the_job_times_out(scheduler: bool) -> None:
    world = World(arguments())
    world.workload("web", 4, ["n1"])
    await request_all(world)
    for _ in range(110):
        world.deliver()
        await world.migration.arbitrate()
        await world.run_jobs()
        if scheduler:
            world.schedule_reservations(None)
        await world.clock.advance(3.0)
    assert world.evictions == []
    assert {job["status"]["reason"] for job in world.jobs()} == {"Timeout"}
    assert world.store.objects[RESERVATIONS] == {}
    await world.clock.advance(300.0)
    world.deliver()
    await world.migration.scavenge()
    assert world.jobs() == []


async def test_a_finalizer_that_never_finishes_ends_the_job_by_timeout() -> None:
    """The pod is evicted once and stays; meanwhile its job counts for the limits."""
    world = World(arguments(max_migrating_globally=1))
    world.workload("web", 6, ["n1"])
    assert await request_all(world) == 1
    for _ in range(110):
        world.deliver()
        await world.migration.arbitrate()
        await world.run_jobs()
        world.schedule_reservations("n9")
        if world.clock.now() - NOW < 280:
            assert await request_all(world) == 0
        await world.clock.advance(3.0)
    assert len(world.evictions) == 1
    (first, *_) = world.jobs()
    assert (first["status"]["phase"], first["status"]["reason"]) == ("Failed", "Timeout")
    assert world.store.objects[RESERVATIONS] == {}
    assert world.violations == []


@pytest.mark.parametrize("change", ["expire", "delete"])
async def test_an_outdated_cache_does_not_evict(change: str) -> None:
    """The informer still shows the Reservation as available; the server does not."""
    world = World(arguments())
    world.workload("web", 6, ["n1"])
    await request_all(world)
    for step in ("deliver", "arbitrate", "run", "bind", "deliver", change, "run", "run"):
        await _take(world, step, 8)
    assert world.evictions == []
    assert world.violations == []


async def test_a_budget_delays_the_eviction() -> None:
    world = World(arguments(default_job_mode="EvictDirectly"), budget=0)
    world.workload("web", 6, ["n1"])
    await request_all(world)
    await settle(world, rounds=10)
    assert world.evictions == []
    world.transport.allowed_disruptions = lambda pod: True
    await settle(world, rounds=20)
    assert len(world.evictions) == 2
    assert world.violations == []


async def test_an_eviction_without_an_answer_stays_counted_when_its_repetition_is_refused() -> None:
    """The pod is gone because of the first request, and the cache still has it when the second gets 404."""
    limits = {"workload": ObjectLimit(duration=Duration("30m"), max_migrating=1)}
    world = World(arguments(limits, default_job_mode="EvictDirectly", max_migrating_globally=1))
    world.workload("web", 6, ["n1"])
    await request_all(world)
    world.deliver()
    await world.migration.arbitrate()
    world.transport.faults = lambda method, path: "lose" if path.endswith("/eviction") else ""
    await world.run_jobs()
    assert len(world.evictions) == 1
    world.transport.faults = no_faults
    world.finish_terminations()
    await world.clock.advance(3.0)
    await world.run_jobs()
    sibling = next(iter(world.state.pods.values())).pod
    assert world.migration.limiter.exceeded(sibling, world.clock.monotonic())
    await settle(world)
    assert [job["status"]["phase"] for job in world.jobs()] == ["Succeeded"]
    assert len(world.evictions) == 1


async def test_a_job_with_a_forged_mark_is_arbitrated() -> None:
    world = World(arguments(max_migrating_globally=1, default_job_mode="EvictDirectly"), budget=0)
    world.workload("web", 6, ["n1"])
    await request_all(world)
    world.deliver()
    await world.migration.arbitrate()
    other = next(pod for key, pod in world.store.objects[PODS].items() if key != _pod_of(world.jobs()[0]))
    ref = {"namespace": "default", "name": other["metadata"]["name"]}
    mark = {"descheduler.koordinator.sh/passed-arbitration": "true"}
    world.store.put(JOBS, {"metadata": {"name": "forged", "annotations": mark}, "spec": {"podRef": ref}, "status": {}})
    for _ in range(2):
        await settle(world, rounds=5)
        assert world.violations == []
        assert world.store.objects[JOBS]["forged"]["status"].get("phase", "") == ""
        world.restart()


def _pod_of(job: dict[str, Any]) -> str:
    return f"{job['spec']['podRef']['namespace']}/{job['spec']['podRef']['name']}"


PHRASES = (
    "evict deliver arbitrate run",
    "evict evict evict deliver arbitrate run",
    "deliver arbitrate run",
    "bind deliver",
    "bind deliver run",
    "bind deliver run",
    "bind deliver expire run",
    "bind deliver delete run",
    "full deliver run",
    "terminate deliver run",
    "terminate",
    "die deliver run",
    "die",
    "run",
    "wait",
    "restart",
)
FATES = ("", "", "", "", "refuse", "lose", "kill", "kill-after")


EXAMPLES = int(os.environ.get("KOORD_MIGRATION_EXAMPLES", "40"))


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.sampled_from(PHRASES), min_size=3, max_size=20),
    st.lists(st.sampled_from(FATES), max_size=80),
    st.sampled_from(["ReservationFirst", "EvictDirectly"]),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_no_fault_breaks_an_invariant(phrases: list[str], fates: list[str], mode: str, most: int, budget: int) -> None:
    asyncio.run(_check_faults(" ".join(phrases).split(), fates, mode, most, budget))


async def _check_faults(steps: list[str], fates: list[str], mode: str, most: int, budget: int) -> None:
    rest = iter(fates)
    args = arguments(default_job_mode=mode, max_migrating_globally=most, max_migrating_per_node=2)
    world = World(args, lambda method, path: next(rest, ""), budget=budget)
    world.workload("web", 6, ["n1", "n2"])
    world.workload("db", 5, ["n1", "n2", "n3"])
    world.deliver()
    for number, step in enumerate(steps):
        try:
            await _take(world, step, number)
        except Killed:
            world.restart()
        world.check_limits()
    world.transport.faults = no_faults
    await settle(world, rounds=35, seconds=10.0)  # longer than the time to live of every job
    assert world.violations == []
    assert all(job["status"].get("phase") in ("Succeeded", "Failed") for job in world.jobs())
    failed = {job["metadata"]["uid"] for job in world.jobs() if job["status"]["phase"] == "Failed"}
    owners = {
        reference["uid"]
        for each in world.store.objects[RESERVATIONS].values()
        for reference in each["metadata"].get("ownerReferences", [])
    }
    assert not failed & owners
    uids = [pod["metadata"]["uid"] for pod in world.evictions]
    assert len(uids) == len(set(uids))
    missing = {job["spec"]["podRef"]["uid"] for job in world.jobs() if job["status"].get("reason") == "MissingPod"}
    assert not missing & set(uids), "a job forgot that it has evicted its pod"
    replaced = {job["status"].get("podRef", {}).get("uid") for job in world.jobs()}
    requested = {job["spec"]["podRef"].get("uid") for job in world.jobs()}
    assert set(uids) <= requested
    assert not {uid for uid in uids if uid in replaced} - requested


async def _take(world: World, step: str, number: int) -> None:
    match step:
        case "evict":
            pods = sorted(world.state.pods.values(), key=lambda pod: pod.key)
            if pods:
                await world.plugin.evict(pods[number % len(pods)], EvictOptions("Test", "load"))
        case "arbitrate":
            await world.migration.arbitrate()
        case "run":
            await world.run_jobs()
        case "deliver":
            world.deliver()
        case "bind":
            world.schedule_reservations(f"n{number % 4 + 1}")
        case "full":
            world.schedule_reservations(None)
        case "expire":
            world.expire_reservations()
        case "delete":
            world.delete_reservations()
        case "terminate":
            world.finish_terminations()
        case "die":
            world.kill_pod(number)
        case "wait":
            await world.clock.advance(5.0 * (number % 7))
        case "restart":
            world.restart()


async def test_node_fit_keeps_pods_that_fit_nowhere_else() -> None:
    for fits in (True, False):
        world = World(arguments(node_fit=True, node_selector="pool=a"))
        world.workload("web", 6, ["n1"])
        world.deliver()
        for name in ("n1", "n2"):
            labels = {"pool": "a" if fits or name == "n1" else "b"}
            world.state.set_node(wire.convert({"metadata": {"name": name, "labels": labels}}, Node))
        assert await request_all(world) == (2 if fits else 0)
