"""CPUs inside a Reservation, end to end (spec 06 §8.1, scenarios 2, 3 and 9)."""

from __future__ import annotations

import json
from typing import Any

from koordlet.api.core import Node, Pod
from koordlet.api.cpus import parse_cpus
from koordlet.api.crs.reservation import Reservation
from koordlet.api.encoding import wire
from tests.control.scheduler.plugins.numaworld import topology
from tests.waiting import until

STATUS = "scheduling.koordinator.sh/resource-status"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
RESERVATIONS = "/apis/scheduling.koordinator.sh/v1alpha1/reservations"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
NODE_RESERVATION = "node.koordinator.sh/reservation"
LSR = {"koordinator.sh/qosClass": "LSR"}
WHOLE_CORES = {"scheduling.koordinator.sh/resource-spec": json.dumps({"requiredCPUBindPolicy": "FullPCPUs"})}


def cpus(holder: Any) -> frozenset[int]:
    """The CPUs that the scheduler gave."""
    return parse_cpus(json.loads(holder.metadata.annotations[STATUS])["cpuset"])


async def test_owners_get_cpus_of_their_reservation_and_others_never(world: Any, scheduler: Any) -> None:
    admin = world.admin
    await world.node("n1", cpu="32")
    await admin.raw("POST", TOPOLOGIES, body=wire.to_builtins(topology("n1", (2, 1, 8, 2), memory="8Gi")))
    await scheduler()
    containers = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "8"}}}]
    template = {
        "metadata": {"labels": LSR, "annotations": WHOLE_CORES},
        "spec": {"schedulerName": "koord-scheduler", "containers": containers},
    }
    spec = {
        "template": template,
        "owners": [{"labelSelector": {"matchLabels": {"app": "web"}}}],
        "allocateOnce": False,
        "allocatePolicy": "Restricted",
    }
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation"}
    await admin.raw("POST", RESERVATIONS, body={**kind, "metadata": {"name": "web"}, "spec": spec})

    async def available() -> Any:
        room = await admin.get(Reservation, "web")
        return room if room.status.phase == "Available" else None

    reserved = cpus(await until(available))
    assert len(reserved) == 8

    await world.pod("owner", cpu="4", labels={**LSR, "app": "web"}, annotations=WHOLE_CORES)
    await until(lambda: world.bound("owner"))
    owner = await admin.get(Pod, "owner", "default")
    assert json.loads(owner.metadata.annotations[ALLOCATED])["name"] == "web"
    assert cpus(owner) < reserved
    assert len(cpus(owner)) == 4

    await world.pod("large", cpu="25", labels=LSR)
    await until(lambda: world.condition("large"))
    assert not (await world.placed())["large"]
    await world.pod("rest", cpu="24", labels=LSR, annotations=WHOLE_CORES)
    await until(lambda: world.bound("rest"))
    assert cpus(await admin.get(Pod, "rest", "default")) == frozenset(range(32)) - reserved


async def test_cpus_that_the_node_reserves_are_given_to_no_pod(world: Any, scheduler: Any) -> None:
    admin = world.admin
    await world.node("n1", cpu="16")
    reservation = {NODE_RESERVATION: json.dumps({"reservedCPUs": "0-3"})}
    await admin.patch(Node, "n1", body={"metadata": {"annotations": reservation}})
    layout = topology("n1", (2, 1, 4, 2), memory="8Gi")
    layout.metadata.annotations = {**layout.metadata.annotations, **reservation}
    await admin.raw("POST", TOPOLOGIES, body=wire.to_builtins(layout))
    await scheduler()
    pinned: set[int] = set()
    for name in ("a", "b", "c"):
        await world.pod(name, cpu="4", labels=LSR, annotations=WHOLE_CORES)
        await until(lambda name=name: world.bound(name))
        pinned |= cpus(await admin.get(Pod, name, "default"))
    assert pinned == set(range(4, 16))
    await world.pod("late", cpu="1")
    await until(lambda: world.condition("late"))
    assert "Insufficient cpu" in await world.condition("late"), "allocatable is lowered by 4"
