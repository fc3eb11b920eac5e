"""What a vendor's discovery may ask of the node, and what all of them have in common."""

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
    """A vendor's devices, or one of them, can't be told; the message says which command or text is at fault."""


class ToolError(VendorError):
    """A command that could not be run, failed or took too long. `output`: what it had printed."""

    def __init__(self, text: str, output: str = "") -> None:
        super().__init__(text)
        self.output = output


class Tools(Protocol):
    """Runs programs of the host."""

    async def run(self, *command: str) -> str:
        """What it prints, errors too. Raises ToolError."""
        ...


@dataclass(frozen=True, slots=True)
class Node:
    """`roots.sys` is the host's sysfs, `dev` its /dev."""

    tools: Tools
    roots: Roots
    dev: Path

    def topology(self, bus_id: str, *, node_id: str | None = None, links: Iterable[P2PLink] = ()) -> DeviceInfoTopology:
        """Where a device sits; an address that sysfs does not know is kept (spec 08 §2.1)."""
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
    """Devices one after the other; one that can't be told is left out and said. VendorError when it is all of them."""
    found: list[DeviceDescription] = []
    failed: list[VendorError] = []
    for name in names:
        try:
            found.append(await describe(name))
        except VendorError as error:
            log.warning("device left out", vendor=vendor, device=name, error=str(error))
            failed.append(error)
    if failed and not found:
        raise failed[0]
    return found


def shared(memory: str) -> dict[str, str]:
    """Resources of a device that is given out in shares."""
    return {RESOURCE_GPU_MEMORY: memory, RESOURCE_GPU_CORE: "100"}


# Reading what tools print. `where` is the command, for errors.


def lines_with(text: str, *parts: str) -> list[str]:
    """Lines that contain one of `parts`."""
    return [line for line in text.splitlines() if any(part in line for part in parts)]


def word(line: str, place: int, where: str) -> str:
    """The word at `place`, from 0 or from the end."""
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
    """The sum of the last words; there must be a line."""
    if not lines:
        raise VendorError(f"{where}: nothing says {what}")
    return sum(number(line, where) for line in lines)


def memory(text: str, where: str) -> str:
    """`text` if it is an amount."""
    try:
        if Quantity(text).value() > 0:
            return text
    except ValueError:
        pass
    raise VendorError(f"{where}: {text[:80]!r} is no amount of memory")


def counted(count: int, where: str) -> range:
    """Numbers of so many devices; there must be one, since the PCI bus shows one, and not absurdly many."""
    if not 0 < count <= _MAX_DEVICES:
        raise VendorError(f"{where}: tells of {count} devices")
    return range(count)
