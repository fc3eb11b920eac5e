"""NVIDIA GPUs, accelerators described in files by other programs, RDMA NICs, and the Device object that reports them.

Their collectors and the reporter are imported only if one of the two gates is on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from koordlet.app.clock import SYSTEM_CLOCK
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.statesinformer.pods.model import Workloads
from koordlet.wiring.context import WiringContext
from koordlet.wiring.states import Cluster

if TYPE_CHECKING:
    from koordlet.statesinformer.devices.status import Inventory, NodeDevices

ACCELERATORS, RDMA, SLICES = "Accelerators", "RDMADevices", "ResourceSlices"


def collect(context: WiringContext, conditions: CollectorConditions, workloads: Callable[[], Workloads]) -> None:
    """Add the collectors that the gates enable, with their periodic tasks."""
    for gate, name in ((ACCELERATORS, "gpu"), (ACCELERATORS, "xpu"), (RDMA, "rdma")):
        if not context.gates.enabled(gate):
            conditions.waiting(name, f"feature gate {gate} is off")
    if context.gates.enabled(ACCELERATORS):
        from koordlet.metricsadvisor.facts.xpu import XpuCollector
        from koordlet.metricsadvisor.periodic.gpu import GpuCollector

        options, cache, registries = context.options, context.cache, context.registries
        gpu = GpuCollector(
            context.host.roots, workloads, cache, registries, conditions, recovery=options.gpu_health_recovery
        )
        context.runner.add(context.periodic("collect-gpu", options.collect_res_used_interval, gpu.read))
        xpu = XpuCollector(Path(options.xpu_device_infos_dir), cache, registries, conditions, wall_ns=time.time_ns)
        context.runner.add(context.periodic("collect-xpu", options.collect_res_used_interval, xpu.read))
    if context.gates.enabled(RDMA):
        from koordlet.metricsadvisor.facts import rdma

        nics = rdma.RdmaCollector(context.host.roots, context.cache, conditions)
        context.runner.add(context.periodic("collect-rdma", rdma.INTERVAL_S, nics.read))


def inventory(context: WiringContext) -> Inventory:
    """The collectors' recent facts; kinds whose gate is off are empty."""
    from koordlet.metriccache.facts import FACT_GPU, FACT_GPU_DRIVER, FACT_GPU_FAULTS, FACT_RDMA, FACT_XPU
    from koordlet.metricsadvisor.facts.rdma import INTERVAL_S
    from koordlet.statesinformer.devices.status import Inventory

    options, accelerators = context.options, context.gates.enabled(ACCELERATORS)
    period = options.collect_res_used_interval
    nvml = accelerators and not options.xpu_enforce_collect_from_device_infos
    return Inventory(
        xpus=context.fact(FACT_XPU, period) if accelerators else (),
        gpus=context.fact(FACT_GPU, period) if nvml else (),
        rdma=context.fact(FACT_RDMA, INTERVAL_S) if context.gates.enabled(RDMA) else (),
        driver=context.fact(FACT_GPU_DRIVER, period) or "",
        faults=context.fact(FACT_GPU_FAULTS, period) or {},
    )


def report(context: WiringContext, cluster: Cluster) -> None:
    """Report the Device object and, with gate ResourceSlices, the ResourceSlices of the same devices."""
    reporting = context.gates.enabled(ACCELERATORS) or context.gates.enabled(RDMA)
    if not (reporting and context.gates.enabled(SLICES)):
        _remove_slices(context, cluster)
    if not reporting:
        return
    from koordlet.statesinformer.devices.reporter import DeviceReporter

    reporter = DeviceReporter(
        cluster.client,
        context.options.node_name,
        node=lambda: cluster.states.node.object,
        inventory=lambda: inventory(context),
        registries=context.registries,
        wall=SYSTEM_CLOCK.now,
    )
    context.health.check("devices", lambda: reporter.problem)
    context.health.check(f"informer:{reporter.stored.name}", lambda: reporter.stored.problem)
    context.runner.add(reporter.stored)
    context.runner.add(context.periodic("report-devices", context.options.node_topology_sync_interval, reporter.report))
    if context.gates.enabled(SLICES):
        _report_slices(context, cluster, lambda: reporter.status)


def _report_slices(context: WiringContext, cluster: Cluster, devices: Callable[[], NodeDevices | None]) -> None:
    from koordlet.statesinformer.devices.slicereporter import PUBLISHED_FILE, SliceReporter

    options = context.options
    reporter = SliceReporter(
        cluster.client,
        options.node_name,
        node=lambda: cluster.states.node.object,
        devices=devices,
        registries=context.registries,
        published=Path(options.state_dir) / PUBLISHED_FILE,
    )
    context.health.check("resource-slices", lambda: reporter.problem)
    context.health.check(f"informer:{reporter.stored.name}", lambda: reporter.stored.problem)
    context.runner.add(reporter.stored)
    context.runner.add(context.periodic("report-resource-slices", options.node_topology_sync_interval, reporter.report))


def _remove_slices(context: WiringContext, cluster: Cluster) -> None:
    """Delete those that an earlier koordlet published on this node."""
    from koordlet.statesinformer.devices.slicereporter import PUBLISHED_FILE, SliceRemoval

    options = context.options
    removal = SliceRemoval(cluster.client, options.node_name, Path(options.state_dir) / PUBLISHED_FILE)
    if not removal.needed():
        return
    context.health.check("resource-slices", lambda: removal.problem)
    context.runner.add(context.periodic("remove-resource-slices", options.node_topology_sync_interval, removal.remove))
