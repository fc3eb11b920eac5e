"""The vendors, in the order of the file: which PCI functions are theirs, and what tells of them (spec 08 §2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from devicedaemon.vendors import cambricon, huawei, iluvatar, kunlun, metax
from devicedaemon.vendors.node import Node
from koordlet.api.deviceinfos import DeviceDescription
from koordlet.system.devices.pci import PciFunction


@dataclass(frozen=True, slots=True)
class Vendor:
    """`discover` raises VendorError when the whole round is lost."""

    name: str
    pci_vendor: str
    discover: Callable[[Node], Awaitable[list[DeviceDescription]]]
    other_products: frozenset[str] = frozenset()
    """Of the same vendor, and no accelerators."""

    def has_some(self, functions: Iterable[PciFunction]) -> bool:
        """Without one its tools are not run."""
        return any(one.vendor == self.pci_vendor and one.product not in self.other_products for one in functions)


VENDORS = (
    Vendor(huawei.VENDOR, "19e5", huawei.discover, frozenset({"1710", "1711"})),
    Vendor(cambricon.VENDOR, "cabc", cambricon.discover),
    Vendor(kunlun.VENDOR, "1d22", kunlun.discover),
    Vendor(metax.VENDOR, "9999", metax.discover),
    Vendor(iluvatar.VENDOR, "1e3e", iluvatar.discover),
)
"""NVIDIA's are koordlet's own business, by NVML."""
