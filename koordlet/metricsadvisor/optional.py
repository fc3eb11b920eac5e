"""The collectors that a feature gate or a flag switches on, with their intervals (spec 02 §5.9-§5.14).

A collector that is switched off is a condition, like one that has no source on this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from koordlet.app.gates import FeatureGates
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.facts.node import NodeInfoCollector
from koordlet.metricsadvisor.facts.storage import NAME as STORAGE
from koordlet.metricsadvisor.facts.storage import StorageInfoCollector
from koordlet.metricsadvisor.periodic.coldpages import NAME as COLD_PAGES
from koordlet.metricsadvisor.periodic.coldpages import ColdPageCollector
from koordlet.metricsadvisor.periodic.cpi import NAME as CPI
from koordlet.metricsadvisor.periodic.cpi import CpiCollector
from koordlet.metricsadvisor.periodic.resctrl import NAME as RESCTRL
from koordlet.metricsadvisor.periodic.resctrl import ResctrlCollector
from koordlet.metricsadvisor.task import CollectorTask
from koordlet.metricsadvisor.usage.hostapps import HostAppMemory
from koordlet.metricsadvisor.usage.pressurecollector import NAME as PSI
from koordlet.metricsadvisor.usage.pressurecollector import PressureCollector
from koordlet.metricsadvisor.usage.reader import TickReader
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Workloads
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.host import Host


@dataclass(frozen=True, slots=True)
class OptionalIntervals:
    """Seconds; from koordlet's flags."""

    use: float
    cpi: float
    cpi_window: float
    psi: float
    cold_pages: float
    cold_page_window: float
    resctrl: float
    storage: float


class OptionalCollectors:
    """The optional collectors; one that is switched off is None."""

    def __init__(
        self,
        host: Host,
        fs: CgroupFS,
        reader: TickReader,
        workloads: Callable[[], Workloads],
        node_info: NodeInfoCollector,
        cache: MetricCache,
        registries: Registries,
        gates: FeatureGates,
        intervals: OptionalIntervals,
        *,
        resctrl_wanted: bool,
        enable_kidled: Callable[[], None],
    ) -> None:
        self.conditions = conditions = CollectorConditions(registries)
        self._gates = gates
        self.tasks: list[CollectorTask] = []
        """Of the collectors that are switched on."""

        self.host_apps = HostAppMemory(fs, workloads, cache, registries)
        self._add("collect-host-apps", intervals.use, self.host_apps.read)
        self.pressure: PressureCollector | None = None
        if self._on(PSI, "PSICollector"):
            self.pressure = PressureCollector(reader, workloads, cache, registries, conditions, psi=host.facts.psi)
            self._add("collect-pressure", intervals.psi, self.pressure.read)
        self.cpi: CpiCollector | None = None
        if self._on(CPI, "CPICollector"):
            self.cpi = CpiCollector(
                workloads,
                cache,
                registries,
                conditions,
                perf_dir=fs.perf_dir,
                cpus=lambda: host.facts.online_cpus if node_info.topology is None else node_info.topology.online,
                feature=host.facts.features["perf_hardware"],
                seconds=intervals.cpi_window,
            )
            self._add("collect-cpi", intervals.cpi, self.cpi.read)
        self.cold_pages: ColdPageCollector | None = None
        if self._on(COLD_PAGES, "ColdPageCollector"):
            self.cold_pages = ColdPageCollector(
                host,
                fs,
                workloads,
                cache,
                registries,
                conditions,
                enable_kidled=enable_kidled,
                window=intervals.cold_page_window,
            )
            self._add("collect-cold-pages", intervals.cold_pages, self.cold_pages.read)
        self.resctrl: ResctrlCollector | None = None
        if not resctrl_wanted:
            conditions.waiting(RESCTRL, "--enable-resctrl-collector is not given")
        elif self._on(RESCTRL, "ResctrlCollector"):
            feature = host.facts.features["resctrl_monitoring"]
            self.resctrl = ResctrlCollector(host.roots.resctrl, feature, cache, registries, conditions)
            self._add("collect-resctrl", intervals.resctrl, self.resctrl.read)
        self.storage: StorageInfoCollector | None = None
        if self._on(STORAGE, "BlkIOReconcile"):
            self.storage = StorageInfoCollector(host.roots, cache, registries, conditions)
            self._add("collect-storage", intervals.storage, self.storage.read)

    def _add(self, name: str, interval_s: float, collect: Callable[[], object]) -> None:
        self.tasks.append(CollectorTask(name, interval_s, collect))

    def _on(self, collector: str, gate: str) -> bool:
        on = self._gates.enabled(gate)
        if not on:
            self.conditions.waiting(collector, f"feature gate {gate} is off")
        return on
