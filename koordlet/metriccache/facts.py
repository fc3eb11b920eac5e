"""Names of facts that one module stores and another reads, and their types (spec 02 §4.4).

A reader gives the age that it still believes: a producer that stopped must not speak on.
"""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.devices.model import DeviceFault
from koordlet.devices.model import GpuInfo as GpuInfo  # for those who read facts
from koordlet.system.devices.pci import PciPlace

FACT_GPU = "GPU"
"""tuple[GpuInfo, ...]"""
FACT_GPU_DRIVER = "GPU_driver"
"""str: version of NVIDIA's driver, "" where NVML does not tell"""
FACT_GPU_FAULTS = "GPU_faults"
"""dict[str, DeviceFault] by UUID: GPUs found unhealthy"""
FACT_RDMA = "RDMA"
"""tuple[RdmaInfo, ...]"""
FACT_XPU = "XPU"
"""tuple[XpuInfo, ...]"""
FACT_COLD_MEMORY = "cold_memory_started"
"""str, not empty: where the cold-memory collector has its figures from; stored with each round that gave some"""


@dataclass(frozen=True, slots=True)
class RdmaInfo:
    """One RDMA NIC: a PCI function with RDMA devices that is no virtual function (spec 08 §3.4)."""

    place: PciPlace
    minor: int
    healthy: bool
    vf_enabled: bool = False
    vfs: tuple[str, ...] = ()
    """PCI addresses of its virtual functions"""


@dataclass(frozen=True, slots=True)
class PeerLink:
    """Devices that are linked to one directly."""

    peer_minor: str
    """as the vendor writes it: 1,2,3"""
    type: str
    """HCCS"""


@dataclass(frozen=True, slots=True)
class XpuInfo:
    """One accelerator that another program described in `--xpu-device-infos-dir` (spec 08 §1.3, §3.2)."""

    vendor: str
    model: str
    uuid: str
    minor: int
    resources: dict[str, str]
    """amounts as written, by name as written"""
    links: tuple[PeerLink, ...] = ()
    must_honor_partition: bool = False
    place: PciPlace | None = None
    fault: DeviceFault | None = None
    status_known: bool = False
    """whether the file told its health; one without status is healthy and has no condition"""
