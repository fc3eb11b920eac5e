"""GPUs that the scheduler allocated to the pod, as variables and mounts of its containers (spec 03 §4.10, 08 §5.1).
Pure.

`NVIDIA_VISIBLE_DEVICES` selects the devices that NVIDIA's runtime shows. With HAMi-core, a library that is loaded into
every process limits memory and time of a shared device. Mounts reach a container through NRI only. The library is
mounted read-only. The lock directory of HAMi-core and the directory of a container's counters are writable; on the host
they are below the library's directory, where only root can create names.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from koordlet.api.annotations.device import ALLOCATED, PodDeviceAllocation
from koordlet.api.crs.device import GPU
from koordlet.api.names import (
    GPU_ISOLATION_HAMI_CORE,
    LABEL_GPU_ISOLATION_PROVIDER,
    RESOURCE_GPU_CORE,
    RESOURCE_GPU_MEMORY,
    RESOURCE_GPU_MEMORY_RATIO,
)
from koordlet.qosmanager.engine.view import NodeView
from koordlet.runtimehooks.hooks.alloweddevices import allowed_devices
from koordlet.runtimehooks.stages import (
    NO_CHANGE,
    WRITABLE,
    ContainerMount,
    HookAnswer,
    HookContext,
    HookError,
    HookStage,
    MountDirectory,
)
from koordlet.statesinformer.pods.deviceallocation import MinorsOf

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
LOCK_DIR = "/tmp/vgpulock"
"""Where HAMi-core expects the lock in a container."""
HOST_LOCK_DIR = "vgpulock"
"""The same directory on the host, below the library's directory."""
WHOLE_GPU_PERCENT = 100


class GPUEnvInject:
    """The hook. `library`: path of HAMi-core on the host and in containers; `monitor`: gate HamiCoreVGPUMonitor;
    `minors`: the node's devices."""

    hook = "gpu env inject"
    stages = (HookStage.PRE_CREATE_CONTAINER,)

    def __init__(self, library: str, *, monitor: bool = False, minors: MinorsOf = lambda kind: None) -> None:
        self._library = library
        self._minors = minors
        self._monitor = monitor

    def answer(self, stage: HookStage, context: HookContext, view: NodeView) -> HookAnswer:
        """See the module. Raises HookError."""
        gpus = allowed_devices(context, view, GPU, self._minors)
        if not gpus:
            return NO_CHANGE
        visible = HookAnswer(env={VISIBLE: ",".join(str(gpu.minor) for gpu in gpus)})
        if context.labels.get(LABEL_GPU_ISOLATION_PROVIDER) != GPU_ISOLATION_HAMI_CORE:
            return visible
        return visible | self._limits(gpus[0], context)

    def _limits(self, device: PodDeviceAllocation, context: HookContext) -> HookAnswer:
        if _amount(device, RESOURCE_GPU_MEMORY_RATIO) >= WHOLE_GPU_PERCENT:
            return NO_CHANGE
        env = {"CUDA_DEVICE_MEMORY_LIMIT": str(_amount(device, RESOURCE_GPU_MEMORY))}
        if RESOURCE_GPU_CORE in device.resources:
            env["CUDA_DEVICE_SM_LIMIT"] = str(_amount(device, RESOURCE_GPU_CORE))
        env["LD_PRELOAD"] = self._library
        directory = str(PurePosixPath(self._library).parent)
        lock = ContainerMount(
            f"{directory}/{HOST_LOCK_DIR}", LOCK_DIR, options=WRITABLE, directory=MountDirectory.SHARED
        )
        mounts = [ContainerMount(self._library, self._library), lock]
        if self._monitor and context.container is not None:
            name = f"{context.pod.meta.uid}_{context.container.name}"
            if "/" in name or "\0" in name:
                raise HookError(f"{name!r} cannot be the name of a directory")
            env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{directory}/{name}.cache"
            source = f"{directory}/containers/{name}"
            mounts.append(ContainerMount(source, directory, options=WRITABLE, directory=MountDirectory.FRESH))
        return HookAnswer(env=env, mounts=tuple(mounts))


def _amount(device: PodDeviceAllocation, resource: str) -> int:
    amount = device.resources.get(resource)
    if amount is None:
        raise HookError(f"annotation {ALLOCATED.key}: gpu {device.minor} has no {resource}")
    return amount.value()
