"""Drains in a small cluster: plan, confirmation, migration, abort (spec 07 §12)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from control.descheduler.migration.decide.args import MigrationControllerArgs, ObjectLimit
from koordlet.api.encoding.wire import Duration
from koordlet.api.names import ANNOTATION_DESCHEDULER_EVICT
from tests.control.descheduler.drain.world import PLANNING, DrainWorld
from tests.control.descheduler.migration.world import DRAINS, JOBS, NODES, PODS, RESERVATIONS

FAST = {"workload": ObjectLimit(duration=Duration("1s"), max_migrating=1)}
DAEMON = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "ds"}]}
STATIC = {
    "annotations": {"kubernetes.io/config.source": "file"},
    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1", "controller": True}],
}
LOCAL: dict[str, Any] = {"spec": {"volumes": [{"name": "cache", "emptyDir": {}}]}}


def arguments(**settings: Any) -> MigrationControllerArgs:
    limits = {"max_migrating_per_workload": 3, "max_unavailable_per_workload": 3, "max_migrating_per_node": 3}
    return MigrationControllerArgs(object_limiters=FAST, evict_qps=1000, evict_burst=1000, **{**limits, **settings})


def cluster(**settings: Any) -> DrainWorld:
    """Three pods of a workload on n1, and three on n2."""
    world = DrainWorld(arguments(**settings), budget=6)
    world.workload("web", 6, ["n1", "n2"])
    return world


async def test_pods_move_after_confirmation_to_reserved_places() -> None:
    world = cluster()
    world.special_pod("agent", metadata=DAEMON)
    world.special_pod("kube-proxy", metadata=STATIC)
    world.drain()
    await world.settle()
    assert world.phases() == ["Available"] * 3
    assert {entry.target_node for entry in world.entries().values()} <= {"n2", "n3"}
    assert world.status().status.is_true("OnceAvailable")
    assert world.evictions == [] and world.jobs() == []
    world.confirm()
    await world.settle(30)
    assert world.status().status.phase == "Complete", [world.status().status, world.jobs()]
    assert world.status().status.message == "complete; no pod remains"
    assert world.phases() == ["Succeed"] * 3
    assert world.on("n1") == ["agent", "kube-proxy"]
    assert len(world.evictions) == 3 and world.violations == []
    assert {job["status"]["phase"] for job in world.jobs()} == {"Succeeded"}
    assert world.node()["spec"]["taints"] == [
        {"key": "drain.descheduler.koordinator.sh/drain-node", "value": "drain-n1", "effect": "NoSchedule"}
    ]
    world.special_pod("late")
    await world.settle(2)
    assert world.status().status.is_true("UnexpectedPodAfterCompleteExists")
    assert world.on("n1") == ["agent", "kube-proxy", "late"]


@pytest.mark.parametrize("state", ["Rejected", "Aborted"])
async def test_a_rejected_drain_leaves_nothing(state: str) -> None:
    world = cluster()
    before = json.dumps([world.node()["metadata"]["labels"], world.node()["spec"].get("taints")])
    world.drain(cordonPolicy={"mode": "Label", "labels": {"team": "a", "zone": "other"}})
    await world.settle(4)
    assert world.node()["metadata"]["labels"] == {"zone": "a", "team": "a", PLANNING: ""}
    assert len(world.own_reservations()) == 3
    world.confirm(state=state)
    await world.settle(2)
    assert world.status().status.phase == "Aborted"
    assert world.own_reservations() == []
    assert json.dumps([world.node()["metadata"]["labels"], world.node()["spec"].get("taints")]) == before
    assert world.evictions == []
    assert len(world.on("n1")) == 3


async def test_an_aborted_drain_stops_between_two_pods() -> None:
    world = cluster(max_migrating_globally=1)
    world.drain(confirm="Confirmed")
    for _ in range(30):
        await world.settle(1)
        if world.evictions:
            break
    world.confirm(state="Aborted")
    await world.settle(10)
    assert len(world.evictions) == 1
    assert len(world.on("n1")) == 2
    assert not world.is_cordoned() and world.own_reservations() == []
    assert {job["status"].get("phase") for job in world.jobs()} <= {"Succeeded"}


async def test_without_room_pods_are_unavailable_and_stay() -> None:
    world = cluster()
    world.schedulable = False
    world.drain(confirm="Confirmed")
    await world.settle()
    assert world.phases() == ["Unavailable"] * 3
    assert world.status().status.is_true("UnavailableReservationExists")
    assert world.status().status.phase == "Running"
    assert world.status().status.message == "pods: 3 have no place on another node"
    assert next(iter(world.entries().values())).message == "no room: 0/3 nodes"
    assert world.evictions == []
    world.schedulable = True
    await world.settle(30)
    assert world.status().status.phase == "Complete", [world.status().status, world.jobs()]


async def test_without_a_scheduler_a_drain_says_what_it_waits_for() -> None:
    world = cluster()
    world.drain(confirm="Confirmed")
    for _ in range(5):
        await world.once()
        await world.clock.advance(3.0)
    assert world.phases() == ["Ready"] * 3
    assert world.status().status.message == "pods: 3 wait for a Reservation"
    assert next(iter(world.entries().values())).message.endswith("waits for koord-scheduler")


@pytest.mark.parametrize("forced", [False, True])
async def test_a_pod_with_local_storage(forced: bool) -> None:
    world = cluster()
    world.special_pod("local", **LOCAL)
    world.drain(annotations={ANNOTATION_DESCHEDULER_EVICT: ""} if forced else {}, confirm="Confirmed")
    await world.settle(30)
    assert world.entries()["local"].phase == ("Succeed" if forced else "Unmigratable")
    assert world.status().status.phase == "Complete", [world.status().status, world.jobs()]
    assert world.status().status.is_true("UnmigratablePodExists") is not forced
    if not forced:
        assert "local storage" in world.entries()["local"].message
        assert world.status().status.message == "complete; 1 pods remain on the node"
        assert world.on("n1") == ["local"]
    assert world.violations == []


async def test_pods_may_end_by_themselves_first() -> None:
    world = cluster()
    policy = {"drain.descheduler.koordinator.sh/migration-policy": '{"mode":"MigrateDirectly"}'}
    world.special_pod("hasty", metadata={"annotations": policy})
    broken = {"drain.descheduler.koordinator.sh/migration-policy": "{"}
    world.special_pod("broken", metadata={"annotations": broken})
    world.drain(policy={"mode": "WaitFirst", "waitDuration": "10m"})
    await world.settle(4)
    phases = {name: entry.phase for name, entry in world.entries().items()}
    assert phases.pop("hasty") == "Available"
    assert set(phases.values()) == {"Waiting"}
    assert "is malformed; may end by itself until" in world.entries()["broken"].message
    assert not world.status().status.is_true("OnceAvailable")
    await world.clock.advance(600.0)
    await world.settle(4)
    assert set(world.phases()) == {"Available"}


async def test_limits_of_migrations_hold_and_a_budget_delays() -> None:
    world = DrainWorld(arguments(max_migrating_globally=1), budget=0)
    world.workload("web", 6, ["n1", "n2"])
    world.drain(confirm="Confirmed")
    await world.settle(20)
    assert world.evictions == [] and world.phases() == ["Migrating"] * 3
    messages = {entry.message for entry in world.entries().values()}
    assert "the job waits for arbitration: the limits of MigrationController" in messages
    world.transport.allowed_disruptions = lambda pod: True
    await world.settle(80)
    assert world.status().status.phase == "Complete" and world.violations == []


async def test_jobs_that_the_scavenger_deletes_are_created_again() -> None:
    world = DrainWorld(arguments(), budget=0)
    world.workload("web", 6, ["n1", "n2"])
    world.drain(confirm="Confirmed")
    await world.settle(10)
    names = {job["metadata"]["uid"] for job in world.jobs()}
    await world.clock.advance(1801.0)
    await world.settle(10)
    assert world.phases() == ["Migrating"] * 3
    assert names.isdisjoint(job["metadata"]["uid"] for job in world.jobs())


async def test_expired_reservations_are_replaced() -> None:
    world = cluster()
    world.drain()
    await world.settle(4)
    first = {each["metadata"]["uid"] for each in world.store.objects[RESERVATIONS].values()}
    world.expire_reservations()
    await world.once()
    assert world.phases() == ["Unavailable"] * 3
    await world.settle(4)
    assert world.phases() == ["Available"] * 3
    assert first.isdisjoint(each["metadata"]["uid"] for each in world.store.objects[RESERVATIONS].values())


async def test_foreign_objects_of_the_same_name_are_left_alone() -> None:
    world = cluster()
    world.drain()
    await world.settle(4)
    name = world.own_reservations()[0]
    world.store.objects[RESERVATIONS][name]["metadata"].pop("ownerReferences")
    world.store.put(RESERVATIONS, world.store.objects[RESERVATIONS][name])
    await world.settle(2)
    assert world.status().status.is_true("UnexpectedReservationExists")
    assert world.phases() == ["Available", "Available", "Unavailable"]
    world.confirm(state="Rejected")
    await world.settle(2)
    assert name in world.store.objects[RESERVATIONS]


async def test_the_second_drain_of_a_node_waits() -> None:
    world = cluster()
    world.drain()
    await world.settle(1)
    world.drain(name="again")
    await world.settle(4)
    assert world.status("again").status.phase == "Pending"
    assert world.status("again").status.message == "waits for DrainNode drain-n1, which drains the same node"
    world.confirm()
    await world.settle(30)
    assert world.status("again").status.phase == "Running"  # the first one is complete
    del world.store.objects[DRAINS]["drain-n1"]
    await world.settle(2)
    assert world.is_cordoned()
    world.confirm("again", "Aborted")
    await world.settle(2)
    assert not world.is_cordoned()


async def test_a_deleted_drain_is_undone() -> None:
    world = cluster()
    world.drain()
    await world.settle(4)
    world.store.objects[DRAINS].clear()
    await world.settle(2)
    assert not world.is_cordoned()
    assert world.own_reservations() == []


async def test_a_drain_of_a_node_that_goes_ends() -> None:
    world = cluster()
    world.drain(node="n9", name="missing")
    world.drain()
    await world.settle(4)
    assert world.status("missing").status.message == "waits for node n9, which does not exist"
    del world.store.objects[NODES]["n1"]
    await world.settle(2)
    assert world.status().status.phase == "Aborted"
    assert world.status().status.message == "aborted: node n1 no longer exists"
    assert world.own_reservations() == []


async def test_a_drain_is_deleted_after_its_time() -> None:
    world = cluster()
    world.drain(ttl="10m")
    await world.settle(4)
    await world.clock.advance(15 * 60.0)
    await world.settle(2)
    assert world.store.objects[DRAINS] == {}
    assert not world.is_cordoned() and world.own_reservations() == []


async def test_a_pod_that_never_ends_holds_the_drain_and_is_named() -> None:
    world = cluster()
    world.special_pod("stuck", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"]})
    world.drain(confirm="Confirmed")
    for _ in range(30):
        await world.once()
        world.schedule()
        stuck = world.store.objects[PODS].pop("default/stuck")
        world.finish_terminations()
        world.store.objects[PODS]["default/stuck"] = stuck
        await world.clock.advance(3.0)
    assert world.entries()["stuck"].message == "the pod is terminating"
    assert world.status().status.phase == "Running"
    assert world.status().status.message == "pods: 1 wait to end by themselves"
    assert "default/stuck" not in {f"default/{name}" for name in world.own_reservations()}


async def test_pods_without_controller_are_evicted_directly_if_forced() -> None:
    world = cluster()
    world.special_pod("bare", metadata={"ownerReferences": []})
    world.drain(annotations={ANNOTATION_DESCHEDULER_EVICT: ""})
    await world.settle(4)
    assert world.entries()["bare"].message == "is evicted without a Reservation"
    assert len(world.own_reservations()) == 3


async def test_later_pods_of_a_paused_drain_get_paused_jobs() -> None:
    world = cluster()
    paused = {"drain.descheduler.koordinator.sh/paused-after-confirmed": ""}
    world.drain(annotations=paused, confirm="Confirmed")
    await world.settle(1)
    for number in range(40):
        if number == 0:
            world.special_pod("late")
        await world.settle(1)
    (job,) = [job for job in world.store.objects[JOBS].values() if job["spec"]["podRef"]["name"] == "late"]
    assert job["spec"]["paused"] is True
    assert world.entries()["late"].message == "the job is paused"
