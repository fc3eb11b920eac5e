"""What kind of CPU the node has and its huge pages, for the NodeResourceTopology reporter (spec 02 §5.8). Pure but for
one file of resctrl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from koordlet.api.annotations.topology import CPUBasicInfo
from koordlet.system.cpu.cputopology import CpuTopology
from koordlet.system.errors import MalformedFile
from koordlet.system.proc.procfs import HUGE_PAGE_KB, NumaMemInfo
from koordlet.system.resctrl import read_cbm_mask
from koordlet.system.roots import Roots

FACT_BASIC = "node_cpu_basic_info"


def cpu_basic_info(topology: CpuTopology, roots: Roots) -> CPUBasicInfo:
    """A mask that is absent or none leaves its field empty, as any other item that can't be told."""
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


def with_huge_pages(numa: Mapping[int, NumaMemInfo], *, wanted: bool) -> dict[int, NumaMemInfo]:
    """Each NUMA node with a count of every page size (0 where the kernel shows none), or with none at all."""
    sizes = HUGE_PAGE_KB if wanted else ()
    return {
        node: replace(info, huge_pages={size: info.huge_pages.get(size, 0) for size in sizes})
        for node, info in numa.items()
    }
