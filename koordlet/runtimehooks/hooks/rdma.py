"""RDMA devices that the scheduler gave the pod, as device nodes of its containers (spec 03 §4.10, 08 §5.2).

Virtual functions where the allocation names some, else the physical one. All or nothing: a device that can't be found
fails the hook. Devices reach a container through NRI only.
"""

from __future__ import annotations

from collections.abc import Callable

from koordlet.api.annotations.device import ALLOCATED, DeviceAllocation
from koordlet.qosmanager.engine.view import NodeView
from koordlet.runtimehooks.stages import NOTHING, Answer, Device, HookContext, HookError, Stage
from koordlet.system.devices.rdma import CONNECTION_MANAGER, DeviceNode, RDMAError

Find = Callable[[str], DeviceNode]
"""PCI address, or empty for the connection manager -> the device node. Raises RDMAError."""


class RDMADeviceInject:
    """The hook; `find` reads the host."""

    hook = "rdma device inject"
    gate = "RDMADeviceInject"
    stages = (Stage.PRE_CREATE_CONTAINER,)

    def __init__(self, find: Find) -> None:
        self._find = find

    def answer(self, stage: Stage, context: HookContext, view: NodeView) -> Answer:
        """See the module. Raises WireError and HookError."""
        found = (ALLOCATED.get(context.annotations) or {}).get("rdma")
        if not found:
            return NOTHING
        try:
            addresses = [CONNECTION_MANAGER, *(one for device in found for one in _functions(device))]
            nodes = [self._find(address) for address in addresses]
        except RDMAError as error:
            raise HookError(str(error)) from error
        return Answer(devices=tuple(Device(node.path, "c", node.major, node.minor) for node in nodes))


def _functions(device: DeviceAllocation) -> list[str]:
    virtual = [] if device.extension is None else [one.bus_id for one in device.extension.vfs]
    return virtual or [device.id]
