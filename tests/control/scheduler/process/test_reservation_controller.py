"""The controller of Reservations in real schedulers, on a real API server (spec 06 §4.8)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from control.scheduler.config.shipped import configuration
from koordlet.api.core import Node, Pod
from koordlet.api.crs.reservation import Reservation
from koordlet.kube import NotFound
from tests.waiting import until

RESERVATIONS = "/apis/scheduling.koordinator.sh/v1alpha1/reservations"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"


def config(tmp: Path) -> str:
    """Garbage is collected after a second."""
    document = configuration()
    args = {"gcDurationSeconds": 1, "gcIntervalSeconds": 1, "controllerWorkers": 2}
    kind = {"apiVersion": document["apiVersion"], "kind": "ReservationArgs"}
    document["profiles"][0]["pluginConfig"].append({"name": "Reservation", "args": {**kind, **args}})
    path = tmp / "reservations.yaml"
    path.write_text(yaml.safe_dump(document))
    return f"--config={path}"


async def create(world: Any, name: str, node: str = "", **spec: Any) -> str:
    """Returns the uid. `node`: it is bound there, with 4 cores."""
    containers = [{"name": "c", "resources": {"requests": {"cpu": "4"}}}]
    # Of another scheduler: here the tests bind it, not the plugin.
    template = {"spec": {"schedulerName": "tests", "containers": containers}}
    body = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {"template": template, "owners": [{"object": {"namespace": "default"}}], **spec},
    }
    created = json.loads(await world.admin.raw("POST", RESERVATIONS, body=body))
    if node:
        conditions = [{"type": "Ready", "status": "True", "reason": "Available"}]
        status = {"phase": "Available", "nodeName": node, "allocatable": {"cpu": "4"}, "conditions": conditions}
        await world.admin.patch(Reservation, name, body={"status": status}, subresource="status")
    return str(created["metadata"]["uid"])


async def own(world: Any, pod: str, name: str, uid: str) -> None:
    """A pod on n1 that consumes the Reservation."""
    await world.pod(pod, cpu="1500m", on="n1", annotations={ALLOCATED: json.dumps({"name": name, "uid": uid})})


async def status(world: Any, name: str) -> Any:
    """None: it was deleted."""
    try:
        return (await world.admin.get(Reservation, name)).status
    except NotFound:
        return None


async def phase(world: Any, name: str) -> str:
    current = await status(world, name)
    return "" if current is None else current.phase


def writes(world: Any, name: str) -> int:
    """Times that the status was written by a scheduler."""
    lines = map(json.loads, world.audit.read_text().splitlines())
    return sum(
        line["objectRef"].get("resource") == "reservations"
        and line["objectRef"].get("name") == name
        and line["verb"] == "patch"
        and line["user"]["username"].startswith("system:serviceaccount")
        for line in lines
    )


async def test_the_leader_keeps_reservations_up_to_date(world: Any, scheduler: Any) -> None:
    await world.node("n1", cpu="16")
    await world.node("n2")
    flags = (
        config(world.tmp), "--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s",
        "--leader-elect-retry-period=200ms", "--feature-gates=CleanExpiredReservationAllocated=true",
    )  # fmt: skip
    first = await scheduler(*flags)
    second = await scheduler(*flags, wait=False)

    many = await create(world, "many", "n1", allocateOnce=False, ttl="0s")
    await own(world, "a", "many", many)
    await own(world, "b", "many", many)

    async def consumed(cpu: str, owners: int) -> bool:
        current = await status(world, "many")
        return str(current.allocated.get("cpu", "0")) == cpu and len(current.current_owners) == owners

    await until(lambda: consumed("3", 2))
    await world.delete_pod("a")
    await until(lambda: consumed("1500m", 1))
    assert writes(world, "many") <= 3, "two schedulers, one writes"

    once = await create(world, "once", "n1", ttl="0s")
    await create(world, "short", ttl="1s")
    await own(world, "c", "once", once)
    await until(lambda: _any(world, "once", "Succeeded"))
    lost = await create(world, "lost", "n2", ttl="0s")
    assert lost
    await world.admin.delete(Node, "n2")
    for name in ("once", "short", "lost"):
        await until(lambda name=name: _gone(world, name))  # expired, consumed or without its node: collected

    async def cleaned() -> bool:
        return ALLOCATED not in (await world.admin.get(Pod, "c", "default")).metadata.annotations

    await until(cleaned)

    await first.stop()
    await second.leading()
    await own(world, "d", "many", many)
    await until(lambda: consumed("3", 2))
    _, metrics = await second.page("/metrics")
    assert 'scheduler_reservation_resource{name="many",resource="cpu",type="utilization",unit="ratio"} 0.75' in metrics
    assert 'scheduler_reservation_status_phase{name="many",phase="Available"} 1.0' in metrics


async def _any(world: Any, name: str, expected: str) -> bool:
    """Whether it has the phase, or had: it may be collected already."""
    return await phase(world, name) in (expected, "")


async def _gone(world: Any, name: str) -> bool:
    return await status(world, name) is None
