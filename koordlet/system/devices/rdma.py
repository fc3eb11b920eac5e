"""Device nodes of RDMA functions: the name by PCI address from sysfs, the numbers from the node below /dev."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass

from koordlet.system.roots import Roots

CONNECTION_MANAGER = ""
"""The address of the connection manager, which belongs to no PCI function."""
DIRECTORY = "/dev/infiniband"
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


class RDMAError(Exception):
    """A device that does not exist; the message contains its name."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device; `path` as containers see it, `mode` the permissions of the host's node."""

    path: str
    major: int
    minor: int
    mode: int


def verbs_device(roots: Roots, address: str) -> DeviceNode:
    """The verbs device of a PCI function, or `rdma_cm`. Raises RDMAError."""
    name = "rdma_cm" if address == CONNECTION_MANAGER else _verbs_name(roots, address)
    try:
        status = (roots.dev / "infiniband" / name).stat()
    except OSError as error:
        raise RDMAError(f"{DIRECTORY}/{name}: {error.strerror}") from error
    if not stat.S_ISCHR(status.st_mode):
        raise RDMAError(f"{DIRECTORY}/{name} is not a character device")
    mode = stat.S_IMODE(status.st_mode)
    return DeviceNode(f"{DIRECTORY}/{name}", os.major(status.st_rdev), os.minor(status.st_rdev), mode)


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
