"""Several ReservationFirst jobs of one workload at once: they neither take each other's place nor exchange nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from control.descheduler.framework.plugin import EvictOptions
from control.descheduler.migration.decide.places import SiblingMove, spare_place, would_return
from control.descheduler.migration.departures import Departures
from tests.control.descheduler.migration.build import job, pod, reservation
from tests.control.descheduler.migration.test_every_request_faults import FATES, MAX_REQUESTS, survive
from tests.control.descheduler.migration.test_migration_faults import arguments
from tests.control.descheduler.migration.world import PODS, RESERVATIONS, FaultAt, Json, World, no_faults

OWNERS = [{"controller": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "uid-rs"}}]
OTHERS = [{"controller": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "other", "uid": "uid-other"}}]


def excluded(document: Json) -> set[str]:
    """The nodes that the required node affinity of a Reservation excludes."""
    affinity = document["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return {each["values"][0] for each in term["matchFields"] if each["operator"] == "NotIn"}


def bind(world: World, nodes: list[str], *, only: Callable[[Json], bool] = lambda document: True) -> None:
    """koord-scheduler binds every pending Reservation to the first node that it does not exclude."""
    for each in list(world.store.objects[RESERVATIONS].values()):
        if each["status"].get("phase", "Pending") == "Pending" and only(each):
            node = next(name for name in nodes if name not in excluded(each))
            condition = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
            each["status"] = {"phase": "Available", "nodeName": node, "conditions": [condition]}
            world.store.put(RESERVATIONS, each)


async def look(world: World) -> None:
    world.deliver()
    await survive(world, world.migration.arbitrate)
    await survive(world, world.run_jobs)


async def finish(world: World, nodes: list[str], rounds: int = 20) -> None:
    for _ in range(rounds):
        await look(world)
        bind(world, nodes)
        world.finish_terminations()
        await world.clock.advance(3.0)


async def request(world: World, *nodes: str) -> None:
    """A plugin requests the move of one pod of each node."""
    world.deliver()
    for node in nodes:
        chosen = min((each for each in world.state.pods.values() if each.node == node), key=lambda each: each.key)

        async def evict(pod: Any = chosen) -> None:
            await world.plugin.evict(pod, EvictOptions("Test", "load"))

        await survive(world, evict)


def outcome(world: World) -> list[tuple[str, str]]:
    return [(each["status"]["phase"], each["status"].get("reason", "")) for each in world.jobs()]


async def taken_place(fault: FaultAt) -> World:
    """The second pod is evicted first, and its replacement consumes the Reservation of the first one."""
    world = World(arguments(), no_faults, budget=6)
    world.workload("web", 6, ["n1", "n2"])
    world.transport.allowed_disruptions = lambda pod: pod["spec"]["nodeName"] == "n2"
    await request(world, "n1", "n2")
    for _ in range(2):
        await look(world)
        bind(world, ["n8", "n9"])
    world.transport.faults = fault
    for _ in range(8):
        await look(world)
        world.finish_terminations()
        await world.clock.advance(3.0)
    world.transport.allowed_disruptions = lambda pod: True
    await finish(world, ["n8", "n9"], 30)
    return world


async def test_a_job_whose_place_was_taken_gets_that_of_the_other_job() -> None:
    world = await taken_place(FaultAt(-1, ""))
    assert outcome(world) == [("Succeeded", "")] * 2
    assert world.violations == [] and len(world.evictions) == 2
    reserved = world.store.objects[RESERVATIONS].values()
    assert [len(each["status"]["currentOwners"]) for each in reserved] == [1, 1]
    replacements = {each["status"]["podRef"]["uid"] for each in world.jobs()}
    assert replacements == {each["status"]["currentOwners"][0]["uid"] for each in reserved}
    nodes = {each["metadata"]["name"]: each["status"]["nodeName"] for each in reserved}
    for each in world.jobs():
        assert each["status"]["nodeName"] == nodes[each["spec"]["reservationOptions"]["reservationRef"]["name"]]


@pytest.mark.parametrize("fate", FATES)
async def test_a_fault_at_any_request_of_the_exchange(fate: str) -> None:
    for number in range(MAX_REQUESTS):
        fault = FaultAt(number, fate)
        world = await taken_place(fault)
        if not fault.met:
            break
        assert outcome(world) == [("Succeeded", "")] * 2, number
        assert world.violations == [] and len(world.evictions) == 2, number
        reserved = world.store.objects[RESERVATIONS].values()
        assert all(each["status"].get("currentOwners") for each in reserved), number
    assert 10 < number < MAX_REQUESTS, "every request had its fault"


async def test_two_pods_do_not_exchange_their_nodes() -> None:
    """The scheduler prefers the nodes that the two pods leave."""
    world = World(arguments(), budget=6)
    world.workload("web", 6, ["n1", "n2"])
    before = {each["metadata"]["uid"] for each in world.store.objects[PODS].values()}
    await request(world, "n1", "n2")
    await finish(world, ["n1", "n2", "n9"])
    assert outcome(world) == [("Succeeded", "")] * 2
    fresh = [each for each in world.store.objects[PODS].values() if each["metadata"]["uid"] not in before]
    assert [each["spec"]["nodeName"] for each in fresh] == ["n9", "n9"]


async def test_a_pod_stays_while_the_place_of_another_one_is_free_on_its_node() -> None:
    """The first job reserves on n2. Then a pod of n2 is to move: its replacement would come back."""
    world = World(arguments(), budget=6)
    world.workload("web", 6, ["n1", "n2"])
    world.transport.allowed_disruptions = lambda pod: pod["spec"]["nodeName"] != "n1"
    await request(world, "n1")
    for _ in range(3):
        await look(world)
        bind(world, ["n2"])
    await request(world, "n2")
    for _ in range(5):
        await look(world)
        bind(world, ["n1", "n2", "n9"])
        world.finish_terminations()
        await world.clock.advance(3.0)
    assert world.evictions == []
    world.transport.allowed_disruptions = lambda pod: True
    await finish(world, ["n1", "n2", "n9"])
    assert [each["spec"]["nodeName"] for each in world.evictions] == ["n1", "n2"]
    assert outcome(world) == [("Succeeded", "")] * 2
    assert world.violations == []


# Pure


def place(
    name: str, by: str, *, node: str = "n9", phase: str = "Available", consumed: bool = False, **spec: Any
) -> Any:
    owner = {"apiVersion": "v1", "kind": "PodMigrationJob", "name": by, "uid": f"uid-{by}"}
    owners = [{"namespace": "default", "name": "x", "uid": "uid-x"}] if consumed else []
    return reservation(
        name,
        metadata={"ownerReferences": [owner]},
        spec={"owners": OWNERS, **spec},
        status={"phase": phase, "nodeName": node, "currentOwners": owners},
    )


EVICTION = {"type": "Eviction", "status": "False", "reason": "Evicting"}
ASKED = {"type": "Eviction", "status": "Unknown", "reason": "EvictionRequested"}


def sibling(reservation: Any, *conditions: dict[str, str]) -> SiblingMove:
    return SiblingMove(job("b", name="b", phase="Running", status={"conditions": list(conditions)}), reservation)


def cases() -> Iterator[tuple[str, SiblingMove, bool]]:
    yield "evicted, free", sibling(place("r", "b"), EVICTION), True
    yield "taken over before a restart", sibling(place("r", "a"), EVICTION), True
    yield "not evicted", sibling(place("r", "b")), False
    yield "not known to be evicted", sibling(place("r", "b"), ASKED), False
    yield "consumed", sibling(place("r", "b", consumed=True), EVICTION), False
    yield "of a user", sibling(place("r", "user"), EVICTION), False
    yield "on the own node", sibling(place("r", "b", node="n1"), EVICTION), False
    yield "without node", sibling(place("r", "b", node=""), EVICTION), False
    yield "expired", sibling(place("r", "b", phase="Failed"), EVICTION), False
    yield "closed", sibling(place("r", "b", unschedulable=True), EVICTION), False
    yield "missing", sibling(None, EVICTION), False
    yield "for others", sibling(place("r", "b", owners=OTHERS), EVICTION), False


@pytest.mark.parametrize(
    ("case", "other", "usable"), list(cases()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_which_place_a_job_takes_over(case: str, other: SiblingMove, usable: bool) -> None:
    place = spare_place(job(pod("a"), name="a"), pod("a"), (other,))
    assert (place is not None) is usable, case


def test_when_a_replacement_would_return() -> None:
    assert would_return(pod("a"), (sibling(place("r", "b", node="n1")),))
    for other in (place("r", "b"), place("r", "b", node="n1", consumed=True), None):
        assert not would_return(pod("a"), (sibling(other),))
    assert not would_return(pod("a", by="other"), (sibling(place("r", "b", node="n1")),))


def test_departures_are_known_until_the_job_ends() -> None:
    departures = Departures()
    for name, workload, node in (("a", "w", "n1"), ("b", "w", "n2"), ("c", "w", ""), ("d", "v", "n3"), ("e", "", "n4")):
        departures.note(name, workload, node)
    departures.note("a", "w", "n9")  # a new pod of the same name
    assert departures.siblings("a") == ["b", "c"]
    assert departures.nodes(["a", "b", "c"]) == ["n1", "n2"]
    assert departures.siblings("d") == departures.siblings("e") == departures.siblings("unknown") == []
    for name in "abcde":
        departures.drop(name)
    assert len(departures) == 0 and departures._jobs == {}
