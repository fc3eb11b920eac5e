"""The tick: read, derive, commit, and keep the latest picture (spec 02 §5.1).

Runs in the process's one loop. The three cadences (use, pressure, schedule latency) are separate periodic tasks over
the same reader and cache, so that a slow or failing one does not delay the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from koordlet.app.clock import boot_clock
from koordlet.app.logging import get_logger
from koordlet.metriccache import Batch, MetricCache, SeriesError
from koordlet.metricsadvisor.facts.node import FACT_BASIC, cpu_basic_info, with_huge_pages
from koordlet.metricsadvisor.stalls.culprits import CulpritWindow
from koordlet.metricsadvisor.stalls.latency import SubjectLatency, by_subject, group
from koordlet.metricsadvisor.stalls.window import ANCHORS, Window
from koordlet.metricsadvisor.usage.batches import latency_batch, pressure_batch, stall_batch, use_batch
from koordlet.metricsadvisor.usage.picture import Picture, derive
from koordlet.metricsadvisor.usage.pressure import PressureReading, stall_shares
from koordlet.metricsadvisor.usage.reader import TickReader
from koordlet.metricsadvisor.usage.readings import Readings
from koordlet.probes.culprits.blame import Blames
from koordlet.probes.culprits.charges import Charges, Waits
from koordlet.probes.loading.mapped import Ints
from koordlet.probes.openprobes import ProbeSet
from koordlet.probes.schedlatency.snapshot import SchedLatencySnapshot, diff
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.cgroupindex import CgroupIndex
from koordlet.statesinformer.pods.model import Subject, Workloads
from koordlet.system.cpu.cputopology import CpuTopology, read_topology
from koordlet.system.errors import KernelFileError
from koordlet.system.host import Host
from koordlet.system.proc.procfs import read_numa_meminfo

log = get_logger(__name__)

TTL_TICKS = 20
"""A reading that is older than so many ticks is no baseline: a mean over a suspend or a long stall is no sample."""
ATTENTION = 10.0
"""Seconds for which who asked for culprits is taken to ask again: until then the matrix is read four times as often."""
FRUITLESS = 6
FACT_CPU, FACT_NUMA = "node_cpu_info", "node_numa_info"


class MetricsAdvisor:
    """Owns the latest figures; everything else asks it or the cache."""

    def __init__(
        self,
        host: Host,
        reader: TickReader,
        workloads: Callable[[], Workloads],
        cache: MetricCache,
        registries: Registries,
        *,
        probes: ProbeSet,
        index: CgroupIndex,
        latency_window: float = 10.0,
        page_cache: bool = False,
        huge_pages: bool = False,
        outdated: float = 10.0,
        pods_known: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._host, self._reader, self._current, self._cache = host, reader, workloads, cache
        self._registries, self._probes, self._page_cache, self._clock = registries, probes, page_cache, clock
        self._huge_pages, self._outdated, self._pods_known = huge_pages, outdated, pods_known
        self._readings: Readings | None = None
        self.index = index
        self.topology: CpuTopology | None = None
        self.node_of_cpu: Mapping[int, int] = {}
        self.picture: Picture | None = None
        self.pressure: PressureReading | None = None
        self._fruitless = 0
        """Rounds until pressure is looked for again."""
        self.stalls: Mapping[tuple[str, str], Mapping[str, float]] = {}
        """(resource, degree) -> subject key -> share of time stalled since the reading before."""
        self.latency_window: Window[SchedLatencySnapshot] = Window(latency_window)
        self._culprits = CulpritWindow(latency_window)
        self._asked = -ATTENTION
        self._grouped: tuple[int, Ints, tuple[list[Subject], Ints]] | None = None
        self.unhurried = False
        """Whether every other reading of schedule latency will do; whoever judges the readings says so."""
        self._rested = False
        self.latencies: Mapping[str, SubjectLatency] = {}

    @property
    def workloads(self) -> Workloads:
        """What runs now."""
        return self._current()

    @property
    def started(self) -> bool:
        """Whether a first picture with the node in it exists."""
        return self.picture is not None and self.picture.node is not None

    def tick(self) -> None:
        """Use of everything."""
        old, new = self._readings, self._reader.read(self.workloads, self._clock())
        self._readings = new
        for source, cause in self._reader.errors.items():
            self._fail(source, cause)
        if old is None or not 0 < new.at - old.at <= TTL_TICKS * self._cache.tick:
            return
        picture = derive(old, new, self.node_of_cpu)
        if new.at - old.at > self._outdated or not self._pods_known():  # then nobody knows what is left for the system
            picture = replace(picture, system=None, system_numa={})
        self.picture = picture
        self._commit("use", lambda: use_batch(picture, page_cache=self._page_cache))

    def read_pressure(self) -> None:
        """Pressure of pods and containers; nothing on a kernel without PSI. Where no cgroup has any, as on v1 without
        a unified tree, a thousand files that are not there are looked for once in `FRUITLESS` rounds."""
        self._fruitless = max(self._fruitless - 1, 0)
        if not self._host.facts.psi or self._fruitless:
            return
        workloads = self.workloads
        table = self._reader.read_pressure(workloads)
        for error in table.errors:
            self._fail("pressure", str(error))
        reading = PressureReading(self._clock(), workloads, table)
        self.stalls = stall_shares(self.pressure, reading)
        self.pressure = reading
        if workloads.subjects and not table.errors and all(np.isnan(one).all() for one in table.columns.values()):
            self._fruitless = FRUITLESS
        self._commit("pressure", lambda: pressure_batch(reading))
        self._commit("pressure", lambda: stall_batch(reading, self.stalls))

    def read_latency(self) -> None:
        """Schedule latency of containers; nothing without a probe, and every other time while that is often enough."""
        source = self._probes.sched_latency
        if source is None:
            return
        self._rested = self.unhurried and not self._rested
        if self._rested:
            return
        snapshot = source.read(matrix=False)
        now = self._clock()
        self.index.refresh(self.workloads, now, snapshot.keys[snapshot.keys > 0].tolist())
        self.latency_window.push(snapshot)
        span = self.latency_window.span()
        if span is not None:
            old, new, seconds = span
            self.latencies = by_subject(
                diff(old, new, matrix=False), seconds, self.index.owner, self.subjects_of(new.keys)
            )
            self._commit("latency", lambda: latency_batch(now, self.latencies))
        parts = ANCHORS if now - self._asked < ATTENTION else 1
        due = self._culprits.due(snapshot.time_ns, self._culprits.seconds / parts)
        charges = self.charges() if due else None
        if charges is not None:
            self._culprits.push(charges)

    def subjects_of(self, keys: Ints) -> tuple[list[Subject], Ints]:
        """`group`, made anew only when keys or their owners changed."""
        known = self._grouped
        if known is None or known[0] != self.index.walks or not np.array_equal(known[1], keys):
            known = self._grouped = (self.index.walks, keys, group(keys, self.index.owner))
        return known[2]

    def charges(self) -> Charges | None:
        """Who was charged to whom so far, for a difference; None without a probe."""
        source = self._probes.programs
        return None if source is None else source.charges()

    def waits(self) -> Waits | None:
        """Everything charged so far; None without a probe."""
        source = self._probes.programs
        return None if source is None else source.waits()

    def culprits(self) -> tuple[Blames, float] | None:
        """Who had the CPU while others waited, over the window, and its seconds; None without a probe. The window is up
        to twice as long when nobody has asked for a while."""
        self._asked = self._clock()
        charges = self.charges()
        return None if charges is None else self._culprits.until(charges)

    def read_node_info(self) -> None:
        """CPU and NUMA layout (spec 02 §5.8)."""
        now = self._clock()
        try:
            topology = read_topology(self._host.roots)
        except KernelFileError as error:
            self._registries.count("collect_node_cpu_info_status", "failed")
            self._fail("node_cpu_info", str(error))
            return
        self._registries.count("collect_node_cpu_info_status", "succeeded")
        self.topology, self.node_of_cpu = topology, {cpu.id: cpu.node for cpu in topology.cpus}
        self._cache.facts.set(FACT_CPU, topology, now)
        self._cache.facts.set(FACT_BASIC, cpu_basic_info(topology, self._host.roots), now)
        try:
            numa = read_numa_meminfo(self._host.roots)
        except KernelFileError as error:
            self._registries.count("collect_node_numa_info_status", "failed")
            self._fail("node_numa_info", str(error))
            return
        self._registries.count("collect_node_numa_info_status", "succeeded")
        self._cache.facts.set(FACT_NUMA, with_huge_pages(numa, wanted=self._huge_pages), now)

    def _commit(self, collector: str, batch: Callable[[], Batch]) -> None:
        try:
            self._cache.commit(batch())
        except SeriesError as error:
            self._fail(collector, str(error), "series")

    def _fail(self, collector: str, text: str, cause: str = "unreadable") -> None:
        self._registries.count("collector_failures_total", collector, cause)
        log.once(f"collector:{collector}:{text}", "no figure from a source", collector=collector, cause=text)
