"""GPUs that the scheduler gave the pod, as variables and mounts of its containers (spec 03 §4.10, 08 §5.1). Pure.

`NVIDIA_VISIBLE_DEVICES` makes NVIDIA's runtime show the devices. With HAMi-core, a library that is loaded into every
process bounds memory and time of a shared one; its mounts reach a container through NRI only.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from koordlet.api.annotations.device import ALLOCATED, DeviceAllocation
from koordlet.api.names import (
    GPU_ISOLATION_HAMI_CORE,
    LABEL_GPU_ISOLATION_PROVIDER,
    RESOURCE_GPU_CORE,
    RESOURCE_GPU_MEMORY,
    RESOURCE_GPU_MEMORY_RATIO,
)
from koordlet.qosmanager.engine.view import NodeView
from koordlet.runtimehooks.stages import NOTHING, Answer, HookContext, HookError, Mount, Stage

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
LOCK_DIR = "/tmp/vgpulock"
WHOLE = 100


class GPUEnvInject:
    """The hook. `library`: HAMi-core's, on the host and in containers; `monitor`: gate HamiCoreVGPUMonitor."""

    hook = "gpu env inject"
    gate = "GPUEnvInject"
    stages = (Stage.PRE_CREATE_CONTAINER,)

    def __init__(self, library: str, *, monitor: bool = False) -> None:
        self._library, self._monitor = library, monitor

    def answer(self, stage: Stage, context: HookContext, view: NodeView) -> Answer:
        """See the module. Raises WireError and HookError."""
        found = (ALLOCATED.get(context.annotations) or {}).get("gpu")
        if not found:
            return NOTHING
        visible = Answer(env={VISIBLE: ",".join(str(one.minor) for one in found)})
        if context.labels.get(LABEL_GPU_ISOLATION_PROVIDER) != GPU_ISOLATION_HAMI_CORE:
            return visible
        return visible | self._bounded(found[0], context)

    def _bounded(self, device: DeviceAllocation, context: HookContext) -> Answer:
        if _amount(device, RESOURCE_GPU_MEMORY_RATIO) >= WHOLE:
            return NOTHING
        env = {"CUDA_DEVICE_MEMORY_LIMIT": str(_amount(device, RESOURCE_GPU_MEMORY))}
        if RESOURCE_GPU_CORE in device.resources:
            env["CUDA_DEVICE_SM_LIMIT"] = str(_amount(device, RESOURCE_GPU_CORE))
        env["LD_PRELOAD"] = self._library
        mounts = [Mount(self._library, self._library), Mount(LOCK_DIR, LOCK_DIR)]
        if self._monitor and context.container is not None:
            directory = str(PurePosixPath(self._library).parent)
            own = f"{context.pod.meta.uid}_{context.container.name}"
            if "/" in own:
                raise HookError(f"{own!r} can't be a directory's name")
            env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{directory}/{own}.cache"
            mounts.append(Mount(f"{directory}/containers/{own}", directory, fresh=True))
        return Answer(env=env, mounts=tuple(mounts))


def _amount(device: DeviceAllocation, resource: str) -> int:
    amount = device.resources.get(resource)
    if amount is None:
        raise HookError(f"annotation {ALLOCATED.key}: gpu {device.minor} has no {resource}")
    return amount.value()
