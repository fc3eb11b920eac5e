"""Device nodes of RDMA functions: by PCI address from sysfs, numbers from the node under /dev."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from koordlet.system.roots import Roots

CONNECTION_MANAGER = ""
"""Asks for the connection manager, which is no PCI function's."""
DIRECTORY = "/dev/infiniband"
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


class RDMAError(Exception):
    """A device that is not there; the message names it."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device; `path` as containers see it."""

    path: str
    major: int
    minor: int


def verbs_device(roots: Roots, address: str, dev: Path = Path("/dev")) -> DeviceNode:
    """The verbs device of a PCI function, or `rdma_cm`. Raises RDMAError."""
    name = "rdma_cm" if address == CONNECTION_MANAGER else _verbs_name(roots, address)
    try:
        found = (dev / "infiniband" / name).stat()
    except OSError as error:
        raise RDMAError(f"{DIRECTORY}/{name}: {error.strerror}") from error
    if not stat.S_ISCHR(found.st_mode):
        raise RDMAError(f"{DIRECTORY}/{name} is not a character device")
    return DeviceNode(f"{DIRECTORY}/{name}", os.major(found.st_rdev), os.minor(found.st_rdev))


def _verbs_name(roots: Roots, address: str) -> str:
    if not _ADDRESS.fullmatch(address):
        raise RDMAError(f"{address!r} is not a PCI address")
    directory = roots.sys / "bus/pci/devices" / address / "infiniband_verbs"
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise RDMAError(f"{directory}: {error.strerror}") from error
    if not names:
        raise RDMAError(f"{directory} is empty: the function has no verbs device")
    return names[0]
