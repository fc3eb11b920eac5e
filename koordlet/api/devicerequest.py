"""The allowed combinations of device resources in a pod's requests, and their common form (spec 01 §4.3). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordlet.api.encoding.quantity import Quantity
from koordlet.api.names import (
    RESOURCE_AMD_GPU,
    RESOURCE_FPGA,
    RESOURCE_GPU,
    RESOURCE_GPU_CORE,
    RESOURCE_GPU_MEMORY,
    RESOURCE_GPU_MEMORY_RATIO,
    RESOURCE_GPU_SHARED,
    RESOURCE_HUAWEI_NPU_CORE,
    RESOURCE_HUAWEI_NPU_CPU,
    RESOURCE_HUAWEI_NPU_DVPP,
    RESOURCE_HYGON_DCU,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_RDMA,
)

WHOLE_GPUS: Final = frozenset({RESOURCE_NVIDIA_GPU, RESOURCE_AMD_GPU, RESOURCE_HYGON_DCU})
GPU_RESOURCES: Final = WHOLE_GPUS | {
    RESOURCE_GPU,
    RESOURCE_GPU_CORE,
    RESOURCE_GPU_MEMORY,
    RESOURCE_GPU_MEMORY_RATIO,
    RESOURCE_GPU_SHARED,
    RESOURCE_HUAWEI_NPU_CORE,
    RESOURCE_HUAWEI_NPU_CPU,
    RESOURCE_HUAWEI_NPU_DVPP,
}
_PERCENT: Final = frozenset(
    {
        frozenset({RESOURCE_GPU_MEMORY}),
        frozenset({RESOURCE_GPU_MEMORY_RATIO}),
        frozenset({RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY}),
        frozenset({RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY_RATIO}),
        frozenset({RESOURCE_HUAWEI_NPU_CORE, RESOURCE_GPU_MEMORY_RATIO}),
    }
)
_SHARED: Final = frozenset(
    frozenset({RESOURCE_GPU_SHARED, memory, *core})
    for memory in (RESOURCE_GPU_MEMORY, RESOURCE_GPU_MEMORY_RATIO)
    for core in ((), (RESOURCE_GPU_CORE,))
)
_NPU: Final = frozenset(
    frozenset({RESOURCE_GPU_SHARED, RESOURCE_HUAWEI_NPU_CORE, RESOURCE_HUAWEI_NPU_CPU, RESOURCE_GPU_MEMORY, *dvpp})
    for dvpp in ((), (RESOURCE_HUAWEI_NPU_DVPP,))
)


class DeviceRequestError(ValueError):
    """The requested combination of device resources is not allowed."""

    def __init__(self, requested: Mapping[str, Quantity]) -> None:
        amounts = ", ".join(f"{name}: {amount}" for name, amount in sorted(requested.items()))
        super().__init__(f"invalid resource device requests: {amounts}")


def gpu_request(requests: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """The GPU part of a pod's requests in common form; empty without one. Raises DeviceRequestError.

    Whole GPUs and `koordinator.sh/gpu` become gpu-core and gpu-memory-ratio; the other forms are kept.
    """
    requested = {name: amount for name, amount in requests.items() if name in GPU_RESOURCES and amount}
    if not requested:
        return {}
    values = {name: amount.value() for name, amount in requested.items()}
    kinds = frozenset(requested)
    if any(value < 0 for value in values.values()):
        raise DeviceRequestError(requested)
    if len(kinds) == 1 and kinds <= WHOLE_GPUS:
        return _core_and_ratio(100 * sum(values.values()))
    if kinds == {RESOURCE_GPU} and _percent(values[RESOURCE_GPU]):
        return _core_and_ratio(values[RESOURCE_GPU])
    core, ratio = values.get(RESOURCE_GPU_CORE, 0), values.get(RESOURCE_GPU_MEMORY_RATIO, 0)
    shared = values.get(RESOURCE_GPU_SHARED, 0)
    if (
        (kinds in _PERCENT and _percent(core) and _percent(ratio))
        or (kinds in _SHARED and all(n % shared == 0 and n // shared <= 100 for n in (core, ratio)))
        or (kinds in _NPU and shared <= 1 and values.get(RESOURCE_HUAWEI_NPU_DVPP, 0) <= 100)
    ):
        return requested
    raise DeviceRequestError(requested)


def share_request(requests: Mapping[str, Quantity], resource: str) -> int:
    """Requested percent of `rdma` or `fpga` devices, 0 for none. Raises DeviceRequestError."""
    assert resource in (RESOURCE_RDMA, RESOURCE_FPGA)
    amount = requests.get(resource)
    if not amount:
        return 0
    if amount.value() < 0 or not _percent(amount.value()):
        raise DeviceRequestError({resource: amount})
    return amount.value()


def _percent(value: int) -> bool:
    return value <= 100 or value % 100 == 0


def _core_and_ratio(percent: int) -> dict[str, Quantity]:
    amount = Quantity.of(percent)
    return {RESOURCE_GPU_CORE: amount, RESOURCE_GPU_MEMORY_RATIO: amount}
