"""RDMA NICs: physical PCI network functions with RDMA devices, their ports and virtual functions (spec 08 §3.4).

They are found from the few entries of /sys/class/infiniband instead of all PCI functions of the machine. RDMA devices
without a PCI function (rxe, siw) and virtual functions do not count. Source: Documentation/ABI/stable/
sysfs-class-infiniband, Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from koordlet.system.devices import pci
from koordlet.system.errors import UnreadableFile
from koordlet.system.kernel import read_text
from koordlet.system.roots import Roots

NETWORK = "0x02"
"""Prefix of `class` of a network controller."""
_ACTIVE = "ACTIVE"
_DRIVER_NAME = re.compile(r"[a-z]+[0-9]*[a-z_]*(?<![0-9])([0-9]+)")
"""A name given by the driver: mlx5_0, bnxt_re1. The number is all digits at the end: irdma10 has the number 10."""
_PERSISTENT_NAME = re.compile(r"(?:ib|iw|opa|roce|usnic)(?:P[0-9]+)?(?:[ops][0-9]|x[0-9a-f]{12})[0-9a-fnpsdv]*")
"""Names by place or address (udev's `60-rdma-persistent-naming.rules`): their digits are no device number."""
_UVERBS = re.compile(r"uverbs([0-9]+)")
_VIRTFN = re.compile(r"virtfn([0-9]+)")


@dataclass(frozen=True, slots=True)
class RdmaNic:
    """One physical function."""

    place: pci.PciPlace
    device: str
    """its first RDMA device: mlx5_0"""
    number: int | None
    """number of that device; None where neither its name nor its verbs device has one"""


def device_names(roots: Roots) -> tuple[str, ...]:
    """All RDMA devices, sorted; none where the kernel has no RDMA. Raises UnreadableFile."""
    try:
        return tuple(sorted(entry.name for entry in _class(roots).iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise UnreadableFile(_class(roots), error) from error


def nics(roots: Roots, names: tuple[str, ...]) -> tuple[RdmaNic, ...]:
    """The functions of the devices `names`, by address; a function that is removed meanwhile is left out."""
    first: dict[str, str] = {}
    for name in names:
        address = _address(roots, name)
        if address is not None:
            first.setdefault(address, name)
    return tuple(
        RdmaNic(pci.place(roots, address), name, _number(roots, address, name))
        for address, name in sorted(first.items())
        if _is_physical_nic(_function(roots, address))
    )


def is_active(roots: Roots, device: str) -> bool:
    """Whether every port of an RDMA device is active; one without ports is not."""
    try:
        ports = list((_class(roots) / device / "ports").iterdir())
    except OSError:
        return False
    return bool(ports) and all(_ACTIVE in (read_text(port / "state") or "") for port in ports)


def enabled_vfs(roots: Roots, address: str) -> int:
    """Number of virtual functions that a function has now; 0 where it cannot have any."""
    text = (read_text(_function(roots, address) / "sriov_numvfs") or "").strip()
    return int(text) if text.isdecimal() else 0


def virtual_functions(roots: Roots, address: str) -> tuple[str, ...]:
    """Their addresses, in the order of their numbers."""
    directory = _function(roots, address)
    try:
        links = {int(match[1]): entry for entry in directory.iterdir() if (match := _VIRTFN.fullmatch(entry.name))}
        return tuple(pci.canonical(links[number].resolve().name) for number in sorted(links))
    except (OSError, pci.PciAddressError):  # they are being created or removed
        return ()


def number_of(name: str) -> int | None:
    """The number in a name given by the driver; None for other names."""
    match = None if _PERSISTENT_NAME.fullmatch(name) else _DRIVER_NAME.fullmatch(name)
    return int(match[1]) if match else None


def _class(roots: Roots) -> Path:
    return roots.sys / "class/infiniband"


def _function(roots: Roots, address: str) -> Path:
    return roots.sys / "bus/pci/devices" / address


def _address(roots: Roots, name: str) -> str | None:
    try:
        return pci.canonical((_class(roots) / name / "device").resolve(strict=True).name)
    except (OSError, pci.PciAddressError):
        return None


def _is_physical_nic(function: Path) -> bool:
    virtual = function / "physfn"
    return (read_text(function / "class") or "").startswith(NETWORK) and not (virtual.is_symlink() or virtual.exists())


def _number(roots: Roots, address: str, name: str) -> int | None:
    number = number_of(name)
    if number is not None or not _PERSISTENT_NAME.fullmatch(name):
        return number
    try:
        verbs = sorted(entry.name for entry in (_function(roots, address) / "infiniband_verbs").iterdir())
    except OSError:
        return None
    match = _UVERBS.fullmatch(verbs[0]) if verbs else None
    return int(match[1]) if match else None
