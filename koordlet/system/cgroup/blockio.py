"""Bytes and operations of a cgroup by disk, as the kernel charges them.

v2: ``io.stat`` (Documentation/admin-guide/cgroup-v2.rst); v1: ``blkio.throttle.io_service_bytes`` and ``.io_serviced``.
Write-back on v1 is charged to the root, and operations are bios, before they are merged into requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from koordlet.system.beneath import read_text_beneath
from koordlet.system.cgroup import tree
from koordlet.system.devices.blockdev import device_number

V1_BYTES, V1_OPERATIONS, V2 = "blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced", "io.stat"
DIRECTIONS = ("read", "write", "discard")
_V1_DIRECTIONS = {name.capitalize(): index for index, name in enumerate(DIRECTIONS)}


@dataclass(slots=True)
class DiskUse:
    """Cumulative use of one disk, by `DIRECTIONS`."""

    bytes: list[int] = field(default_factory=lambda: [0] * len(DIRECTIONS))
    operations: list[int] = field(default_factory=lambda: [0] * len(DIRECTIONS))

    @property
    def any(self) -> bool:
        """Whether anything was counted."""
        return any(self.bytes) or any(self.operations)


def parse_io_stat(text: str) -> dict[int, DiskUse]:
    """Device number -> use. Lines are ``8:0 rbytes=1 wbytes=2 rios=3 …``; unknown keys are ignored."""
    use: dict[int, DiskUse] = {}
    for line in text.splitlines():
        name, *pairs = line.split()
        if ":" not in name:
            continue
        disk = use.setdefault(device_number(name), DiskUse())
        for pair in pairs:
            key, _, value = pair.partition("=")
            for column, unit in ((disk.bytes, "bytes"), (disk.operations, "ios")):
                if key[1:] == unit and key[0] in "rwd":
                    column["rwd".index(key[0])] = int(value)
    return use


def parse_blkio(service_bytes: str, serviced: str) -> dict[int, DiskUse]:
    """Device number -> use. Lines are ``8:0 Read 4096``; the last line is a ``Total``."""
    use: dict[int, DiskUse] = {}
    for attribute, text in (("bytes", service_bytes), ("operations", serviced)):
        for line in text.splitlines():
            cells = line.split()
            if len(cells) == 3 and cells[1] in _V1_DIRECTIONS:
                column = getattr(use.setdefault(device_number(cells[0]), DiskUse()), attribute)
                column[_V1_DIRECTIONS[cells[1]]] = int(cells[2])
    return use


def any_disk_use_file(root: Path, *, unified: bool) -> bool:
    """Whether any cgroup of the tree has the file that `read_disk_use` reads."""
    name = V2 if unified else V1_BYTES
    return any((root / path / name).exists() for path in tree.walk(root))


def read_disk_use(root: Path, directory: str, *, unified: bool) -> dict[int, DiskUse]:
    """Device number -> use of one cgroup, without following links. Raises OSError when the cgroup or its files are
    missing."""

    def text(name: str) -> str:
        return read_text_beneath(str(root), f"{directory}/{name}")

    return parse_io_stat(text(V2)) if unified else parse_blkio(text(V1_BYTES), text(V1_OPERATIONS))
