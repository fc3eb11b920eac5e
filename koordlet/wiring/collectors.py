"""The collectors with their periodic tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from koordlet.app.periodic import Periodic
from koordlet.metricsadvisor.advisor import Intervals, MetricsAdvisor
from koordlet.metricsadvisor.collector import ProbeContext
from koordlet.metricsadvisor.facts.node import NodeInfoCollector
from koordlet.metricsadvisor.optional import OptionalCollectors, OptionalIntervals
from koordlet.metricsadvisor.stalls.blockio import BlockIOCollector
from koordlet.metricsadvisor.stalls.memstall import MemStallCollector
from koordlet.metricsadvisor.stalls.netstall import NetStallCollector
from koordlet.metricsadvisor.stalls.oom import OomCollector
from koordlet.metricsadvisor.stalls.schedlatency import SchedLatencyCollector
from koordlet.metricsadvisor.usage.allgroups import AllGroups
from koordlet.metricsadvisor.usage.reader import TickReader
from koordlet.metricsadvisor.usage.usecollector import UseCollector, UseOptions
from koordlet.probes.openprobes import ProbeSet
from koordlet.resourceexecutor.kidled import enable_kidled
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Workloads
from koordlet.statesinformer.states import KubeStates, States
from koordlet.wiring import devices
from koordlet.wiring.context import WiringContext
from koordlet.wiring.probes import open_others

RECLAIM_INTERVAL_S = 30.0
SECOND_READING_DELAY_S = 0.2
"""Delay of the second reading, with which rates exist; the remaining probes are opened after it."""


@dataclass(frozen=True, slots=True)
class Collectors:
    """The collectors, for the components that read their figures."""

    advisor: MetricsAdvisor
    use: Periodic
    """The task that reads the use of everything."""
    optional: OptionalCollectors


def all_groups(context: WiringContext, probes: ProbeSet) -> AllGroups | None:
    """The BPF walk of the cgroup tree; None if cgroup files are read instead."""
    stats = probes.cgroup_stats if context.options.cgroup_stats == "auto" else None
    if stats is None:
        probes.drop("cgroup_stats", "files", "switched off")
        return None
    return AllGroups(stats)


def collectors(context: WiringContext, states: States, probes: ProbeSet, groups: AllGroups | None) -> Collectors:
    """Build all collectors and add their periodic tasks."""
    index = CgroupIndex(context.cgroup_ids)
    context.pleg.add_handler(lambda _: index.expire())
    reader = _reader(context, probes, groups)
    node_info = NodeInfoCollector(
        context.host.roots, context.cache, context.registries, huge_pages=context.gates.enabled("HugePageReport")
    )
    node_info.read()
    optional = _optional(context, reader, lambda: states.workloads, node_info)
    devices.collect(context, optional.conditions, lambda: states.workloads)
    use = _use(context, states, reader, node_info)
    advisor = _advisor(context, states, index, use, node_info, optional)
    advisor.attach(probes)
    tasks = [context.periodic(task.name, task.interval_s, task.collect) for task in advisor.tasks(_intervals(context))]
    for task in tasks:
        context.runner.add(task)

    def reclaim() -> None:  # the only caller: a slot is freed once its cgroup was missing in two rounds
        probes.reclaim(index.walk_ids())

    context.runner.add(context.periodic("reclaim-probes", RECLAIM_INTERVAL_S, reclaim, immediate=False))

    async def second_reading() -> None:
        await asyncio.sleep(SECOND_READING_DELAY_S)
        use.tick()

    context.runner.spawn("first-sample", second_reading, critical=False)
    open_others(context, probes, SECOND_READING_DELAY_S, lambda: advisor.attach(probes))
    return Collectors(advisor, tasks[0], optional)


def _use(context: WiringContext, states: States, reader: TickReader, node_info: NodeInfoCollector) -> UseCollector:
    def pods_known() -> bool:
        return not isinstance(states, KubeStates) or (states.pods is not None and states.pods.answered)

    options = context.options
    use = UseCollector(
        reader,
        lambda: states.workloads,
        context.cache,
        context.registries,
        node_of_cpu=lambda: node_info.node_of_cpu,
        pods_known=pods_known,
        options=UseOptions(options.enable_pagecache_collector, options.collect_sys_metric_outdated_interval),
    )
    context.health.check("metrics-advisor", lambda: None if use.started else "no first sample yet")
    return use


def _advisor(
    context: WiringContext,
    states: States,
    index: CgroupIndex,
    use: UseCollector,
    node_info: NodeInfoCollector,
    optional: OptionalCollectors,
) -> MetricsAdvisor:
    options = context.options
    probe = ProbeContext(lambda: states.workloads, context.registries, index)
    limits = _memory_limits(context, index)
    return MetricsAdvisor(
        lambda: states.workloads,
        index,
        use=use,
        node_info=node_info,
        sched_latency=SchedLatencyCollector(probe, options.sched_latency_window),
        mem_stall=MemStallCollector(probe, limits=limits, window_seconds=options.mem_stall_window),
        oom=OomCollector(probe, limits=limits),
        block_io=BlockIOCollector(probe, sys=context.host.roots.sys, window_seconds=options.block_io_window),
        net_stall=NetStallCollector(probe, options.net_stall_window),
        pressure=optional.pressure,
        optional=optional.tasks,
    )


def _memory_limits(context: WiringContext, index: CgroupIndex) -> CgroupIndex:
    """Subjects of the cgroups in the hierarchy with the memory controller; `index` where it is the cpu hierarchy."""
    root = context.files.hierarchy("memory")
    if root == context.files.hierarchy("cpu"):
        return index
    limits = CgroupIndex(context.host.repeated_walk(root).walk_ids)
    context.pleg.add_handler(lambda _: limits.expire())
    return limits


def _intervals(context: WiringContext) -> Intervals:
    options = context.options
    return Intervals(
        use=options.collect_res_used_interval,
        node_info=options.collect_node_cpu_info_interval,
        sched_latency=options.sched_latency_interval,
        mem_stall=options.mem_stall_interval,
        oom=options.oom_interval,
        block_io=options.block_io_interval,
        net_stall=options.net_stall_interval,
    )


def _reader(context: WiringContext, probes: ProbeSet, groups: AllGroups | None) -> TickReader:
    def distrust(cause: str) -> None:
        probes.status["cgroup_stats"] = replace(probes.status["cgroup_stats"], source="files", reason=cause)

    if groups is None:
        return TickReader(context.host, context.files)
    return TickReader(context.host, context.files, groups, distrust)


def _optional(
    context: WiringContext, reader: TickReader, workloads: Callable[[], Workloads], node_info: NodeInfoCollector
) -> OptionalCollectors:
    options = context.options
    return OptionalCollectors(
        context.host,
        context.files,
        reader,
        workloads,
        node_info,
        context.cache,
        context.registries,
        context.gates,
        OptionalIntervals(
            use=options.collect_res_used_interval,
            cpi=options.cpi_collector_interval,
            cpi_window=options.collect_cpi_timewindow,
            psi=options.psi_collector_interval,
            cold_pages=options.coldpage_collector_interval,
            cold_page_window=options.cold_page_window,
            resctrl=options.resctrl_collector_interval,
            storage=options.collect_node_storage_info_interval,
        ),
        resctrl_wanted=options.enable_resctrl_collector,
        enable_kidled=lambda: enable_kidled(context.host.roots),
    )
