"""PCI functions by address: how an address is written, where a function sits, which functions a driver holds.

Programs write addresses in upper case and with domains of eight digits; sysfs knows one spelling, `dddd:bb:dd.f`.
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
    """A text that is no PCI address."""


@dataclass(frozen=True, slots=True)
class PciPlace:
    """Where a PCI function sits (spec 08 §2.1)."""

    bus_id: str
    """dddd:bb:dd.f, in lower case"""
    node_id: int = 0
    """NUMA node; 0 where the kernel says -1"""
    pcie_id: str = ""
    """root complex, pci0000:9a; "" where it can't be told"""


def canonical(address: str) -> str:
    """The address as sysfs writes it: lower case, a domain of four digits (more only where its number needs them).

    Raises PciAddressError.
    """
    found = _ADDRESS.fullmatch(address.strip().lower())
    if found is None:
        raise PciAddressError(f"{address!r} is not a PCI address")
    return f"{int(found[1], 16):04x}:{found[2]}"


def place(roots: Roots, address: str) -> PciPlace:
    """The place of a function. What sysfs does not tell stays at its default, the address is kept in any case.

    Raises PciAddressError.
    """
    bus_id = canonical(address)
    directory = roots.sys / "bus/pci/devices" / bus_id
    return PciPlace(bus_id, _node(read_text(directory / "numa_node")), _root_complex(os.path.realpath(directory)))


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One function of the machine and what it is; both numbers are four hexadecimal digits in lower case."""

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
    """Addresses of the functions that a kernel driver holds, sorted; none where the driver is not loaded."""
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
    """0x19e5 -> 19e5; "" for a function that went meanwhile."""
    return (text or "").strip().lower().removeprefix("0x")


def _root_complex(path: str) -> str:
    """The outermost part that names one: bridges below it are `dddd:bb:dd.f`."""
    return next((part for part in path.split("/") if _ROOT_COMPLEX.fullmatch(part)), "")
