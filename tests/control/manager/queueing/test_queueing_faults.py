"""Job queueing under faults: kill -9 of the manager at any request, new leaders with old caches, requests that are
refused or lose their answer, and writers that come between. No job starts without room, and none is stuck in the end.

QUEUE_HISTORIES: the number of random histories. QUEUES, QUEUED_JOBS: the size of the load.
"""

from __future__ import annotations

import asyncio
import copy
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from control.manager import controller
from control.manager.queueing import queuecontroller, unitstates
from control.manager.queueing.queuecontroller import REFUSED_RETRY_S
from control.standalone.patch.merge_patch import apply
from koordlet.api import names
from koordlet.api.meta import Status
from koordlet.kube.errors import from_status
from tests.control.descheduler.migration.world import FaultAt, no_faults
from tests.control.manager.queueing.world import BACKOFF_S, START_S, QueueWorld

LIMITS = {"team": 8, "a": 4, "b": 6}
PARENTS = {"a": "team", "b": "team"}
"""The children may not use 10 cores together."""
FATES = ("", "", "", "", "", "refuse", "lose", "kill", "kill-after")
QUEUES, MANY_JOBS = int(os.environ.get("QUEUES", "10")), int(os.environ.get("QUEUED_JOBS", "60"))
MAX_REQUESTS = 200
"""More than the small history makes."""


@pytest.fixture(autouse=True)
def _no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rests between two units take real time, in which the fake clock would go on."""

    async def at_once() -> None:
        await asyncio.sleep(0)

    for module in (controller, queuecontroller, unitstates):
        monkeypatch.setattr(module, "yield_to_loop", at_once)


@asynccontextmanager
async def running(world: QueueWorld) -> AsyncIterator[QueueWorld]:
    await world.restart()
    try:
        yield world
    finally:
        await world.stop()


async def quiet(world: QueueWorld) -> None:
    """No cache is behind, and nothing is left to do."""
    for _ in range(5):
        world.settle()
        await world.advance(1.0)


async def finish_all(world: QueueWorld) -> None:
    """Without faults every job gets its turn and ends, and nothing is counted any more."""
    for _ in range(200):
        world.settle()
        await world.advance(1.0)
        world.settle()
        for job in world.running():
            world.finish(job)
        if not world.open():
            break
    await quiet(world)
    left = [(job["metadata"]["name"], world.unit(job["metadata"]["name"])["status"]) for job in world.open()]
    assert left == []
    phases = {unit["status"].get("phase") for unit in world.store.objects["queueunits"].values()}
    assert phases <= {"Succeed"}
    assert not +world.counted() and not +world.admitted()


async def small_history(fault: FaultAt) -> QueueWorld:
    """Two jobs for the room of one: the second starts when the first has ended. A third waits."""
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    async with running(world):
        world.faults = fault
        for suspend in (True, False, True):
            world.submit("a", 3, suspend=suspend)
        for _ in range(2):
            await quiet(world)
            for job in world.running()[:1]:
                world.finish(job)
        await quiet(world)
        world.faults = no_faults
        await quiet(world)
        assert +world.counted() == world.admitted()
        await finish_all(world)
    return world


@pytest.mark.parametrize("fate", ["kill", "kill-after", "refuse", "lose"])
async def test_one_fault_at_every_request(fate: str) -> None:
    for number in range(MAX_REQUESTS):
        fault = FaultAt(number, fate)
        world = await small_history(fault)
        assert world.violations == [], number
        if not fault.met:
            break
    assert 10 < number < MAX_REQUESTS


@pytest.mark.parametrize("seed", range(int(os.environ.get("QUEUE_HISTORIES", "6"))))
async def test_random_histories(seed: int) -> None:
    rng = random.Random(seed)
    world = QueueWorld(LIMITS, PARENTS, rng)
    async with running(world):
        world.is_lively = True
        world.faults = lambda method, path: rng.choice(FATES) if rng.random() < 0.3 else ""
        for _ in range(40):
            what = rng.randrange(8)
            if what < 3:
                world.submit(rng.choice("ab"), rng.randint(1, 4), suspend=rng.random() < 0.7)
            elif what == 3 and world.running():
                world.finish(rng.choice(world.running()))
            elif what == 4 and world.open() and rng.random() < 0.3:
                world.delete(rng.choice(world.open()))
            elif what == 5 and rng.random() < 0.3:
                await world.restart()
            for _ in range(4):
                world.act()
            await world.advance(rng.choice((0.1, 1.0, 1.0, 1.0, 1.0, BACKOFF_S, START_S)))
            assert world.violations == []
        world.is_lively = False
        world.faults = no_faults
        await finish_all(world)
        assert world.violations == []
    assert world.kills > 0, "the history must have faults"


@pytest.mark.parametrize("code", [413, 422, 500])
async def test_a_unit_whose_status_is_not_stored_stops_no_queue(code: int) -> None:
    """A tenant makes the unit so large that it exceeds etcd's limit with its status: 500 in Kubernetes."""
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    large, other = world.submit("a", 1), world.submit("b", 1)
    attempts = 0

    def too_large(method: str, path: str) -> str:
        nonlocal attempts
        if method == "PATCH" and path.endswith(f"queueunits/{large}/status"):
            attempts += 1
            raise from_status(Status(code=code, message="etcdserver: request is too large"))
        return ""

    world.faults = too_large
    async with running(world):
        for _ in range(4):
            await quiet(world)
        assert world.job(large)["spec"]["suspend"] and not world.job(other)["spec"]["suspend"] and attempts == 1
        world.faults = no_faults
        await world.advance(REFUSED_RETRY_S)
        await quiet(world)
        assert not world.job(large)["spec"]["suspend"]
        assert world.violations == []


