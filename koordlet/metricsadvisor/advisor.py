"""The metrics advisor: runs every collector at its own interval (spec 02 §5.1).

Each collector is a periodic task of the process's one event loop, so a slow or failing collector does not delay the
others. Consumers read the collectors' latest figures; `MetricsAdvisor` only holds the collectors and their intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from koordlet.metricsadvisor.facts.node import NodeInfoCollector
from koordlet.metricsadvisor.stalls.blockio import BlockIOCollector
from koordlet.metricsadvisor.stalls.memstall import MemStallCollector
from koordlet.metricsadvisor.stalls.netstall import NetStallCollector
from koordlet.metricsadvisor.stalls.oom import OomCollector
from koordlet.metricsadvisor.stalls.schedlatency import SchedLatencyCollector
from koordlet.metricsadvisor.task import CollectorTask
from koordlet.metricsadvisor.usage.pressurecollector import PressureCollector
from koordlet.metricsadvisor.usage.usecollector import UseCollector
from koordlet.probes.openprobes import ProbeSet
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Workloads


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds between two rounds of the collectors that always run; from koordlet's flags."""

    use: float
    node_info: float
    sched_latency: float
    mem_stall: float
    oom: float
    block_io: float
    net_stall: float


@dataclass(slots=True)
class MetricsAdvisor:
    """The collectors that always run, and the tasks of all collectors."""

    current_workloads: Callable[[], Workloads]
    index: CgroupIndex
    """Subjects of cgroup ids, for all collectors of probes."""
    use: UseCollector
    node_info: NodeInfoCollector
    sched_latency: SchedLatencyCollector
    mem_stall: MemStallCollector
    oom: OomCollector
    block_io: BlockIOCollector
    net_stall: NetStallCollector
    pressure: PressureCollector | None = None
    """None while the feature gate is off."""
    optional: Sequence[CollectorTask] = ()
    """Tasks of the collectors that gates and flags switch on."""

    @property
    def workloads(self) -> Workloads:
        """What runs now."""
        return self.current_workloads()

    def attach(self, probes: ProbeSet) -> None:
        """Give each collector its probe, as far as the probes are open."""
        self.sched_latency.attach(probes.sched_latency)
        self.mem_stall.attach(probes.mem_stall)
        self.oom.attach(probes.oom)
        self.block_io.attach(probes.block_io)
        self.net_stall.attach(probes.net_stall)

    def tasks(self, intervals: Intervals) -> Iterator[CollectorTask]:
        """All periodic tasks, in the order of their first rounds."""
        yield CollectorTask("collect-use", intervals.use, self.use.tick)
        yield CollectorTask("collect-node-info", intervals.node_info, self.node_info.read)
        yield CollectorTask("collect-sched-latency", intervals.sched_latency, self.sched_latency.read)
        yield from self.optional
        yield CollectorTask("collect-mem-stall", intervals.mem_stall, self.mem_stall.read)
        yield CollectorTask("collect-oom", intervals.oom, self.oom.read)
        yield CollectorTask("collect-block-io", intervals.block_io, self.block_io.read)
        yield CollectorTask("collect-net-stall", intervals.net_stall, self.net_stall.read)
