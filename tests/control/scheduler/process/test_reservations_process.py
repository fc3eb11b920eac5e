"""Reservations with the embedded API server: a scheduler in a process of its own, killed and started again."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from control.scheduler.plugins.reservation.annotating import AllocatedWriter
from koordlet.api.core import Event, Node, Pod
from koordlet.api.crs.reservation import Reservation
from koordlet.api.names import (
    ANNOTATION_BIND_GANG_MEMBER_COUNT,
    ANNOTATION_RESERVATION_AFFINITY,
    ANNOTATION_RESERVATION_ALLOCATED,
    ANNOTATION_RESERVATION_RESTRICTED_OPTIONS,
    LABEL_PRE_ALLOCATION_REQUIRED,
)
from tests.control.scheduler.build import Cluster
from tests.control.scheduler.plugins.quotaworld import HeldObjects
from tests.control.scheduler.process.lives import begin
from tests.waiting import until

PAGE = "plugins/Reservation/nodeReservations/n1"


def document(name: str, cpu: str = "3", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {
            "allocatePolicy": "Restricted",
            "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers": [container]}},
            **spec,
        },
    }


async def test_the_life_of_a_reservation(world: Any) -> None:
    await world.node("n1", cpu="4")
    await world.apply(document("room", allocateOnce=False))
    life = await begin(world.tmp, world.server.kubeconfig_path)
    try:
        await until(lambda: phase(world, "room", "Available"))
        room = await world.admin.get(Reservation, "room")
        assert room.status.node_name == "n1"
        assert {name: str(amount) for name, amount in room.status.allocatable.items()} == {"cpu": "3"}
        assert [(condition.type, condition.status, condition.reason) for condition in room.status.conditions] == [
            ("Scheduled", "True", "Scheduled"),
            ("Ready", "True", "Available"),
        ]
        await until(lambda: told(world, "room", "Scheduled", "Successfully assigned room to n1"))

        # its room is for its owners only
        await world.pod("other", cpu="2")
        await until(lambda: world.condition("other"))
        assert "Insufficient cpu" in await world.condition("other")
        needs = {ANNOTATION_RESERVATION_AFFINITY: '{"name": "room"}'}
        await world.pod("owner", cpu="2", labels={"app": "web"}, annotations=needs)
        await until(lambda: world.bound("owner"))
        pod = await world.admin.get(Pod, "owner", "default")
        assert json.loads(pod.metadata.annotations[ANNOTATION_RESERVATION_ALLOCATED]) == {
            "name": "room",
            "uid": room.metadata.uid,
        }
        await world.pod("second", cpu="2", labels={"app": "web"}, annotations=needs)
        await until(lambda: world.condition("second"))
        text = (await until(lambda: world.events("second")))["FailedScheduling"]
        assert "Reservation(s) Insufficient cpu, requested: 2000, used: 2000, capacity: 3000" in text
        events = await until(lambda: reservation_event(world, "second"))
        assert events.startswith("0/1 reservations are available: 1 Reservation(s) exactly matches")

        # a killed scheduler leaves nothing behind that the next one needs
        before = await until(lambda: life.page(PAGE))
        await life.kill()
        life = await begin(world.tmp, world.server.kubeconfig_path)
        assert await until(lambda: life.page(PAGE)) == before
        placement = await until(lambda: life.page("explain/default/second"))
        assert "requested: 2000, used: 2000, capacity: 3000" in json.dumps(placement)

        # the end of the owner makes room for the second one
        await world.delete_pod("owner")
        await until(lambda: world.bound("second"))
        await world.apply(document("huge", cpu="64"))
        await until(lambda: unscheduled(world, "huge"))
        await world.admin.delete(Reservation, "room")
        await until(lambda: world.bound("other"))
    finally:
        assert await life.end() == 0


async def test_a_reservation_takes_over_a_running_pod(world: Any) -> None:
    await world.node("n1", cpu="4")
    life = await begin(world.tmp, world.server.kubeconfig_path)
    try:
        await world.pod("old", cpu="3", labels={"app": "web"})
        await until(lambda: world.bound("old"))
        swap = document("swap", cpu="4", allocateOnce=False, preAllocation=True)
        swap["metadata"]["labels"] = {LABEL_PRE_ALLOCATION_REQUIRED: "true"}
        await world.apply(swap)
        await until(lambda: phase(world, "swap", "Available"))
        replacement = await world.admin.get(Reservation, "swap")
        taken = (await world.admin.get(Pod, "old", "default")).metadata.annotations[ANNOTATION_RESERVATION_ALLOCATED]
        assert json.loads(taken) == {"name": "swap", "uid": replacement.metadata.uid}
        await until(lambda: owners(world, "swap", ["old"]))
        before = await until(lambda: life.page(PAGE))
        await life.kill()
        life = await begin(world.tmp, world.server.kubeconfig_path)
        assert await until(lambda: life.page(PAGE)) == before
        await world.pod("other", cpu="1")
        await until(lambda: world.condition("other"))
        needs = {ANNOTATION_RESERVATION_AFFINITY: '{"name": "swap"}'}
        await world.pod("new", cpu="1", labels={"app": "web"}, annotations=needs)
        await until(lambda: world.bound("new"))
    finally:
        assert await life.end() == 0


async def test_reservations_and_pods_are_one_gang(world: Any) -> None:
    await world.node("n1", cpu="4")
    gang = {f"gang.scheduling.koordinator.sh/{key}": value for key, value in (("name", "g"), ("min-available", "3"))}
    life = await begin(world.tmp, world.server.kubeconfig_path)
    try:
        for name in ("first", "second"):
            member = document(name, cpu="2")
            member["spec"]["template"]["metadata"] = {"annotations": gang, "namespace": "default"}
            await world.apply(member)
        await world.pod("third", cpu="2", annotations=gang)
        await until(lambda: world.condition("third"))
        assert not await phase(world, "first", "Available") and not await phase(world, "second", "Available")
        await life.kill()
        life = await begin(world.tmp, world.server.kubeconfig_path)
        await world.node("n2", cpu="4")
        await until(lambda: world.bound("third"))
        for name in ("first", "second"):
            await until(lambda name=name: phase(world, name, "Available"))
            gang_reservation = await world.admin.get(Reservation, name)
            assert gang_reservation.metadata.annotations[ANNOTATION_BIND_GANG_MEMBER_COUNT] == "3"
    finally:
        assert await life.end() == 0


async def owners(world: Any, name: str, expected: list[str]) -> bool:
    status = (await world.admin.get(Reservation, name)).status
    return [owner.name for owner in status.current_owners] == expected


async def phase(world: Any, name: str, expected: str) -> bool:
    return bool((await world.admin.get(Reservation, name)).status.phase == expected)


async def unscheduled(world: Any, name: str) -> bool:
    status = (await world.admin.get(Reservation, name)).status
    reasons = [(condition.type, condition.status, condition.reason) for condition in status.conditions]
    return reasons == [("Scheduled", "False", "Unschedulable")] and status.phase == "Pending"


async def told(world: Any, name: str, reason: str, text: str) -> bool:
    events = await world.admin.list(Event)
    return any(
        (event.involved_object.kind, event.involved_object.name, event.reason, event.message)
        == ("Reservation", name, reason, text)
        for event in events
    )


async def reservation_event(world: Any, name: str) -> str:
    return str((await world.events(name)).get("FailedScheduling-Reservation", ""))


async def test_bad_reservations_harm_only_themselves(world: Any, scheduler: Any) -> None:
    await world.node("n1", cpu="4")
    await world.apply(document("ended"))
    await world.admin.patch(Reservation, "ended", body={"status": {"phase": "Failed"}}, subresource="status")
    bad = {
        "huge": document("huge", cpu="1e30"),
        "negative": document("negative", cpu="-5"),
        "gang": document("gang", cpu="64"),
        "nothing": document("nothing", cpu="0", owners=[{"object": {"name": "no-such-pod"}}]),
        "malformed": document("malformed", cpu="100m"),
        "selector": document(
            "selector", cpu="100m", owners=[{"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]
        ),
    }
    bad["malformed"]["metadata"]["annotations"] = {ANNOTATION_RESERVATION_RESTRICTED_OPTIONS: "{"}
    gang = {"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "2"}
    bad["gang"]["spec"]["template"]["metadata"] = {"annotations": gang, "namespace": "default"}
    for broken in bad.values():
        await world.apply(broken)
    running = await scheduler()
    await until(lambda: unscheduled(world, "huge"))
    await until(lambda: phase(world, "malformed", "Available"))
    await until(lambda: phase(world, "selector", "Available"))
    await world.apply(document("good", cpu="1"))
    await until(lambda: phase(world, "good", "Available"))
    await world.pod("owner", cpu="1", labels={"app": "web"}, annotations={ANNOTATION_RESERVATION_AFFINITY: "{}"})
    await until(lambda: world.bound("owner"))
    items = json.loads((await running.page(f"/apis/v1/{PAGE}"))[1])["items"]
    problems = {item["name"]: item.get("problem", "") for item in items}
    assert ANNOTATION_RESERVATION_RESTRICTED_OPTIONS in problems["malformed"]
    assert "spec.owners[0].labelSelector" in problems["selector"]
    assert (await world.admin.get(Reservation, "ended")).status.node_name == ""


async def test_the_annotation_of_a_pod_that_was_bound_since_stays(world: Any) -> None:
    """Removing it is a late, background write, and its informer may know an old version of the pod."""
    await world.node("n1", cpu="4")
    allocated = {ANNOTATION_RESERVATION_ALLOCATED: json.dumps({"name": "r1", "uid": "uid-r1"})}
    objects: Any = HeldObjects()
    handle: Any = SimpleNamespace(client=world.admin, objects=objects)
    writer, cluster = AllocatedWriter(handle), Cluster()

    async def removed(name: str, *, bound: str = "") -> bool:
        """`bound`: before the informer or after the informer read the pod."""
        await world.pod(name, annotations=allocated)
        known = await world.admin.get(Pod, name, "default")
        if bound:
            target = {"target": {"kind": Node.__name__, "name": "n1"}, "metadata": {"name": name}}
            body = {"apiVersion": "v1", "kind": "Binding", **target}
            await world.admin.raw("POST", f"/api/v1/namespaces/default/pods/{name}/binding", body=body)
        if bound == "before":
            known = await world.admin.get(Pod, name, "default")
        objects.informer(Pod).put(known)
        writer.remove(cluster.info(known), "uid-r1")
        await asyncio.gather(*writer._tasks)
        return (
            ANNOTATION_RESERVATION_ALLOCATED not in (await world.admin.get(Pod, name, "default")).metadata.annotations
        )

    assert await removed("pending")
    assert not await removed("late", bound="after")
    assert not await removed("elsewhere", bound="before")
