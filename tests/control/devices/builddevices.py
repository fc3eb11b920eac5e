"""Short ways to write inventories, uses and needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from control.devices.inventory import DeviceInventory, read_inventory
from control.devices.needs import DeviceNeed, need_of
from control.devices.rating import DeviceStrategy
from control.devices.room import DeviceHolding, DeviceState, DeviceTraits, TypeUse
from koordlet.api import names
from koordlet.api.encoding.quantity import Quantity
from tests.control.scheduler.plugins.deviceworld import device, machine

CORE, MEMORY, RATIO = names.RESOURCE_GPU_CORE, names.RESOURCE_GPU_MEMORY, names.RESOURCE_GPU_MEMORY_RATIO
WEIGHTS = {RATIO: 1, MEMORY: 1, names.RESOURCE_RDMA: 1, names.RESOURCE_FPGA: 1}
LEAST, MOST = DeviceStrategy(False, WEIGHTS), DeviceStrategy(True, WEIGHTS)
FULL = {CORE: 100, MEMORY: 80 << 30, RATIO: 100}
HALF = {CORE: 50, MEMORY: 40 << 30, RATIO: 50}


def inventory(*devices: Mapping[str, Any], **more: Any) -> DeviceInventory:
    return read_inventory(device("n", devices or machine(), **more))


def state(used: Mapping[int, Mapping[str, int]] | None = None, *devices: Mapping[str, Any], **more: Any) -> DeviceState:
    """`used`: of GPUs, by minor."""
    traits = more.pop("traits", DeviceTraits())
    return DeviceState(inventory(*devices, **more), traits, {"gpu": TypeUse(used or {})})


def need(requests: Mapping[str, str], **annotations: Any) -> DeviceNeed:
    """`hint`, `joint`, `partition`, `isolation`."""
    keys = {
        "hint": names.ANNOTATION_DEVICE_ALLOCATE_HINT,
        "joint": names.ANNOTATION_DEVICE_JOINT_ALLOCATE,
        "partition": names.ANNOTATION_GPU_PARTITION_SPEC,
    }
    labels = {names.LABEL_GPU_ISOLATION_PROVIDER: annotations.pop("isolation", "")}
    texts = {keys[name]: json.dumps(value) for name, value in annotations.items()}
    return need_of({name: Quantity(amount) for name, amount in requests.items()}, texts, labels)


def minors(holding: DeviceHolding, kind: str = "gpu") -> list[int]:
    return [device.minor for device in holding.get(kind, ())]
