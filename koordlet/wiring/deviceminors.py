"""The devices that the node has, as far as koordlet's collectors know them."""

from __future__ import annotations

from collections.abc import Collection

from koordlet.api.crs.device import GPU, RDMA
from koordlet.wiring.context import WiringContext


def device_minors(context: WiringContext, kind: str) -> Collection[int] | None:
    """Minors of the devices of a type. None: unknown, because no collector runs for the type or it has no figures."""
    gate = {GPU: "Accelerators", RDMA: "RDMADevices"}.get(kind)
    if gate is None or not context.gates.enabled(gate):
        return None
    from koordlet.wiring.devices import inventory  # as its collectors, imported only with a gate

    devices = inventory(context)
    if kind == RDMA:
        return None if devices.rdma is None else {nic.minor for nic in devices.rdma}
    if devices.xpus is None or (not devices.xpus and devices.gpus is None):
        return None
    return {device.minor for device in devices.xpus or devices.gpus or ()}
