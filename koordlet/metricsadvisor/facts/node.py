"""CPU and NUMA layout of the node (spec 02 §5.8): the facts for CPU management and the NodeResourceTopology
reporter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from koordlet.api.annotations.topology import CPUBasicInfo
from koordlet.app.clock import boot_clock
from koordlet.metriccache import MetricCache
from koordlet.metricsadvisor.collector import CollectorOutput
from koordlet.prometheus import Registries
from koordlet.system.cpu.cputopology import CpuTopology, read_topology
from koordlet.system.errors import KernelFileError, MalformedFile
from koordlet.system.proc.procfs import HUGE_PAGE_KB, NumaMemInfo, read_numa_meminfo
from koordlet.system.resctrl import read_cbm_mask
from koordlet.system.roots import Roots

FACT_CPU, FACT_NUMA, FACT_BASIC = "node_cpu_info", "node_numa_info", "node_cpu_basic_info"


class NodeInfoCollector:
    """`read` is one round. A round that fails leaves the last facts in the cache."""

    def __init__(
        self,
        roots: Roots,
        cache: MetricCache,
        registries: Registries,
        *,
        huge_pages: bool = False,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._roots = roots
        self._cache = cache
        self._registries = registries
        self._huge_pages = huge_pages
        self._clock = clock
        self._output = CollectorOutput("node_info", cache, registries)
        self.topology: CpuTopology | None = None
        self.node_of_cpu: Mapping[int, int] = {}
        """NUMA node of each CPU."""

    def read(self) -> None:
        """Read the layout and store it as facts."""
        now = self._clock()
        try:
            topology = read_topology(self._roots)
        except KernelFileError as error:
            self._failed(FACT_CPU, error)
            return
        self._registries.count(f"collect_{FACT_CPU}_status", "succeeded")
        self.topology = topology
        self.node_of_cpu = {cpu.id: cpu.node for cpu in topology.cpus}
        self._cache.facts.set(FACT_CPU, topology, now)
        self._cache.facts.set(FACT_BASIC, cpu_basic_info(topology, self._roots), now)
        try:
            numa = read_numa_meminfo(self._roots)
        except KernelFileError as error:
            self._failed(FACT_NUMA, error)
            return
        self._registries.count(f"collect_{FACT_NUMA}_status", "succeeded")
        self._cache.facts.set(FACT_NUMA, with_huge_pages(numa, enabled=self._huge_pages), now)

    def _failed(self, fact: str, error: KernelFileError) -> None:
        self._registries.count(f"collect_{fact}_status", "failed")
        self._output.fail("unreadable", str(error), source=fact)


def cpu_basic_info(topology: CpuTopology, roots: Roots) -> CPUBasicInfo:
    """A mask that is absent or malformed leaves its field empty, like any other unknown item."""
    try:
        mask = read_cbm_mask(roots.resctrl)
    except MalformedFile:
        mask = None
    return CPUBasicInfo(
        cpu_model=topology.info.model,
        hyper_thread_enabled=topology.smt,
        turbo_enabled=topology.turbo,
        cat_l3_cbm_mask="" if mask is None else f"{mask:x}",
        vendor_id=topology.info.vendor,
    )


def with_huge_pages(numa: Mapping[int, NumaMemInfo], *, enabled: bool) -> dict[int, NumaMemInfo]:
    """Each NUMA node with a count of every page size (0 where the kernel shows none), or with no counts."""
    sizes = HUGE_PAGE_KB if enabled else ()
    return {
        node: replace(info, huge_pages={size: info.huge_pages.get(size, 0) for size in sizes})
        for node, info in numa.items()
    }
