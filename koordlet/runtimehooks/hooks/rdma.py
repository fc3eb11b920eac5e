"""RDMA devices that the scheduler allocated to the pod, as device nodes of its containers (spec 03 §4.10, 08 §5.2).

The virtual functions of the allocation, or the physical function if it has none. A device that does not exist fails the
hook. Devices reach a container through NRI only, with the permissions that the administrator gave the host's nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from koordlet.api.annotations.device import PodDeviceAllocation
from koordlet.api.crs.device import RDMA
from koordlet.qosmanager.engine.view import NodeView
from koordlet.runtimehooks.hooks.alloweddevices import allowed_devices
from koordlet.runtimehooks.stages import NO_CHANGE, ContainerDevice, HookAnswer, HookContext, HookError, HookStage
from koordlet.statesinformer.pods.deviceallocation import MinorsOf
from koordlet.system.devices.rdma import CONNECTION_MANAGER, DeviceNode, RDMAError

Find = Callable[[str], DeviceNode]
"""PCI address, or empty for the connection manager -> the device node. Raises RDMAError."""


class RDMADeviceInject:
    """The hook; `find` reads the host, `minors` are the node's devices."""

    hook = "rdma device inject"
    stages = (HookStage.PRE_CREATE_CONTAINER,)

    def __init__(self, find: Find, *, minors: MinorsOf = lambda kind: None) -> None:
        self._find = find
        self._minors = minors

    def answer(self, stage: HookStage, context: HookContext, view: NodeView) -> HookAnswer:
        """See the module. Raises HookError."""
        devices = allowed_devices(context, view, RDMA, self._minors)
        if not devices:
            return NO_CHANGE
        try:
            addresses = [CONNECTION_MANAGER, *(address for device in devices for address in _functions(device))]
            nodes = [self._find(address) for address in addresses]
        except RDMAError as error:
            raise HookError(str(error)) from error
        return HookAnswer(
            devices=tuple(ContainerDevice(node.path, "c", node.major, node.minor, node.mode) for node in nodes)
        )


def _functions(device: PodDeviceAllocation) -> list[str]:
    virtual = [] if device.extension is None else [function.bus_id for function in device.extension.vfs]
    return virtual or [device.id]