async def test_many_jobs_of_one_queue_keep_no_other_queue_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuecontroller, "MAX_ADMISSIONS", 3)
    monkeypatch.setattr(queuecontroller, "MAX_MESSAGES", 3)
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    written: list[str] = []

    def note(method: str, path: str) -> str:
        if method == "PATCH" and path.endswith("/status"):
            written.append(path.split("/")[-2])
        return ""

    world.faults = note
    many = [world.submit("a", 0) for _ in range(10)]
    waiting = [world.submit("nowhere", 0) for _ in range(10)]
    last = world.submit("b", 1)
    async with running(world):
        for _ in range(4):
            await quiet(world)
        assert written.index(last) == 3
        assert {world.unit(name)["status"]["phase"] for name in waiting} == {"Enqueued"}
        assert not any(world.job(name)["spec"]["suspend"] for name in (*many, last))


async def test_many_jobs_of_one_namespace_keep_no_other_namespace_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuecontroller, "MAX_MESSAGES", 3)
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    created: list[str] = []
    reported: list[str] = []

    def note(method: str, path: str) -> str:
        if method == "POST" and path.endswith("/queueunits"):
            created.append(path.split("/")[-2])
        elif path.endswith("/status"):
            reported.append(path.split("/")[-4])
        return ""

    world.faults = note
    for namespace in (*["many"] * 20, "default", "default"):
        world.submit("nowhere", 0, namespace=namespace)
    async with running(world):
        for _ in range(4):
            await quiet(world)
    for requests in (created, reported):
        assert requests[:4] in (["many", "default"] * 2, ["default", "many"] * 2)


async def test_many_jobs_in_many_queues_with_kills() -> None:
    """Each queue has room for one job or two, all together for three quarters of that."""
    queues = [f"q{number}" for number in range(QUEUES)]
    limits = {"all": QUEUES * 3, **dict.fromkeys(queues, 4)}
    rng = random.Random(1)
    world = QueueWorld(limits, dict.fromkeys(queues, "all"), rng)
    world.clock.SETTLE_ITERATIONS = 10 * MANY_JOBS  # what one event makes due grows with the jobs
    for number in range(MANY_JOBS):
        world.submit(queues[number % QUEUES], rng.randint(1, 3), suspend=number % 3 > 0)
    async with running(world):
        rounds = 0
        while world.open():
            rounds += 1
            world.settle()
            await world.advance(1.0)
            if rounds % 10 == 0:
                await world.restart()
            for job in world.running():
                if rng.random() < 0.5:
                    world.finish(job)
            assert world.violations == [] and rounds < 50 + 20 * MANY_JOBS // QUEUES
        await finish_all(world)


