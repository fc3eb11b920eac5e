"""The node as seen by a vendor's discovery, and helpers that all vendors share."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from koordlet.api.deviceinfos import DeviceDescription, DeviceInfoStatus, DeviceInfoTopology, P2PLink
from koordlet.api.encoding.quantity import Quantity
from koordlet.api.names import RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY
from koordlet.app.logging import get_logger
from koordlet.system.devices import pci
from koordlet.system.roots import Roots

log = get_logger(__name__)

HEALTHY = DeviceInfoStatus(healthy=True)
_NO_SOCKET = "-1"
_MAX_DEVICES = 1024


class VendorError(Exception):
    """A vendor's devices, or one of them, cannot be described; the message has the command or text at fault."""


class ToolError(VendorError):
    """A command that could not be run, failed or timed out. `output`: its output until then."""

    def __init__(self, text: str, output: str = "") -> None:
        super().__init__(text)
        self.output = output


class Tools(Protocol):
    """Runs programs of the host."""

    async def run(self, *command: str) -> str:
        """Its standard output and standard error. Raises ToolError."""
        ...


@dataclass(frozen=True, slots=True)
class HostNode:
    """`roots.sys` is the host's sysfs, `dev` its /dev."""

    tools: Tools
    roots: Roots
    dev: Path

    def topology(self, bus_id: str, *, node_id: str | None = None, links: Iterable[P2PLink] = ()) -> DeviceInfoTopology:
        """A device's place; an address that is unknown to sysfs is kept (spec 08 §2.1)."""
        try:
            place = pci.place(self.roots, bus_id)
        except pci.PciAddressError:
            place = pci.PciPlace(bus_id.lower())
        return DeviceInfoTopology(
            p2p_links=list(links),
            socket_id=_NO_SOCKET,
            node_id=str(place.node_id) if node_id is None else node_id,
            pcie_id=place.pcie_id,
            bus_id=place.bus_id,
        )


async def each(
    vendor: str, names: Iterable[str], describe: Callable[[str], Awaitable[DeviceDescription]]
) -> list[DeviceDescription]:
    """Describe devices one after the other; a device that cannot be described is skipped and logged. Raises VendorError
    if all of them fail."""
    devices: list[DeviceDescription] = []
    errors: list[VendorError] = []
    for name in names:
        try:
            devices.append(await describe(name))
        except VendorError as error:
            log.warning("Device skipped", vendor=vendor, device=name, error=str(error))
            errors.append(error)
    if errors and not devices:
        raise errors[0]
    return devices


def shared(memory: str) -> dict[str, str]:
    """Resources of a device that can be shared."""
    return {RESOURCE_GPU_MEMORY: memory, RESOURCE_GPU_CORE: "100"}


# Parsing of tools' output. `where` is the command, for error messages.


def lines_with(text: str, *parts: str) -> list[str]:
    """Lines that contain one of `parts`."""
    return [line for line in text.splitlines() if any(part in line for part in parts)]


def word(line: str, place: int, where: str) -> str:
    """The word at index `place`, which may be negative."""
    words = line.split()
    try:
        return words[place]
    except IndexError:
        raise VendorError(f"{where}: too few words in {line.strip()[:200]!r}") from None


def number(line: str, where: str) -> int:
    """The last word as a number."""
    last = word(line, -1, where)
    if not re.fullmatch(r"[0-9]{1,12}", last, re.ASCII):
        raise VendorError(f"{where}: {last[:80]!r} in {line.strip()[:200]!r} is not a number")
    return int(last)


def total(lines: list[str], what: str, where: str) -> int:
    """The sum of the lines' last words; VendorError without lines."""
    if not lines:
        raise VendorError(f"{where}: no line with {what}")
    return sum(number(line, where) for line in lines)


def memory(text: str, where: str) -> str:
    """`text`, if it is a positive amount."""
    try:
        if Quantity(text).value() > 0:
            return text
    except ValueError:
        pass
    raise VendorError(f"{where}: {text[:80]!r} is not an amount of memory")


def counted(count: int, where: str) -> range:
    """Numbers of `count` devices: at least one, because the PCI bus has one, and at most `_MAX_DEVICES`."""
    if not 0 < count <= _MAX_DEVICES:
        raise VendorError(f"{where}: reports {count} devices")
    return range(count)
