"""What measures: the advisor and the collectors beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.app.periodic import Periodic
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.optional import Intervals, OptionalCollectors
from koordlet.metricsadvisor.stalls.blockio import BlockIOCollector
from koordlet.metricsadvisor.stalls.memstall import MemStallCollector
from koordlet.metricsadvisor.stalls.netstall import NetStallCollector
from koordlet.metricsadvisor.stalls.oom import OomCollector
from koordlet.metricsadvisor.usage.allgroups import AllGroups
from koordlet.metricsadvisor.usage.reader import TickReader
from koordlet.probes.openprobes import ProbeSet
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Workloads
from koordlet.statesinformer.states import KubeStates, States
from koordlet.system.cgroup import tree
from koordlet.system.proc import kidled
from koordlet.system.write import WriteError, write_value
from koordlet.wiring import devices
from koordlet.wiring.context import Context
from koordlet.wiring.probes import open_others

log = get_logger(__name__)

RECLAIM_SECONDS = 30.0
FIRST_SAMPLE_SECONDS = 0.2
"""Until the last of the readings that need not wait for the tick."""


@dataclass(frozen=True, slots=True)
class Collectors:
    """What others read figures from."""

    advisor: MetricsAdvisor
    use: Periodic
    """Reads the use of everything."""
    optional: OptionalCollectors
    mem_stall: MemStallCollector
    oom: OomCollector
    block_io: BlockIOCollector
    net_stall: NetStallCollector

    def attach(self, probes: ProbeSet) -> None:
        """Give each what is open by now; the advisor looks for itself."""
        self.mem_stall.attach(probes.mem_stall)
        self.oom.attach(probes.oom)
        self.block_io.attach(probes.block_io)
        self.net_stall.attach(probes.net_stall)


def all_groups(context: Context, probes: ProbeSet) -> AllGroups | None:
    """The BPF walk of the cgroup tree; None where the cgroup files are read instead."""
    stats = probes.cgroup_stats if context.options.cgroup_stats == "auto" else None
    if stats is None:
        probes.drop("cgroup_stats", "files", "switched off")
        return None
    return AllGroups(stats)


def collectors(context: Context, states: States, probes: ProbeSet, groups: AllGroups | None) -> Collectors:
    """All collectors, each with its periodic task."""
    advisor = _advisor(context, states, probes, groups)
    optional = _optional(context, advisor)
    devices.collect(context, optional.conditions, lambda: states.workloads)
    options = context.options
    use = context.periodic("collect-use", options.collect_res_used_interval, advisor.tick)
    made = Collectors(advisor, use, optional, *_memory(context, advisor, probes), *_io(context, advisor, probes))
    cadences: tuple[tuple[str, float, Callable[[], object]], ...] = (
        ("collect-node-info", options.collect_node_cpu_info_interval, advisor.read_node_info),
        ("collect-sched-latency", options.sched_latency_interval, advisor.read_latency),
        *optional.cadences,
        ("collect-mem-stall", options.mem_stall_interval, made.mem_stall.read),
        ("collect-oom", options.oom_interval, made.oom.read),
        ("collect-block-io", options.block_io_interval, made.block_io.read),
        ("collect-net-stall", options.net_stall_interval, made.net_stall.read),
    )
    context.runner.add(use)
    for name, period, collect in cadences:
        context.runner.add(context.periodic(name, period, collect))

    def reclaim() -> None:  # the one caller: a slot is free once its cgroup was missing at two of these
        probes.reclaim(advisor.index.walk_ids())

    context.runner.add(context.periodic("reclaim-probes", RECLAIM_SECONDS, reclaim, immediate=False))

    async def second_reading() -> None:
        await asyncio.sleep(FIRST_SAMPLE_SECONDS)
        advisor.tick()

    context.runner.spawn("first-sample", second_reading, critical=False)
    open_others(context, probes, FIRST_SAMPLE_SECONDS, lambda: made.attach(probes))
    return made


def _advisor(context: Context, states: States, probes: ProbeSet, groups: AllGroups | None) -> MetricsAdvisor:
    options = context.options
    index = CgroupIndex(context.cgroup_ids)
    context.pleg.add_handler(lambda _: index.expire())
    advisor = MetricsAdvisor(
        context.host,
        _reader(context, probes, groups),
        lambda: states.workloads,
        context.cache,
        context.registries,
        probes=probes,
        index=index,
        latency_window=options.sched_latency_window,
        page_cache=options.enable_pagecache_collector,
        huge_pages=context.gates.enabled("HugePageReport"),
        outdated=options.collect_sys_metric_outdated_interval,
        pods_known=lambda: not isinstance(states, KubeStates) or (states.pods is not None and states.pods.answered),
    )
    advisor.read_node_info()
    context.health.check("metrics-advisor", lambda: None if advisor.started else "no first sample yet")
    return advisor


def _reader(context: Context, probes: ProbeSet, groups: AllGroups | None) -> TickReader:
    def distrust(cause: str) -> None:
        probes.status["cgroup_stats"] = replace(probes.status["cgroup_stats"], source="files", reason=cause)

    if groups is None:
        return TickReader(context.host, context.files)
    return TickReader(context.host, context.files, groups, distrust)


def _optional(context: Context, advisor: MetricsAdvisor) -> OptionalCollectors:
    options = context.options
    return OptionalCollectors(
        context.host,
        context.files,
        advisor,
        context.cache,
        context.registries,
        context.gates,
        Intervals(
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
        enable_kidled=lambda: _enable_kidled(context.host.roots.sys),
    )


def _memory(context: Context, advisor: MetricsAdvisor, probes: ProbeSet) -> tuple[MemStallCollector, OomCollector]:
    options, root = context.options, context.files.hierarchy("memory")
    same = root == context.files.hierarchy("cpu")
    limits = advisor.index if same else CgroupIndex(lambda: tree.walk_ids(root))
    if not same:
        context.pleg.add_handler(lambda _: limits.expire())

    def workloads() -> Workloads:
        return advisor.workloads

    mem_stall = MemStallCollector(
        probes.mem_stall,
        workloads,
        context.cache,
        context.registries,
        index=advisor.index,
        limits=limits,
        clock=boot_clock,
        window=options.mem_stall_window,
    )
    oom = OomCollector(probes.oom, workloads, context.registries, index=advisor.index, limits=limits, clock=boot_clock)
    return mem_stall, oom


def _io(context: Context, advisor: MetricsAdvisor, probes: ProbeSet) -> tuple[BlockIOCollector, NetStallCollector]:
    options = context.options

    def workloads() -> Workloads:
        return advisor.workloads

    block_io = BlockIOCollector(
        probes.block_io,
        workloads,
        context.cache,
        context.registries,
        index=advisor.index,
        sys=context.host.roots.sys,
        clock=boot_clock,
        window=options.block_io_window,
    )
    net_stall = NetStallCollector(
        probes.net_stall,
        workloads,
        context.cache,
        context.registries,
        index=advisor.index,
        clock=boot_clock,
        window=options.net_stall_window,
    )
    return block_io, net_stall


def _enable_kidled(sys: Path) -> None:
    for name, value in kidled.ENABLE.items():
        try:
            write_value(sys / "kernel/mm/kidled" / name, value)
        except WriteError as error:
            raise OSError(error.errno, str(error)) from error