async def test_a_new_leader_with_an_old_cache_resumes_no_job_that_was_suspended_again() -> None:
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    async with running(world):
        name = world.submit("a", 3)
        await quiet(world)
        unit, job = world.unit(name), world.job(name)
        assert unit["status"]["phase"] == "Running"
        await world.stop()
        dequeued = {**unit, "status": {**unit["status"], "phase": "Dequeued"}}
        world.store.put("queueunits", copy.deepcopy(dequeued))
        old = copy.deepcopy(world.store.objects["queueunits"])
        status = {**unit["status"], "phase": "TimeoutBackoff", "attempts": 1}
        world.store.put("queueunits", {**copy.deepcopy(dequeued), "status": status})
        world.store.put("jobs", {**job, "spec": {**job["spec"], "suspend": True}})
        world.run_pods()
        await world.restart(stale=False, queueunits=old)
        await world.advance(2.0)
        assert world.job(name)["spec"]["suspend"] and world.violations == []


async def test_a_running_job_counts_with_its_pods_if_they_are_more_than_what_was_admitted() -> None:
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    async with running(world):
        name = world.submit("b", 1)
        await quiet(world)
        job = world.job(name)
        world.store.put("jobs", {**job, "spec": {**job["spec"], "parallelism": 5}})
        second = world.submit("a", 4)
        await quiet(world)
        assert world.counted()["b"] == 5000
        assert world.unit(second)["status"]["phase"] == "Enqueued"  # 5 + 4 of 8 cores


async def test_pods_of_a_job_that_is_suspended_again_count_until_they_are_gone() -> None:
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    async with running(world):
        first = world.submit("a", 4)
        await quiet(world)
        unit = world.unit(first)
        status = {**unit["status"], "phase": "TimeoutBackoff", "attempts": 1}
        world.store.put("queueunits", {**copy.deepcopy(unit), "status": status})
        world.deliver("queueunits")  # its pods still run
        second = world.submit("b", 6)
        world.deliver("jobs")
        await world.advance(3.0)
        world.deliver("queueunits")
        await world.advance(3.0)
        assert world.unit(second)["status"]["phase"] == "Enqueued"  # 4 + 6 of 8 cores
        await quiet(world)
        await quiet(world)
        assert world.unit(second)["status"]["phase"] == "Running"


def orphan(world: QueueWorld, name: str) -> None:
    """`kubectl delete --cascade=orphan`: the garbage collector leaves the unit, which has no owner any more."""
    world.collect = lambda: None  # type: ignore[method-assign]
    world.delete(world.job(name))


def hold_by_finalizer(world: QueueWorld, name: str) -> None:
    job = world.job(name)
    meta = {**job["metadata"], "deletionTimestamp": "2027-01-15T08:00:00Z", "finalizers": ["tenant/x"]}
    world.finish(world.store.put("jobs", {**job, "metadata": meta}))
    world.store.put("jobs", {**world.job(name), "status": {"ready": 0, "active": 0}})


def leave_queue(world: QueueWorld, name: str) -> None:
    world.finish(world.job(name))
    job = world.job(name)
    world.store.put("jobs", {**job, "metadata": {**job["metadata"], "annotations": {}}})


@pytest.mark.parametrize("leave", [orphan, hold_by_finalizer, leave_queue])
async def test_a_unit_whose_job_can_have_no_pods_any_more_holds_no_quota(
    leave: Callable[[QueueWorld, str], None],
) -> None:
    """A tenant may bring this about for any number of jobs, and would keep all others out of a quota."""
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    async with running(world):
        first = world.submit("a", 4)
        await quiet(world)
        assert world.unit(first)["status"]["phase"] == "Running"
        leave(world, first)
        second = world.submit("a", 4)
        await quiet(world)
        await quiet(world)
        assert world.unit(first)["status"]["phase"] in ("Failed", "Succeed")
        assert world.unit(second)["status"]["phase"] == "Running"
        assert +world.counted() == world.admitted() and world.violations == []


async def test_a_unit_is_not_ended_because_the_cache_of_jobs_is_behind() -> None:
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    async with running(world):
        name = world.submit("a", 4)
        await quiet(world)
        await world.restart(stale=False, jobs={})
        await world.advance(5.0)
        assert world.unit(name)["status"]["phase"] == "Running"


