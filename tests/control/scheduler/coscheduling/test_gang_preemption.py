"""Preemption for gangs in whole cycles: results and nominations (spec 05 §11, §5.6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from control.scheduler.cycle.nominationloss import JOB_FAILURE, JOB_REJECT, JOB_SUCCESS, nomination_after_loss
from control.scheduler.framework.status import PluginStatus, error, unresolvable, unschedulable
from control.scheduler.plugins.coscheduling.jobplanner import JobPlanner, PreemptionPlan, SimulationFailed
from control.scheduler.plugins.coscheduling.metrics import PreemptionMetrics
from control.scheduler.plugins.defaultpreemption import DefaultPreemption
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Pod, PodStatus
from koordlet.api.encoding import wire
from tests.control.scheduler.build import node, pod
from tests.control.scheduler.coscheduling.test_gang_network_placement import SPINES
from tests.control.scheduler.gangworld import GangWorld

P = "gang.scheduling.koordinator.sh/"
Make = Callable[..., "World"]


class World(GangWorld):
    """With an evictor that notes victims; `leave()` lets them go."""

    def __init__(self, *nodes: Any, **more: Any) -> None:
        self.victims: list[str] = []
        self.messages: set[str] = set()
        self.busy: set[str] = set()
        super().__init__(*nodes, evictor=self, **{"enable_preemption": True} | more)

    def evict(self, victims: Sequence[PodInfo], *, by: PodInfo, message: str) -> None:
        self.victims += [victim.key for victim in victims]
        self.messages.add(message)
        self.busy.add(by.uid)

    def clear_nominations(self, pods: Sequence[PodInfo]) -> None:
        return

    def evicting_for(self, uid: str) -> bool:
        return uid in self.busy

    def terminating(self) -> None:
        """The victims are marked and deleted, and take their time to go."""
        status: PodStatus = wire.convert(
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
            PodStatus,
        )
        for key in self.victims:
            old = self.pods[key]
            meta = msgspec.structs.replace(
                old.metadata, deletion_timestamp=wire.convert("2026-01-01T00:00:00Z", wire.Time)
            )
            self.pods[key] = new = msgspec.structs.replace(old, metadata=meta, status=status)
            self.cache.set_pod(new)
        self._through()

    def leave(self) -> None:
        self._through()
        for key in self.victims:
            self.delete(key)

    def _through(self) -> None:
        keys = [pod.metadata.key for pod in self.pods.values() if pod.metadata.uid in self.busy]
        self.busy.clear()
        self.queue.activate(keys)

    def nominations(self) -> dict[str, list[str]]:
        return {
            node: sorted(pod.name for pod in self.queue.nominations.on(node)) for node in self.queue.nominations.nodes()
        }

    def where(self) -> dict[str, str]:
        return {pod.metadata.name: pod.spec.node_name for pod in self.pods.values()}


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    worlds: list[World] = []

    def made(*nodes: Any, **more: Any) -> World:
        worlds.append(World(*nodes, **more))
        return worlds[-1]

    yield made
    for world in worlds:
        await world.stop()


def member(name: str, cpu: str = "16", minimum: int = 2, priority: int = 1000, **more: Any) -> Pod:
    notes = {P + "name": "g", P + "min-available": str(minimum), **more.pop("notes", {})}
    return pod(name, cpu, annotations=notes, priority=priority, **more)


def occupied(world: World, *nodes: str, cpu: str = "16", each: int = 2, priority: int = 1, **more: Any) -> None:
    count = len(world.pods)
    world.restore(
        pod(f"existing-pod-{count + at + 1}", cpu, on=nodes[at // each], priority=priority, **more)
        for at in range(each * len(nodes))
    )


async def test_the_verified_gang(make: Make) -> None:
    world = make(node("node-1", cpu="32"), node("node-2", cpu="32"))
    occupied(world, "node-1", "node-2")
    world.create(member("a"), member("b"))
    await world.drive()
    assert sorted(world.victims) == ["default/existing-pod-1", "default/existing-pod-2"]
    assert world.messages == {
        "koord-scheduler: preempting to accommodate higher priority pods, preemptor: default/g, triggerPod: default/b"
    }
    assert world.nominations() == {"node-1": ["a", "b"]}
    assert world.reporter.nominated == {"a": "node-1", "b": "node-1"}
    reason = "preempt success, alreadyWaitingForBound: 0/2"
    assert world.reporter.messages["a"].endswith(
        f" preemption: preemption already attempted by default/b with message {reason}"
    )
    world.check()
    world.leave()
    await world.pass_time(12)
    assert world.bound("g") == ["a", "b"]
    assert {world.where()[name] for name in "ab"} == {"node-1"}
    assert world.nominations() == {}
    assert len(world.victims) == 2
    world.check()


async def test_waiting_members_keep_their_nodes_by_nomination(make: Make) -> None:
    world = make(node("node-1", cpu="16"), node("node-2", cpu="16"))
    occupied(world, "node-2", each=1)
    world.create(member("a"), member("b"))
    await world.drive()
    assert world.victims == ["default/existing-pod-1"]
    assert world.nominations() == {"node-1": ["b"], "node-2": ["a"]}
    assert world.reporter.nominated == {"a": "node-2", "b": "node-1"}
    assert world.parked() == []
    world.create(pod("other", "16", priority=1000))  # may take neither place meanwhile
    await world.drive()
    assert world.bound() == ["existing-pod-1"]
    world.leave()
    await world.pass_time(12)
    assert world.bound() == ["a", "b"]
    world.check()


async def test_nothing_is_tried_while_victims_leave(make: Make) -> None:
    world = make(node("node-1", cpu="32"), node("node-2", cpu="32"))
    occupied(world, "node-1", "node-2")
    world.create(member("a"), member("b"))
    await world.drive()
    world.queue.activate(["default/b"])
    await world.pass_time(12)  # deletion calls are under way: not in the queue
    assert world.queue.counts()["gated"] >= 1
    world.queue.activate(["default/a"])
    await world.pass_time(12)
    assert world.reporter.messages["a"].endswith(
        "preemption: not eligible due to terminating pod on the nominated node., "
        "Suggestion: {type: WaitingVictimReleased, message: wait until the removed pods are gone}"
    )
    assert len(world.victims) == 2
    world.terminating()
    await world.pass_time(12)
    assert "preemption: not eligible due to terminating pod on the nominated node." in world.reporter.messages["b"]
    assert len(world.victims) == 2
    assert world.nominations() == {"node-1": ["a", "b"]}
    world.leave()
    await world.pass_time(12)
    assert world.bound("g") == ["a", "b"]
    world.check()


async def test_a_rejected_member_keeps_its_nomination(make: Make) -> None:
    """One victim has left, the other takes its time: the member that found its node free is rejected with the gang."""
    world = make(node("node-1", cpu="16"), node("node-2", cpu="16"))
    occupied(world, "node-1", "node-2", each=1)
    world.create(member("a"), member("b"))
    await world.drive()
    assert world.nominations() == {"node-1": ["a"], "node-2": ["b"]}
    world.terminating()
    for _ in range(2):
        world.victims.sort()
        world.delete(world.victims.pop())
        await world.pass_time(12)
        if world.victims:
            assert world.bound() == ["existing-pod-1"]
            assert world.nominations() == {"node-1": ["a"], "node-2": ["b"]}
            assert "gets rejected due to member Pod" in world.reporter.messages["b"]
            world.create(pod("other", "16", priority=1000))
            await world.drive()
            assert world.where()["other"] == ""
            world.delete("default/other")
    assert world.bound() == ["a", "b"]
    world.check()


async def test_no_pod_is_preempted_for_a_part_of_a_gang(make: Make) -> None:
    """Not even for DefaultPreemption, which sees one member alone; nominations are dropped."""
    world = make(node("node-1", cpu="32"), node("node-2", cpu="16"), post=(DefaultPreemption,))
    occupied(world, "node-1")
    world.create(*(member(name, minimum=4) for name in "abcd"))
    await world.drive()
    assert world.victims == []
    assert world.nominations() == {}
    assert set(world.reporter.nominated.values()) == {""}
    text = (
        "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 1 Insufficient cpu, "
        "1 no potential victims."
    )
    assert text in world.reporter.messages.values()
    world.check()
    world.add_node("node-3", "64")
    await world.pass_time(12)
    assert len(world.bound("g")) == 4


async def test_a_single_pod_is_left_to_default_preemption(make: Make) -> None:
    world = make(node("node-1", cpu="32"), post=(DefaultPreemption,))
    occupied(world, "node-1")
    world.create(pod("single", "16", priority=5))
    await world.drive()
    assert len(world.victims) == 1
    assert world.messages == {"koord-scheduler: preempting to accommodate a higher priority pod"}


async def test_preemption_off(make: Make) -> None:
    world = make(node("node-1", cpu="32"), enable_preemption=False)
    occupied(world, "node-1")
    world.create(member("a"), member("b"))
    await world.drive()
    assert world.victims == []
    assert world.reporter.messages["b"] == "0/1 nodes are available: 1 Insufficient cpu."


@pytest.mark.parametrize(
    ("labels", "spec", "text"),
    [
        ({}, {"preemptionPolicy": "Never"}, "preemption: not eligible due to preemptionPolicy=Never."),
        (
            {"scheduling.koordinator.sh/disable-preemptible": "true"}, {},
            "preemption: 0/1 nodes are available: 1 no potential victims.",
        ),
        (
            {"quota.scheduling.koordinator.sh/preemptible": "false"}, {},
            "preemption: 0/1 nodes are available: 1 no potential victims.",
        ),
    ],
    ids=["never", "not preemptible", "kept by its quota"],
)  # fmt: skip
async def test_why_not(make: Make, labels: dict[str, str], spec: dict[str, Any], text: str) -> None:
    world = make(node("node-1", cpu="32"))
    occupied(world, "node-1", labels=labels)
    world.create(member("a", spec=spec), member("b", spec=spec))
    await world.drive()
    assert world.victims == []
    assert world.reporter.messages["b"].endswith(text)
    message = text.removeprefix("preemption: ")
    assert world.reporter.messages["a"].endswith(f"preemption already attempted by default/b with message {message}")


async def test_a_plugin_that_fails_is_an_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(self: JobPlanner, *inputs: Any) -> PreemptionPlan:
        raise SimulationFailed("the plugin is unwell")

    monkeypatch.setattr(JobPlanner, "plan", plan)
    world = make(node("node-1", cpu="32"))
    occupied(world, "node-1")
    world.create(member("a"), member("b"))
    await world.drive()
    assert world.reporter.messages["b"] == "preemption: the plugin is unwell"
    assert world.victims == []
    assert world.parked() == []
    world.check()


async def test_its_own_members_and_its_betters_stay(make: Make) -> None:
    world = make(node("node-1", cpu="32"), node("node-2", cpu="32"))
    notes = {P + "name": "g", P + "min-available": "1", P + "match-policy": "waiting-and-running"}
    world.restore([pod("early", "32", on="node-1", priority=1, annotations=notes)])
    occupied(world, "node-2", priority=2000)
    world.create(member("late", minimum=1, notes={P + "match-policy": "waiting-and-running"}))
    await world.drive()
    assert world.victims == []
    assert world.nominations() == {}


async def test_a_waiting_victim_is_rejected_and_lesser_nominations_go(make: Make) -> None:
    world = make(node("node-1", cpu="32"))
    lesser = {P + "name": "h", P + "min-available": "2", P + "mode": "NonStrict"}
    world.create(pod("h1", "32", priority=1, annotations=lesser), pod("h2", "32", priority=1, annotations=lesser))
    await world.drive()
    assert len(world.parked()) == 1
    (left,) = {"h1", "h2"} - set(world.parked())
    info = world.queue.pending(f"default/{left}")
    assert info is not None
    world.queue.nominations.set(info, "node-1")
    world.create(member("a"), member("b"))
    await world.drive()
    assert world.victims == []  # nothing to delete
    assert "0/1 nodes are available: 1 preempted." in world.reporter.messages.values()
    assert left not in world.nominations().get("node-1", [])
    await world.pass_time(12)
    assert world.bound("g") == ["a", "b"]
    world.check()


async def test_a_gang_that_wants_to_be_close(make: Make) -> None:
    """The block with the cheaper victims is taken (§17, D15), and the plan is carried out when they have left."""
    blocks = {"node-1": "b1", "node-2": "b1", "node-3": "b2", "node-4": "b2"}
    nodes = [node(name, cpu="16", labels={"block": block, "spine": "s1"}) for name, block in blocks.items()]
    world = make(*nodes, aware_network_topology=True)
    assert world.gangs.network is not None
    world.gangs.network.topology = SPINES
    occupied(world, "node-1", "node-2", each=1, priority=50)
    occupied(world, "node-3", "node-4", each=1, priority=1)
    spec = '{"gatherStrategy":[{"layer":"Block","strategy":"MustGather"}]}'
    world.create(*(member(name, notes={P + "network-topology-spec": spec}) for name in "ab"))
    await world.drive()
    assert sorted(world.victims) == ["default/existing-pod-3", "default/existing-pod-4"]
    assert world.nominations() == {"node-3": ["a"], "node-4": ["b"]}
    world.leave()
    await world.pass_time(12)
    assert {name: world.where()[name] for name in "ab"} == {"a": "node-3", "b": "node-4"}
    world.check()


@settings(deadline=None)
@given(
    st.lists(st.integers(2, 8), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from((1, 5, 2000))), max_size=10),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
def test_a_job_is_placed_completely_or_not_at_all(
    nodes: list[int], there: list[tuple[int, int]], sizes: list[int]
) -> None:
    asyncio.run(_whole_or_nobody(nodes, there, sizes))


async def _whole_or_nobody(nodes: list[int], there: list[tuple[int, int]], sizes: list[int]) -> None:
    """Victims leave only for all members, who are bound then without any further victim."""
    world = World(
        *(node(f"n{number}", cpu=str(cores)) for number, cores in enumerate(nodes)), post=(DefaultPreemption,)
    )
    try:
        world.create(*(pod(f"s{number}", str(cpu), priority=low) for number, (cpu, low) in enumerate(there)))
        await world.drive()
        for placed_pod in list(world.pods.values()):
            if not placed_pod.spec.node_name:
                world.delete(placed_pod.metadata.key)
        world.create(*(member(f"m{n}", str(size), minimum=len(sizes)) for n, size in enumerate(sizes)))
        await world.drive()
        world.check()
        victims = list(world.victims)
        assert all(world.pods[key].spec.priority != 2000 for key in victims)
        if victims:
            assert world.bound("g") == []
            assert sum(map(len, world.nominations().values())) == len(sizes)
            world.leave()
            await world.pass_time(12)
            assert len(world.bound("g")) == len(sizes)
        assert len(world.bound("g")) in (0, len(sizes))
        assert world.victims == victims
        assert world.nominations() == {}
        world.check()
    finally:
        await world.stop()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (unschedulable("x", plugin=JOB_SUCCESS), "n1"),
        (unschedulable("x", plugin=JOB_REJECT), None),
        (unschedulable("x", plugin=JOB_FAILURE), ""),
        (unschedulable("x", plugin="Coscheduling"), ""),
        (unresolvable("x", plugin=JOB_SUCCESS), ""),
        (error("x", plugin=JOB_REJECT), ""),
    ],
    ids=["success", "reject", "failure", "another", "not exactly unschedulable", "error"],
)
def test_nomination_after_loss(status: PluginStatus, expected: str | None) -> None:
    assert nomination_after_loss(status, "n1") == expected


def test_idle_series_are_dropped() -> None:
    registry = CollectorRegistry()
    metrics = PreemptionMetrics.of(registry)
    metrics.observe("default/g", "preemption not helpful", 0.1, 0)
    metrics.observe("default/h", "preemption not helpful", 0.1, 299)
    metrics.observe("default/h", "preemption not helpful", 0.1, 300)
    name = "scheduler_job_preemption_duration_seconds_count"
    values = {s.labels["jobName"]: s.value for f in registry.collect() for s in f.samples if s.name == name}
    assert values == {"default/h": 2}
