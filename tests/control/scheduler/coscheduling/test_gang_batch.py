"""Planned gangs placed within one cycle: all members, or none and a reason (spec 05 §12)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from control.scheduler.cycle.batch import BatchMetrics
from control.scheduler.framework.plugin import CycleState, Plugin, PreFilterResult
from control.scheduler.framework.status import SUCCESS, PluginStatus, error, unschedulable, wait
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.coscheduling.test_gang_network_placement import BLOCKS, NODES, SPINES, P
from tests.control.scheduler.gangworld import GangWorld


class Picky(Plugin):
    """Refuses pods by name at a point that a pod's label names."""

    name = "Picky"

    def pre_filter(self, state: CycleState, pod: PodInfo) -> PreFilterResult:
        return PreFilterResult(unschedulable("not today") if _point(pod) == "preFilter" else SUCCESS)

    def reserve(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        if _point(pod) == "fault":
            raise RuntimeError("broken")
        return error("no room") if _point(pod) == "reserve" else SUCCESS

    def permit(self, state: CycleState, pod: PodInfo, row: int) -> PluginStatus:
        return {"permit": unschedulable("not allowed"), "wait": wait(600)}.get(_point(pod), SUCCESS)


def _point(pod: PodInfo) -> str:
    return pod.pod.metadata.labels.get("refused-at", "")


Make = Callable[..., Awaitable[GangWorld]]


def opened(*, batch: bool) -> GangWorld:
    nodes = [node(name, cpu="16", labels={"block": block, "spine": BLOCKS[block]}) for name, block in NODES.items()]
    picky = dict.fromkeys(("preFilter", "reserve", "permit"), (Picky,))
    world = GangWorld(*nodes, aware_network_topology=True, at=picky, batch=batch)
    assert world.gangs.network is not None
    world.gangs.network.topology = SPINES
    return world


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    worlds: list[GangWorld] = []

    async def made(*, batch: bool = True) -> GangWorld:
        worlds.append(opened(batch=batch))
        return worlds[-1]

    yield made
    for world in worlds:
        await world.stop()


def member(number: int, minimum: int, refused_at: str = "", cpu: str = "16") -> Pod:
    spec = '{"gatherStrategy":[{"layer":"Block","strategy":"PreferGather"}]}'
    notes = {"name": "g", "min-available": str(minimum), "network-topology-spec": spec}
    labels = {"refused-at": refused_at} if refused_at else {}
    return pod(f"pod{number}", cpu, labels=labels, annotations={P + key: value for key, value in notes.items()})


def places(world: GangWorld) -> dict[str, str]:
    return {pod.metadata.name: pod.spec.node_name for pod in world.pods.values()}


def value(world: GangWorld, name: str, **labels: str) -> float:
    return world.registry.get_sample_value(f"scheduler_{name}", labels) or 0.0


@pytest.mark.parametrize("batch", [True, False])
async def test_a_batch_and_single_cycles_decide_the_same(make: Make, batch: bool) -> None:
    world = await make(batch=batch)
    world.create(*(member(number, 4) for number in (1, 2, 3, 4)))
    await world.drive()
    assert places(world) == {"pod1": "node-1", "pod2": "node-8", "pod3": "node-2", "pod4": "node-7"}
    assert world.reporter.messages == {}  # no failure is reported, not even for the first member
    assert world.gangs.rounds.current is None
    world.check()
    assert value(world, "inline_batch_schedule_duration_seconds_count", result="success") == batch
    assert value(world, "batch_algorithm_by_pod_duration_seconds_count") == 4 * batch
    assert world.reporter.cycles == (1 if batch else 4)
    count = {
        annotations["internal.scheduling.koordinator.sh/bind-gang-member-count"]
        for annotations in world.bound_with.values()
    }
    assert count == {"4"}


@pytest.mark.parametrize(
    ("point", "text", "reason", "failed"),
    [
        ("preFilter", "failed due to pre-filter failed for pod default/pod2/{uid}, not today", "schedule", True),
        (
            "reserve",
            "failed due to reserve pod default/pod2/{uid} on node {node} failed, err: no room",
            "schedule",
            True,
        ),
        ("permit", "permit failed for pod default/pod2@{node}: not allowed", "permit", False),
    ],
)
async def test_a_rejected_member_rejects_the_whole_job(
    make: Make, point: str, text: str, reason: str, failed: bool
) -> None:
    world = await make()
    pods = [member(1, 3), member(2, 3, point), member(3, 3)]
    world.create(*pods)
    await world.drive()
    assert world.bound() == []
    assert world.parked() == []
    world.check()
    node_name = {1: "node-1", 2: "node-8", 3: "node-2"}[2]
    expected = text.format(uid=pods[1].metadata.uid, node=node_name)
    first = next(message for message in world.reporter.messages.values() if "GangGroup" not in message)
    assert expected in first
    if failed:
        assert first.startswith(
            "0/8 nodes are available: job failed due to job batch schedule failed, assumed 2 pods, failed 1 pods, "
            f"first failed pod default/pod2@{node_name} "
        )
    assert value(world, "batch_assumed_pods_cleanup_total", reason=f"batch_{reason}_failure") == (2 if failed else 3)
    assert value(world, "inline_batch_schedule_duration_seconds_count", result="failure") == 1
    assert world.gangs.rounds.current is None


async def test_members_after_a_rejected_one_on_its_node_fail_too(make: Make) -> None:
    world = await make()
    world.create(*(member(n, 3, "reserve" if n == 2 else "", cpu="4") for n in (1, 2, 3)))
    await world.drive()
    first = next(message for message in world.reporter.messages.values() if "GangGroup" not in message)
    assert "assumed 1 pods, failed 2 pods" in first
    assert first.endswith("err: no room, assumed pods on node node-1: default/pod1.")
    world.check()


async def test_a_job_with_a_member_waiting_at_permit_is_released(make: Make) -> None:
    world = await make()
    world.create(member(1, 2), member(2, 2, "wait"))
    await world.drive()
    assert world.bound() == world.parked() == []
    first = next(message for message in world.reporter.messages.values() if "GangGroup" not in message)
    assert "inline batch permit did not complete: 1 pods are still waiting after all pods were permitted" in first
    world.check()


async def test_a_plugins_exception_leaves_nothing_claimed(make: Make) -> None:
    world = await make()
    world.create(member(1, 2), member(2, 2, "fault"))
    await world.drive()
    assert world.bound() == world.parked() == []
    assert any("RuntimeError: broken" in text for text in world.reporter.messages.values())
    world.check()


async def test_a_failed_binding_of_a_job_is_retried_at_once(make: Make) -> None:
    world = await make()
    world.refused.add("pod2")
    world.create(*(member(number, 2) for number in (1, 2)))
    world.queue.flush_backoff()
    await world.clock.settle()
    world.loop.work(world.queue.pop_run(1))
    await world.clock.settle()
    assert world.bound() == ["pod1"]
    assert value(world, "batch_partial_bind_jobs_total") == 1
    assert value(world, "batch_bind_failures_total", reason="bind_error", phase="Bind") == 1
    assert value(world, "batch_partial_bind_pods_total", status="failure") == 1
    assert world.queue.counts() == {"active": 1, "backoff": 0, "unschedulable": 0, "gated": 0}
    world.refused.clear()
    await world.drive()
    assert world.bound() == ["pod1", "pod2"]
    world.check()


async def test_members_come_from_wherever_the_queue_has_them(make: Make) -> None:
    """Siblings leave the queue when they are placed, and inherit the attempts of the pod whose turn it was."""
    world = await make()
    world.create(*(member(number, 3) for number in (1, 2, 3)))
    await world.clock.settle()
    (first,) = world.queue.pop_run(1)
    world.loop.work([first])
    assert world.queue.counts() == {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 0}
    assert {info.attempts for info in world.cache.pods.values()} == {1}
    await world.clock.settle()
    assert world.bound() == ["pod1", "pod2", "pod3"]
    assert len(world.queue) == 0


def test_registries_without_a_batch_have_the_families() -> None:
    registry = CollectorRegistry()
    BatchMetrics.of(registry)
    assert registry.get_sample_value("scheduler_batch_partial_bind_jobs_total") == 0


_GANGS = st.lists(
    st.lists(st.tuples(st.integers(1, 16), st.sampled_from(("", "", "", "reserve", "permit"))), min_size=1, max_size=5),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=40)
@given(_GANGS, st.randoms(use_true_random=False))
def test_whole_jobs_or_nothing(gangs: Any, rng: random.Random) -> None:
    asyncio.run(_whole(gangs, rng))


async def _whole(gangs: list[list[tuple[int, str]]], rng: random.Random) -> None:
    """Every gang is bound whole or not at all; without refusals, where single cycles would have it."""
    members = [
        (gang, number, cpu, point, len(sizes))
        for gang, sizes in enumerate(gangs)
        for number, (cpu, point) in enumerate(sizes)
    ]
    rng.shuffle(members)
    placements = []
    for batch in (True, False):
        world = opened(batch=batch)
        try:
            for gang, number, cpu, point, size in members:
                spec = '{"gatherStrategy":[{"layer":"Block","strategy":"PreferGather"}]}'
                notes = {"name": f"g{gang}", "min-available": str(size), "network-topology-spec": spec}
                annotations = {P + key: value for key, value in notes.items()}
                labels = {"refused-at": point} if point else {}
                world.create(pod(f"g{gang}-{number}", str(cpu), labels=labels, annotations=annotations))
            await world.drive()
            for gang, sizes in enumerate(gangs):
                points = {point for _, point in sizes}
                if not batch and "permit" in points:
                    continue  # who is refused last, after the others were let go, is missing from them
                bound = world.bound(f"g{gang}")
                assert len(bound) in (0, len(sizes))
                assert not bound or points == {""}
            assert world.parked() == []
            world.check()
            placements.append(places(world))
        finally:
            await world.stop()
    if not any(point for *_, point, _ in members):
        assert placements[0] == placements[1]
