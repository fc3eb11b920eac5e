"""PCI functions by address: the form of an address, where a function is attached, which functions a driver has.

Some programs write addresses in upper case or with domains of eight digits; sysfs has one form, `dddd:bb:dd.f`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from koordlet.system.errors import UnreadableFile
from koordlet.system.kernel import read_text
from koordlet.system.roots import Roots

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class PciAddressError(ValueError):
    """A text that is not a PCI address."""


@dataclass(frozen=True, slots=True)
class PciPlace:
    """Where a PCI function is attached (spec 08 §2.1)."""

    bus_id: str
    """dddd:bb:dd.f, in lower case"""
    node_id: int = 0
    """NUMA node; 0 where the kernel shows -1"""
    pcie_id: str = ""
    """root complex, pci0000:9a; "" where it is unknown"""


def canonical(address: str) -> str:
    """The address as sysfs writes it: lower case, a domain of four digits (more only where its number needs them).

    Raises PciAddressError.
    """
    match = _ADDRESS.fullmatch(address.strip().lower())
    if match is None:
        raise PciAddressError(f"{address!r} is not a PCI address")
    return f"{int(match[1], 16):04x}:{match[2]}"


def place(roots: Roots, address: str) -> PciPlace:
    """The place of a function. What sysfs does not show has its default.

    Raises PciAddressError.
    """
    bus_id = canonical(address)
    directory = roots.sys / "bus/pci/devices" / bus_id
    return PciPlace(bus_id, _node(read_text(directory / "numa_node")), _root_complex(os.path.realpath(directory)))


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One function with its vendor and product number: four hexadecimal digits in lower case."""

    address: str
    vendor: str
    product: str


def functions(roots: Roots) -> tuple[PciFunction, ...]:
    """All functions by address; none on a machine without PCI. Raises UnreadableFile."""
    directory = roots.sys / "bus/pci/devices"
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UnreadableFile(directory, error) from error
    read = ((name, read_text(directory / name / "vendor"), read_text(directory / name / "device")) for name in names)
    return tuple(PciFunction(name, _number(vendor), _number(product)) for name, vendor, product in read)


def bound_to(roots: Roots, driver: str) -> tuple[str, ...]:
    """Addresses of the functions that a kernel driver is bound to, sorted; none where the driver is not loaded."""
    try:
        names = [entry.name for entry in (roots.sys / "bus/pci/drivers" / driver).iterdir()]
    except OSError:
        return ()
    return tuple(sorted(canonical(name) for name in names if _ADDRESS.fullmatch(name.lower())))


def _node(text: str | None) -> int:
    try:
        return max(0, int(text or "0"))
    except ValueError:
        return 0


def _number(text: str | None) -> str:
    """0x19e5 -> 19e5; "" for a function that was removed meanwhile."""
    return (text or "").strip().lower().removeprefix("0x")


def _root_complex(path: str) -> str:
    """The outermost component with such a name; bridges below it are named `dddd:bb:dd.f`."""
    return next((part for part in path.split("/") if _ROOT_COMPLEX.fullmatch(part)), "")
