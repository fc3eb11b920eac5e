"""Discovery rounds: all vendors concurrently; a few failed rounds of each are tolerated (spec 08 §1.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from devicedaemon.vendors import VENDORS, Vendor
from devicedaemon.vendors.node import HostNode, VendorError
from koordlet.api.deviceinfos import DeviceDescription
from koordlet.app.logging import get_logger
from koordlet.system.devices.pci import PciFunction
from koordlet.system.errors import KernelFileError

log = get_logger(__name__)

MAX_FAILED_ROUNDS = 3
"""Consecutive failed rounds during which a vendor's last devices are kept."""
VENDOR_TIMEOUT_SECONDS = 300.0
"""For one round of one vendor."""


@dataclass(slots=True)
class _Known:
    devices: list[DeviceDescription] = field(default_factory=list)
    failures: int = 0


class DiscoveryRounds:
    """Keeps each vendor's last devices."""

    def __init__(
        self,
        node: HostNode,
        functions: Callable[[], Sequence[PciFunction]],
        vendors: Sequence[Vendor] = VENDORS,
        *,
        seconds: float = VENDOR_TIMEOUT_SECONDS,
    ) -> None:
        """`functions` returns the machine's PCI functions; raises KernelFileError if they cannot be read."""
        self._node = node
        self._functions = functions
        self._vendors = vendors
        self._seconds = seconds
        self._known = {vendor.name: _Known() for vendor in vendors}

    async def run(self) -> list[DeviceDescription]:
        """All devices, in the order of the vendors."""
        try:
            functions = self._functions()
        except KernelFileError as error:
            return [device for vendor in self._vendors for device in self._failed(vendor, str(error))]
        per_vendor = await asyncio.gather(*(self._discover(vendor, functions) for vendor in self._vendors))
        return [device for devices in per_vendor for device in devices]

    async def _discover(self, vendor: Vendor, functions: Sequence[PciFunction]) -> list[DeviceDescription]:
        known = self._known[vendor.name]
        if not vendor.has_some(functions):
            known.devices = []
            known.failures = 0
            return []
        try:
            async with asyncio.timeout(self._seconds):
                known.devices = await vendor.discover(self._node)
        except VendorError as error:
            return self._failed(vendor, str(error))
        except TimeoutError:
            return self._failed(vendor, f"no result within {self._seconds:g} s")
        except Exception as error:  # a defect here; the other vendors are not affected
            log.exception("Unexpected output of a vendor's tools", vendor=vendor.name)
            return self._failed(vendor, repr(error))
        known.failures = 0
        return known.devices

    def _failed(self, vendor: Vendor, reason: str) -> list[DeviceDescription]:
        known = self._known[vendor.name]
        known.failures += 1
        if known.failures > MAX_FAILED_ROUNDS:
            known.devices = []
        log.error("Device discovery of a vendor failed", vendor=vendor.name, error=reason, kept=len(known.devices))
        return known.devices
