"""One fault at every single request of a migration and of a drain: the process is killed before or after the server
has served it, the server refuses it, or its answer is lost. Then everything works again: the migration or drain ends,
no pod is evicted without a Reservation or twice, limits hold, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from control.descheduler.framework.plugin import EvictOptions
from control.descheduler.migration.decide.args import ObjectLimit
from koordlet.api.encoding.wire import Duration
from tests.control.descheduler.drain.test_drains import arguments as drain_arguments
from tests.control.descheduler.drain.world import DrainWorld
from tests.control.descheduler.migration.test_migration_faults import FAST, arguments
from tests.control.descheduler.migration.world import PODS, RESERVATIONS, FaultAt, Killed, World

FATES = ("kill", "kill-after", "refuse", "lose")
MAX_REQUESTS = 200
"""More than a migration or drain of the small cluster makes."""


async def survive(world: World, step: Callable[[], Awaitable[object]]) -> None:
    """One step; after a kill a new process leads."""
    try:
        await step()
    except Killed:
        world.restart()
    world.check_limits()


async def migrate(fault: FaultAt, mode: str, limits: dict[str, ObjectLimit] = FAST) -> World:
    """A plugin requests evictions until it has got them, and the cluster goes on for longer than a job lives."""
    args = arguments(limits, default_job_mode=mode, max_migrating_globally=2, max_migrating_per_node=1)
    world = World(args, fault)
    world.workload("web", 6, ["n1", "n2"])

    async def request() -> None:
        for pod in sorted(world.state.pods.values(), key=lambda pod: pod.key):
            if pod.node in ("n1", "n2"):
                await world.plugin.evict(pod, EvictOptions("Test", "load"))

    for number in range(24):
        world.deliver()
        if number < 3:
            await survive(world, request)
        await survive(world, world.migration.arbitrate)
        await survive(world, world.run_jobs)
        world.schedule_reservations("n9")
        world.finish_terminations()
        await world.clock.advance(3.0)
    for _ in range(12):  # longer than the time to live of every job
        world.deliver()
        await survive(world, world.migration.arbitrate)
        await survive(world, world.run_jobs)
        await world.clock.advance(30.0)
    return world


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("mode", ["ReservationFirst", "EvictDirectly"])
async def test_a_fault_at_any_request_of_a_migration(mode: str, fate: str) -> None:
    for number in range(MAX_REQUESTS):
        fault = FaultAt(number, fate)
        world = await migrate(fault, mode)
        if not fault.met:
            break
        phases = [job["status"].get("phase") for job in world.jobs()]
        assert phases and set(phases) <= {"Succeeded", "Failed"}, (number, world.jobs())
        assert world.violations == [], number
        evicted = [pod["metadata"]["uid"] for pod in world.evictions]
        assert len(evicted) == len(set(evicted)), number
        gone = [job for job in world.jobs() if job["status"].get("reason") == "MissingPod"]
        assert gone == [], f"request {number}: a job forgot that it has evicted its pod"
        ended = {job["spec"]["podRef"]["uid"]: job["status"]["phase"] for job in world.jobs()}
        assert [uid for uid in evicted if ended[uid] != "Succeeded"] == [], (number, world.jobs())
        replaced = {(job["status"].get("podRef") or {}).get("uid") for job in world.jobs()}
        assert not replaced & set(evicted), f"request {number}: a pod was moved again"
        unused = [
            each for each in world.store.objects[RESERVATIONS].values() if not each["status"].get("currentOwners")
        ]
        assert unused == [], number
    assert 10 < number < MAX_REQUESTS, "every request had its fault"


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("kind", ["workload", "namespace"])
async def test_a_fault_at_any_request_evicts_no_second_pod_too_early(kind: str, fate: str) -> None:
    """Two jobs want to evict a pod; the limiter allows one eviction in the time that passes, whatever process leads."""
    limits = {kind: ObjectLimit(duration=Duration("30m"), max_migrating=1)}
    for number in range(MAX_REQUESTS):
        fault = FaultAt(number, fate)
        world = await migrate(fault, "EvictDirectly", limits)
        if not fault.met:
            break
        assert len(world.evictions) <= 1, number
        assert world.violations == [], number
        assert {job["status"].get("phase") for job in world.jobs()} <= {"Succeeded", "Failed"}, number
    assert 10 < number < MAX_REQUESTS, "every request had its fault"
    assert len(world.evictions) == 1, "without a fault"


async def drain(fault: FaultAt) -> DrainWorld:
    world = DrainWorld(drain_arguments(max_migrating_globally=1), fault, budget=2, nodes=3)
    world.workload("web", 4, ["n1", "n2"])
    world.drain(confirm="Confirmed")
    for _ in range(60):
        world.deliver()
        await survive(world, world.drains.round)
        await survive(world, world.migration.arbitrate)
        await survive(world, world.run_jobs)
        world.schedule()
        world.finish_terminations()
        world.collect_garbage()
        await world.clock.advance(6.0)
        if world.status().status.phase == "Complete" and fault.met:
            break
    return world


@pytest.mark.parametrize("fate", FATES)
async def test_a_fault_at_any_request_of_a_drain(fate: str) -> None:
    for number in range(MAX_REQUESTS):
        fault = FaultAt(number, fate)
        world = await drain(fault)
        if not fault.met:
            break
        assert world.status().status.phase == "Complete", (number, world.status().status)
        assert world.violations == [], number
        evicted = [pod["metadata"]["uid"] for pod in world.evictions]
        assert len(evicted) == len(set(evicted)), number
        assert {pod["spec"]["nodeName"] for pod in world.evictions} <= {"n1"}, number
        assert world.own_reservations() == [], number
        failed = {entry.uid for entry in world.status().status.pod_migrations if entry.phase != "Succeed"}
        left = {pod["metadata"]["uid"] for pod in world.store.objects[PODS].values() if pod["spec"]["nodeName"] == "n1"}
        assert left <= failed, number
    assert 10 < number < MAX_REQUESTS, "every request had its fault"
