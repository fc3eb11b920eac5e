"""The collectors that a feature gate or a flag switches on, made and given their cadence (spec 02 §5.9-§5.14).

A collector that is switched off is a condition like one that the machine can't feed, so that nobody wonders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from koordlet.app.gates import FeatureGates
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.advisor import MetricsAdvisor
from koordlet.metricsadvisor.conditions import Conditions
from koordlet.metricsadvisor.facts.storage import NAME as STORAGE
from koordlet.metricsadvisor.facts.storage import StorageInfoCollector
from koordlet.metricsadvisor.periodic.coldpages import NAME as COLD
from koordlet.metricsadvisor.periodic.coldpages import ColdPageCollector
from koordlet.metricsadvisor.periodic.cpi import NAME as CPI
from koordlet.metricsadvisor.periodic.cpi import CpiCollector
from koordlet.metricsadvisor.periodic.resctrl import NAME as RESCTRL
from koordlet.metricsadvisor.periodic.resctrl import ResctrlCollector
from koordlet.metricsadvisor.usage.hostapps import HostAppMemory
from koordlet.metricsadvisor.usage.pressurecollector import NAME as PSI
from koordlet.metricsadvisor.usage.pressurecollector import StallViews
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Workloads
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.host import Host

Cadence = tuple[str, float, Callable[[], object]]
"""Name of the task, seconds between runs, what a run calls (it may give an awaitable)."""


@dataclass(frozen=True, slots=True)
class Intervals:
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
    """What is switched on; a member is None when it is off."""

    def __init__(
        self,
        host: Host,
        fs: CgroupFS,
        advisor: MetricsAdvisor,
        cache: MetricCache,
        registries: Registries,
        gates: FeatureGates,
        intervals: Intervals,
        *,
        resctrl_wanted: bool,
        enable_kidled: Callable[[], None],
    ) -> None:
        self.conditions = conditions = Conditions(registries)
        self._gates = gates
        self.cadences: list[Cadence] = []
        """What to run, and how often."""

        def workloads() -> Workloads:
            return advisor.workloads

        self.host_apps = HostAppMemory(fs, workloads, cache, registries)
        self.cadences.append(("collect-host-apps", intervals.use, self.host_apps.read))
        self.psi: StallViews | None = None
        if self._on(PSI, "PSICollector"):
            self.psi = StallViews(advisor, registries, conditions)
            self.cadences.append(("collect-pressure", intervals.psi, self.psi.read))
        self.cpi: CpiCollector | None = None
        if self._on(CPI, "CPICollector"):
            self.cpi = CpiCollector(
                workloads,
                cache,
                registries,
                conditions,
                perf_dir=fs.perf_dir,
                cpus=lambda: host.facts.online_cpus if advisor.topology is None else advisor.topology.online,
                feature=host.facts.features["perf_hardware"],
                seconds=intervals.cpi_window,
            )
            self.cadences.append(("collect-cpi", intervals.cpi, self.cpi.read))
        self.cold_pages: ColdPageCollector | None = None
        if self._on(COLD, "ColdPageCollector"):
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
            self.cadences.append(("collect-cold-pages", intervals.cold_pages, self.cold_pages.read))
        self.resctrl: ResctrlCollector | None = None
        if not resctrl_wanted:
            conditions.waiting(RESCTRL, "--enable-resctrl-collector is not given")
        elif self._on(RESCTRL, "ResctrlCollector"):
            feature = host.facts.features["resctrl_monitoring"]
            self.resctrl = ResctrlCollector(host.roots.resctrl, feature, cache, registries, conditions)
            self.cadences.append(("collect-resctrl", intervals.resctrl, self.resctrl.read))
        self.storage: StorageInfoCollector | None = None
        if self._on(STORAGE, "BlkIOReconcile"):
            self.storage = StorageInfoCollector(host.roots, cache, registries, conditions)
            self.cadences.append(("collect-storage", intervals.storage, self.storage.read))

    def _on(self, collector: str, gate: str) -> bool:
        on = self._gates.enabled(gate)
        if not on:
            self.conditions.waiting(collector, f"feature gate {gate} is off")
        return on
