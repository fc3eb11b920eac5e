"""One round after the other: all vendors at once, each forgiven a few bad rounds (spec 08 §1.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from devicedaemon.vendors import VENDORS, Vendor
from devicedaemon.vendors.node import Node, VendorError
from koordlet.api.deviceinfos import DeviceDescription
from koordlet.app.logging import get_logger
from koordlet.system.devices.pci import PciFunction
from koordlet.system.errors import KernelFileError

log = get_logger(__name__)

FORGIVEN = 3
"""Rounds in a row in which a vendor's devices stay that could not be told anew."""
VENDOR_SECONDS = 300.0
"""A vendor's whole round; what it has not told by then counts as not told."""


@dataclass(slots=True)
class _Known:
    devices: list[DeviceDescription] = field(default_factory=list)
    failures: int = 0


class Rounds:
    """Remembers what each vendor said last."""

    def __init__(
        self,
        node: Node,
        functions: Callable[[], Sequence[PciFunction]],
        vendors: Sequence[Vendor] = VENDORS,
        *,
        seconds: float = VENDOR_SECONDS,
    ) -> None:
        """`functions`: the machine's PCI functions; KernelFileError when they can't be read."""
        self._node, self._functions, self._vendors, self._seconds = node, functions, vendors, seconds
        self._known = {vendor.name: _Known() for vendor in vendors}

    async def run(self) -> list[DeviceDescription]:
        """All devices, in the order of the vendors."""
        try:
            functions = self._functions()
        except KernelFileError as error:
            return [device for vendor in self._vendors for device in self._failed(vendor, str(error))]
        told = await asyncio.gather(*(self._ask(vendor, functions) for vendor in self._vendors))
        return [device for devices in told for device in devices]

    async def _ask(self, vendor: Vendor, functions: Sequence[PciFunction]) -> list[DeviceDescription]:
        known = self._known[vendor.name]
        if not vendor.has_some(functions):
            known.devices, known.failures = [], 0
            return []
        try:
            async with asyncio.timeout(self._seconds):
                known.devices = await vendor.discover(self._node)
        except VendorError as error:
            return self._failed(vendor, str(error))
        except TimeoutError:
            return self._failed(vendor, f"not told within {self._seconds:g} s")
        except Exception as error:  # ours; the other vendors have nothing to do with it
            log.exception("a vendor's tools said what nobody expected", vendor=vendor.name)
            return self._failed(vendor, repr(error))
        known.failures = 0
        return known.devices

    def _failed(self, vendor: Vendor, why: str) -> list[DeviceDescription]:
        known = self._known[vendor.name]
        known.failures += 1
        if known.failures > FORGIVEN:
            known.devices = []
        log.error("devices of a vendor could not be told", vendor=vendor.name, error=why, kept=len(known.devices))
        return known.devices
