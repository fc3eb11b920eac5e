"""Drains under faults: kill -9 at any request, refused and lost requests, Reservations that expire, pods that die,
confirmations and aborts at any moment. Limits hold, every drain ends, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.control.descheduler.drain.test_drains import arguments
from tests.control.descheduler.drain.world import DrainWorld
from tests.control.descheduler.migration.world import DRAINS, PODS, Killed, no_faults

EXAMPLES = int(os.environ.get("KOORD_DRAIN_EXAMPLES", "40"))
ENDED = ("Complete", "Aborted")
FATES = ("", "", "", "", "", "refuse", "lose", "kill", "kill-after")
PHRASES = (
    "round deliver",
    "round schedule deliver",
    "round schedule round deliver",
    "round schedule deliver round arbitrate run",
    "confirm deliver round arbitrate run",
    "arbitrate run",
    "terminate deliver run",
    "expire deliver round",
    "lose-reservations deliver round",
    "full deliver round",
    "die deliver",
    "wait",
    "restart",
    "second",
    "abort deliver round",
    "delete-drain deliver round",
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.sampled_from(PHRASES), min_size=3, max_size=25),
    st.lists(st.sampled_from(FATES), max_size=100),
    st.integers(1, 3),
    st.sampled_from(["Confirmed", "Aborted", "Rejected"]),
)
def test_no_fault_breaks_a_drain(phrases: list[str], fates: list[str], most: int, end: str) -> None:
    asyncio.run(_check(" ".join(phrases).split(), fates, most, end))


async def _check(steps: list[str], fates: list[str], most: int, end: str) -> None:
    rest = iter(fates)
    world = DrainWorld(
        arguments(max_migrating_globally=most, max_migrating_per_node=2),
        lambda method, path: next(rest, ""),
        budget=2,
        nodes=4,
    )
    world.workload("web", 6, ["n1", "n2"])
    world.workload("db", 5, ["n1", "n2", "n3"])
    world.drain()
    for number, step in enumerate(steps):
        try:
            await _take(world, step, number)
        except Killed:
            world.restart()
        world.check_limits()
    world.transport.faults = no_faults
    for name, document in world.store.objects[DRAINS].items():
        if document["spec"]["confirmState"] == "WaitForConfirm":
            world.confirm(name, end)
    for _ in range(40):
        await world.settle(3, seconds=15.0)
        if all(world.status(name).status.phase in ENDED for name in world.store.objects[DRAINS]):
            break
    await world.settle(3, seconds=5.0)
    _check_end(world, moves_twice="second" in steps)


def _check_end(world: DrainWorld, *, moves_twice: bool) -> None:
    assert world.violations == []
    uids = [pod["metadata"]["uid"] for pod in world.evictions]
    assert len(uids) == len(set(uids))
    moved = {reference["uid"] for job in world.jobs() if (reference := job["status"].get("podRef"))}
    assert moves_twice or not moved & set(uids), "a pod was moved again"
    assert {pod["spec"]["nodeName"] for pod in world.evictions} <= {"n1", "n2"}, "a pod of another node was evicted"
    for name in world.store.objects[DRAINS]:
        assert world.status(name).status.phase in ENDED, world.status(name).status
    assert world.own_reservations() == []
    kept = {
        document["spec"]["nodeName"]
        for document in world.store.objects[DRAINS].values()
        if document["status"].get("phase") == "Complete"
    }
    assert {node for node in ("n1", "n2", "n3", "n4") if world.is_cordoned(node)} == kept
    for name, document in world.store.objects[DRAINS].items():
        if document["status"].get("phase") == "Complete":
            failed = {entry.uid for entry in world.status(name).status.pod_migrations if entry.phase != "Succeed"}
            left = {
                pod["metadata"]["uid"]
                for pod in world.store.objects[PODS].values()
                if pod["spec"]["nodeName"] == document["spec"]["nodeName"]
            }
            assert left <= failed


async def _take(world: DrainWorld, step: str, number: int) -> None:
    match step:
        case "deliver":
            world.deliver()
        case "round":
            await world.drains.round()
        case "arbitrate":
            await world.migration.arbitrate()
        case "run":
            await world.run_jobs()
        case "schedule":
            world.schedule()
        case "full":
            world.schedulable = False
            world.schedule()
            world.schedulable = True
        case "expire":
            world.expire_reservations()
        case "lose-reservations":
            world.delete_reservations()
        case "terminate":
            world.finish_terminations()
        case "die":
            world.kill_pod(number)
            world.finish_terminations()
        case "confirm":
            for name in list(world.store.objects[DRAINS]):
                world.confirm(name)
        case "abort":
            for name in list(world.store.objects[DRAINS])[:1]:
                world.confirm(name, "Aborted")
        case "delete-drain":
            for name in list(world.store.objects[DRAINS])[-1:]:
                del world.store.objects[DRAINS][name]
                world.collect_garbage()
        case "second":
            if "drain-n2" not in world.store.objects[DRAINS]:
                world.drain("n2")
        case "wait":
            await world.clock.advance(5.0 * (number % 7))
        case "restart":
            world.restart()
