"""Gate ResizePod: a Reservation of whole GPUs offers all resources of its devices (spec 06 §3.9, §8.1 scenario 4)."""

from __future__ import annotations

import json
from typing import Any

from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.crs.reservation import Reservation
from koordlet.api.encoding import wire
from tests.control.scheduler.plugins.deviceworld import ALLOCATABLE, GPU_MEMORY, device, machine
from tests.control.scheduler.process.lives import begin
from tests.waiting import until

DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
PAGE = "plugins/DeviceShare/nodeDeviceSummaries/n1"
OFFERED = {
    "cpu": 2,
    "nvidia.com/gpu": 2,
    "koordinator.sh/gpu-core": 200,
    "koordinator.sh/gpu-memory": 2 * GPU_MEMORY,
    "koordinator.sh/gpu-memory-ratio": 200,
}


async def test_a_reservation_of_gpus_offers_their_memory_and_cores(world: Any) -> None:
    extra = {key.replace("__", "/").replace("_", "-"): amount for key, amount in ALLOCATABLE.items()}
    await world.node("n1", cpu="64", resources=extra)
    await world.admin.raw("POST", DEVICES, body=wire.to_builtins(device("n1", machine())))
    amounts = {"cpu": "2", "nvidia.com/gpu": "2"}
    container = {"name": "c", "image": "x", "resources": {"requests": amounts, "limits": {"nvidia.com/gpu": "2"}}}
    await world.apply(
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Reservation",
            "metadata": {"name": "room"},
            "spec": {
                "allocateOnce": False,
                "owners": [{"labelSelector": {"matchLabels": {"app": "train"}}}],
                "template": {"spec": {"schedulerName": "koord-scheduler", "containers": [container]}},
            },
        }
    )

    async def available() -> Reservation | None:
        room: Reservation = await world.admin.get(Reservation, "room")
        return room if room.status.phase == "Available" else None

    life = await begin(world.tmp, world.server.kubeconfig_path, "", "--feature-gates=ResizePod=true")
    try:
        room = await until(available)
        assert {name: amount.value() for name, amount in room.status.allocatable.items()} == OFFERED
        resized = json.loads(room.metadata.annotations[names.ANNOTATION_RESERVATION_RESIZE_ALLOCATABLE])["resources"]
        assert set(resized) == {name for name in OFFERED if name.startswith("koordinator.sh/")}
        before = await until(lambda: life.page(PAGE))
        assert set(before["allocateSet"]["gpu"]["default/room"]) == {"0", "1"}

        # the devices are still known to a scheduler that finds the Reservation with the larger amounts
        await life.kill()
        life = await begin(world.tmp, world.server.kubeconfig_path, "", "--feature-gates=ResizePod=true")
        assert await until(lambda: life.page(PAGE)) == before

        # an owner asks in other terms than the template
        part = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
        needs = {names.ANNOTATION_RESERVATION_AFFINITY: "{}"}
        await world.pod("owner", requests=part, labels={"app": "train"}, annotations=needs)
        await until(lambda: world.bound("owner"))
        owner = await world.admin.get(Pod, "owner", "default")
        assert json.loads(owner.metadata.annotations[names.ANNOTATION_RESERVATION_ALLOCATED])["name"] == "room"
        [gpu] = json.loads(owner.metadata.annotations[names.ANNOTATION_DEVICE_ALLOCATED])["gpu"]
        assert gpu["minor"] in (0, 1)
    finally:
        assert await life.end() == 0
