"""GPU requests: normalised at creation (spec 04 §11.6) and validated (§12.6). Pure.

Applies to each regular container. `gpu: N` is short for core N and memory ratio N. A container that requests shares of
GPUs gets `gpu.shared`, the number of GPUs that the request is spread over.
"""

from __future__ import annotations

from control.manager.webhooks.errors import forbidden
from control.manager.webhooks.objects import Json, child, containers
from control.manager.webhooks.translation import quantity
from koordlet.api.core import Pod
from koordlet.api.names import (
    RESOURCE_GPU,
    RESOURCE_GPU_CORE,
    RESOURCE_GPU_MEMORY,
    RESOURCE_GPU_MEMORY_RATIO,
    RESOURCE_GPU_SHARED,
    RESOURCE_HUAWEI_NPU_CORE,
)

_GPU_RESOURCES = (RESOURCE_GPU, RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY, RESOURCE_GPU_MEMORY_RATIO, RESOURCE_GPU_SHARED)


def normalise_gpus(pod: Json) -> None:
    """Convert the GPU requests of every regular container to core, memory ratio and shared."""
    for container in containers(pod, init=False):
        resources = container.get("resources") or {}
        if any(name in (resources.get(kind) or {}) for kind in ("requests", "limits") for name in _GPU_RESOURCES):
            _normalise(child(resources, "requests"), child(resources, "limits"))


def _normalise(requests: Json, limits: Json) -> None:
    has_shared = RESOURCE_GPU_SHARED in requests
    if RESOURCE_GPU in requests:
        whole = requests[RESOURCE_GPU]
        for amounts in (requests, limits):
            amounts[RESOURCE_GPU_CORE] = amounts[RESOURCE_GPU_MEMORY_RATIO] = whole
            amounts.pop(RESOURCE_GPU, None)
    if not has_shared:
        percent = requests.get(RESOURCE_GPU_MEMORY_RATIO, requests.get(RESOURCE_GPU_CORE))
        units = 0 if percent is None else quantity(percent).value()
        share = units // 100 if units > 100 and units % 100 == 0 else 1
        requests[RESOURCE_GPU_SHARED] = limits[RESOURCE_GPU_SHARED] = str(share)


def device_errors(pod: Pod) -> list[str]:
    """The errors in the GPU requests of the regular containers."""
    return [
        error
        for index, container in enumerate(pod.spec.containers)
        for error in _container_errors(
            {name: amount.value() for name, amount in container.resources.requests.items()},
            f"spec.containers[{index}].resources.requests",
        )
    ]


def _container_errors(requests: dict[str, int], path: str) -> list[str]:
    def refuse(name: str, reason: str) -> list[str]:
        return [forbidden(f"{path}[{name}]", reason)]

    if RESOURCE_GPU in requests:
        if RESOURCE_GPU_SHARED in requests:
            return refuse(RESOURCE_GPU, f"{RESOURCE_GPU} and {RESOURCE_GPU_SHARED} must not be used together")
        whole = requests[RESOURCE_GPU]
        if whole == 0 or (whole > 100 and whole % 100):
            return refuse(RESOURCE_GPU, f"{whole} is neither 1 to 100 nor a multiple of 100")
        return []
    if RESOURCE_GPU_SHARED not in requests:
        return []
    shared, core = requests[RESOURCE_GPU_SHARED], requests.get(RESOURCE_GPU_CORE, 0)
    memory, ratio = requests.get(RESOURCE_GPU_MEMORY, 0), requests.get(RESOURCE_GPU_MEMORY_RATIO, 0)
    errors: list[str] = []
    if shared == 0:
        errors += refuse(RESOURCE_GPU_SHARED, "must not be 0")
    if requests.get(RESOURCE_HUAWEI_NPU_CORE, 0):
        return errors
    if not memory and not ratio:
        errors += refuse(RESOURCE_GPU_SHARED, f"requires {RESOURCE_GPU_MEMORY} or {RESOURCE_GPU_MEMORY_RATIO}")
    elif memory and ratio:
        errors += refuse(RESOURCE_GPU_MEMORY, f"must not be used together with {RESOURCE_GPU_MEMORY_RATIO}")
    if shared:
        for name, amount in ((RESOURCE_GPU_CORE, core), (RESOURCE_GPU_MEMORY_RATIO, ratio)):
            if amount % shared:
                errors += refuse(name, f"{amount} is not a multiple of {RESOURCE_GPU_SHARED} {shared}")
    return errors
