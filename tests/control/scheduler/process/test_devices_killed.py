"""kill -9 while pods with devices are bound: no device is given twice, and the next scheduler knows them all."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from koordlet.api import names
from koordlet.api.core import Pod
from koordlet.api.encoding import wire
from tests.control.scheduler.plugins.deviceworld import ALLOCATABLE, device, machine
from tests.control.scheduler.process.lives import Life, survive_kills

DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
NODES = ("n1", "n2")
RATIO = "koordinator.sh/gpu-memory-ratio"


async def held(world: Any) -> dict[str, dict[str, tuple[int, ...]]]:
    """Node -> pod -> GPUs, of bound pods. No GPU is held by more than it has."""
    nodes: dict[str, dict[str, tuple[int, ...]]] = {name: {} for name in NODES}
    ratios: Counter[tuple[str, int]] = Counter()
    for pod in await world.admin.list(Pod, "default"):
        if pod.spec.node_name:
            gpus = json.loads(pod.metadata.annotations[names.ANNOTATION_DEVICE_ALLOCATED])["gpu"]
            nodes[pod.spec.node_name][pod.metadata.name] = tuple(gpu["minor"] for gpu in gpus)
            for gpu in gpus:
                ratios[pod.spec.node_name, gpu["minor"]] += int(gpu["resources"][RATIO])
    assert all(ratio <= 100 for ratio in ratios.values())
    return nodes


async def known(world: Any, life: Life) -> bool:
    """Whether the pages show what the pods' annotations say."""
    expected = await held(world)
    page = await life.page("plugins/DeviceShare/nodeDeviceSummaries")
    if page is None or set(page) != set(NODES):
        return False
    shown = {
        name: {
            pod.removeprefix("default/"): tuple(map(int, minors))
            for pod, minors in page[name]["allocateSet"].get("gpu", {}).items()
        }
        for name in NODES
    }
    return shown == expected


async def test_no_device_is_given_twice_across_kills(world: Any) -> None:
    extra = {key.replace("__", "/").replace("_", "-"): amount for key, amount in ALLOCATABLE.items()}
    for name in NODES:
        await world.node(name, cpu="64", resources=extra)
        await world.admin.raw("POST", DEVICES, body=wire.to_builtins(device(name, machine())))
    for number in range(9):
        await world.pod(f"p{number:02d}", cpu="1", requests={"nvidia.com/gpu": "2"})

    await survive_kills(
        world, lambda: held(world), lambda life: known(world, life), (2, 5), 8, "2 Insufficient GPU Devices"
    )