async def test_pods_that_have_no_node_hold_no_quota() -> None:
    """With a large `parallelism` a job that was admitted as a small one would block its quota by waiting pods."""
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    async with running(world):
        name = world.submit("b", 1)
        await quiet(world)
        pod = copy.deepcopy(world.pods_of(world.job(name))[0])
        for number in range(20):
            meta = {**pod["metadata"], "name": f"waiting-{number}", "uid": f"waiting-{number}"}
            spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
            world.store.put("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
        second = world.submit("b", 4)
        await quiet(world)
        assert world.counted()["b"] == 5000
        assert world.unit(second)["status"]["phase"] == "Running"


async def test_a_unit_of_another_object_is_not_polled() -> None:
    """A tenant may make any number of units with the names of its jobs."""
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"}
    reference = {"apiVersion": "tenant/v1", "kind": "Job", "name": "other", "uid": "other"}
    meta = {"name": "j1", "namespace": "default", "ownerReferences": [owner]}
    world.collect = lambda: None  # type: ignore[method-assign]
    world.store.put("queueunits", {"metadata": meta, "spec": {"consumerRef": reference}, "status": {}})
    async with running(world):
        name = world.submit("a", 1)
        await quiet(world)
        assert name == "j1" and not world.jobs.queue._due
        del world.store.objects["queueunits"]["default/j1"]
        await quiet(world)
        assert world.unit(name)["status"]["phase"] == "Running"


async def test_a_unit_that_the_cache_cannot_follow_stops_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of its status is a conflict: its newest version is one that the cache does not keep."""
    monkeypatch.setattr(queuecontroller, "MAX_ADMISSIONS", 1)
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    stuck, other = world.submit("a", 1), world.submit("a", 1)
    attempts = 0

    def conflict(method: str, path: str) -> str:
        nonlocal attempts
        if method == "PATCH" and path.endswith(f"queueunits/{stuck}/status"):
            attempts += 1
            raise from_status(Status(code=409, reason="Conflict", message="the object has been modified"))
        return ""

    world.faults = conflict
    async with running(world):
        await quiet(world)
        await quiet(world)
        assert world.unit(other)["status"]["phase"] == "Running" and attempts == 1


@pytest.mark.parametrize("change", [{"spec": {"queue": "free"}}, {"metadata": {"labels": {"costly": "no"}}}])
async def test_a_reserved_unit_avoids_no_check_by_a_change(change: dict[str, Any]) -> None:
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    check = {"name": "budget", "labelSelector": {"matchExpressions": [{"key": "costly", "operator": "DoesNotExist"}]}}
    for name, checks in (("checked", [check]), ("free", [])):
        annotations = {names.ANNOTATION_AVAILABLE_QUOTA: "a"}
        meta = {"name": name, "namespace": names.KOORDINATOR_NAMESPACE, "annotations": annotations}
        world.store.put("queues", {"metadata": meta, "spec": {"admissionChecks": checks}, "status": {}})
    async with running(world):
        name = world.submit("checked", 1)
        await quiet(world)
        assert world.unit(name)["status"]["phase"] == "Reserved"
        world.store.put("queueunits", apply(copy.deepcopy(world.unit(name)), change))
        await quiet(world)
        assert world.unit(name)["status"]["phase"] == "Reserved"
        world.store.put(
            "queues", {**world.store.objects["queues"][f"{names.KOORDINATOR_NAMESPACE}/checked"], "spec": {}}
        )
        await quiet(world)
        assert world.unit(name)["status"]["phase"] == "Running", "no queue has the check any more"


async def test_a_pass_yields_between_two_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant makes any number of units: webhooks are answered meanwhile."""
    world = QueueWorld(LIMITS, PARENTS, random.Random(1))
    for _ in range(20):
        world.submit("nowhere", 1)
    async with running(world):
        await quiet(world)
        yields = 0

        async def counted() -> None:
            nonlocal yields
            yields += 1

        monkeypatch.setattr(queuecontroller, "yield_to_loop", counted)
        await world.queue._pass()
        assert yields >= 3 * 20
