"""The vendors in the order of the file: their PCI functions, and how their devices are discovered (spec 08 §2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from devicedaemon.vendors import cambricon, huawei, iluvatar, kunlun, metax
from devicedaemon.vendors.node import HostNode
from koordlet.api.deviceinfos import DeviceDescription
from koordlet.system.devices.pci import PciFunction


@dataclass(frozen=True, slots=True)
class Vendor:
    """`discover` raises VendorError when the whole round fails."""

    name: str
    pci_vendor: str
    discover: Callable[[HostNode], Awaitable[list[DeviceDescription]]]
    other_products: frozenset[str] = frozenset()
    """PCI product ids of the vendor that are not accelerators."""

    def has_some(self, functions: Iterable[PciFunction]) -> bool:
        """Whether there is an accelerator of the vendor; otherwise its tools are not run."""
        return any(
            function.vendor == self.pci_vendor and function.product not in self.other_products for function in functions
        )


VENDORS = (
    Vendor(huawei.VENDOR, "19e5", huawei.discover, frozenset({"1710", "1711"})),
    Vendor(cambricon.VENDOR, "cabc", cambricon.discover),
    Vendor(kunlun.VENDOR, "1d22", kunlun.discover),
    Vendor(metax.VENDOR, "9999", metax.discover),
    Vendor(iluvatar.VENDOR, "1e3e", iluvatar.discover),
)
"""NVIDIA's GPUs are not here: koordlet reads them itself, by NVML."""
