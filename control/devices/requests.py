"""What a pod requests of each type of device: amounts per device and how many devices (spec 06 §3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from control.devices.inventory import MAX_AMOUNT
from koordlet.api.crs.device import FPGA, GPU, RDMA
from koordlet.api.devicerequest import DeviceRequestError, gpu_request, share_request
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.names import (
    RESOURCE_FPGA,
    RESOURCE_GPU_CORE,
    RESOURCE_GPU_MEMORY,
    RESOURCE_GPU_MEMORY_RATIO,
    RESOURCE_GPU_SHARED,
    RESOURCE_RDMA,
)

WHOLE: Final = 100
"""Percent of a device."""
PERCENT_RESOURCES: Final = {RDMA: RESOURCE_RDMA, FPGA: RESOURCE_FPGA}


@dataclass(frozen=True)
class TypeRequest:
    """`amounts`: of each device; `count`: number of devices; `shared`: a part of a GPU suffices."""

    amounts: Mapping[str, int]
    count: int = 1
    shared: bool = False


def type_requests(requests: Mapping[str, Quantity]) -> dict[str, TypeRequest]:
    """By type of device; without hints. Raises DeviceRequestError for a form that is not allowed."""
    types: dict[str, TypeRequest] = {}
    gpu = gpu_request(requests)
    if gpu:
        types[GPU] = _gpu(gpu)
    for kind, resource in PERCENT_RESOURCES.items():
        percent = share_request(requests, resource)
        if percent > WHOLE:
            types[kind] = TypeRequest({resource: WHOLE}, percent // WHOLE)
        elif percent:
            types[kind] = TypeRequest({resource: percent})
    return types


def _gpu(request: Mapping[str, Quantity]) -> TypeRequest:
    """Raises DeviceRequestError."""
    amounts = {name: min(quantity.value(), MAX_AMOUNT) for name, quantity in request.items()}
    shared_by, ratio = amounts.pop(RESOURCE_GPU_SHARED, 0), amounts.get(RESOURCE_GPU_MEMORY_RATIO, 0)
    count = shared_by or (ratio // WHOLE if ratio > WHOLE and ratio % WHOLE == 0 else 1)
    each = {name: amount // count for name, amount in amounts.items()}
    over = any(each.get(name, 0) > WHOLE for name in (RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY_RATIO))
    if over or not all(each.values()):
        # E.g. gpu-core 200 with gpu-memory: no single GPU has that much (§8).
        raise DeviceRequestError(request)
    return TypeRequest(each, count, each.get(RESOURCE_GPU_MEMORY_RATIO, 0) < WHOLE)


def completed(request: Mapping[str, int], total: Mapping[str, int]) -> dict[str, int]:
    """The amounts of a GPU with gpu-memory and gpu-memory-ratio both present, as far as `total` has them (§3.3).

    The ratio is at least 1: koordlet accepts no device without a share of it."""
    amounts = dict(request)
    memory, ratio = amounts.get(RESOURCE_GPU_MEMORY), amounts.get(RESOURCE_GPU_MEMORY_RATIO)
    size = total.get(RESOURCE_GPU_MEMORY, 0)
    if memory is None and ratio is not None and size:
        amounts[RESOURCE_GPU_MEMORY] = ratio * size // WHOLE
    elif ratio is None and memory is not None and size:
        amounts[RESOURCE_GPU_MEMORY_RATIO] = max(1, memory * WHOLE // size)
    return amounts
