"""Names and types of facts that one module stores and another reads (spec 02 §4.4).

A reader passes the maximum age that it accepts, so that the last value of a stopped producer is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.devices.model import DeviceFault
from koordlet.devices.model import GpuInfo as GpuInfo  # re-exported for readers of facts
from koordlet.system.devices.pci import PciPlace

FACT_GPU = "GPU"
"""tuple[GpuInfo, ...]"""
FACT_GPU_DRIVER = "GPU_driver"
"""str: version of NVIDIA's driver, "" where NVML does not return it"""
FACT_GPU_FAULTS = "GPU_faults"
"""dict[str, DeviceFault] by UUID: unhealthy GPUs"""
FACT_RDMA = "RDMA"
"""tuple[RdmaInfo, ...]"""
FACT_XPU = "XPU"
"""tuple[XpuInfo, ...]"""
FACT_COLD_MEMORY = "cold_memory_started"
"""str, not empty: source of the cold-memory collector's figures; stored with each round that had figures"""


@dataclass(frozen=True, slots=True)
class RdmaInfo:
    """One RDMA NIC: a PCI function with RDMA devices that is not a virtual function (spec 08 §3.4)."""

    place: PciPlace
    minor: int
    healthy: bool
    vf_enabled: bool = False
    vfs: tuple[str, ...] = ()
    """PCI addresses of its virtual functions"""


@dataclass(frozen=True, slots=True)
class PeerLink:
    """Devices with a direct link to one device."""

    peer_minor: str
    """in the vendor's notation: 1,2,3"""
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
    """amounts and names unchanged"""
    links: tuple[PeerLink, ...] = ()
    must_honor_partition: bool = False
    place: PciPlace | None = None
    fault: DeviceFault | None = None
    status_known: bool = False
    """whether the file has its health; a device without status is healthy and has no condition"""
