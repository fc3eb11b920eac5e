"""Levers that throttle culprits by disk I/O and network bandwidth, and the node's disks."""

from __future__ import annotations

from collections.abc import Collection

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.metricsadvisor.facts.storage import FACT_STORAGE
from koordlet.qosmanager.engine.view import NodeView
from koordlet.qosmanager.rules.bandwidth import total
from koordlet.qosmanager.throttling.iolever import IoLever
from koordlet.qosmanager.throttling.levers import Lever, NetworkLever
from koordlet.resourceexecutor.blockio import BlockStore
from koordlet.system.devices.storage import LocalStorage, read_local_storage
from koordlet.system.errors import KernelFileError
from koordlet.wiring.context import WiringContext

log = get_logger(__name__)

DISKS_MAX_AGE_S = 60.0


def levers(context: WiringContext) -> dict[str, Lever]:
    """Resource -> lever."""

    def no_network_classes(view: NodeView) -> str:
        if not context.gates.enabled("TCNetworkQoS"):
            return "gate TCNetworkQoS is off: no traffic shaping"
        if total(view) <= 0:
            return "totalNetworkBandwidth is not set: no traffic shaping"
        strategy = view.slo.resource_qos_strategy
        classes = () if strategy is None else (strategy.ls_class, strategy.be_class)
        enabled = any(qos is not None and qos.network_qos is not None and qos.network_qos.enable for qos in classes)
        return "" if enabled else "no class has networkQOS: only pods with their own limit are shaped"

    return {"io": _io_lever(context), "network": NetworkLever(no_network_classes)}


def storage_fact(context: WiringContext) -> LocalStorage | None:
    """The node's disks and mounts; None while their collector has no recent fact."""
    fact = context.fact(FACT_STORAGE, context.options.collect_node_storage_info_interval)
    return fact if isinstance(fact, LocalStorage) else None


def io_limits_are_flat(context: WiringContext) -> bool:
    """Whether block I/O limits of a cgroup do not apply to its descendants."""
    facts = context.host.facts
    return facts.cgroup_version == 1 and not facts.anolis


def _io_lever(context: WiringContext) -> IoLever:
    """Without gate BlkIOReconcile no collector reads the disks; they are read here while a pod is throttled."""
    last_read: tuple[float, LocalStorage] | None = None

    def disks() -> Collection[str]:
        nonlocal last_read
        storage = storage_fact(context)
        now = boot_clock()
        if storage is None and (last_read is None or now - last_read[0] >= DISKS_MAX_AGE_S):
            try:
                last_read = now, read_local_storage(context.host.roots)
            except KernelFileError as error:
                log.once(f"disks:{type(error).__name__}", "Cannot read the node's disks", cause=str(error))
        if storage is None and last_read is not None:
            storage = last_read[1]
        return () if storage is None else storage.disk_numbers.values()

    return IoLever(disks, BlockStore(context.files).supports, flat=io_limits_are_flat(context))
