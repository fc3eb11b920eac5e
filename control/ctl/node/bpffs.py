"""What koordlet may leave on the bpf file system when it is killed: pins, and a mount of its own.

koordlet removes both when it stops in order; `down` does it for one that could not. The mark is koordlet's own
(`koordlet.probes.loading.bpffs`; a test holds the two together): a mount without it is somebody else's and stays.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

MOUNTED_BY_US = "koordlet-mounted"
_KERNEL_FILES = {"maps.debug", "progs.debug"}
_libc = ctypes.CDLL(None, use_errno=True)


def pins(directory: Path) -> list[Path]:
    """Everything below `directory`, deepest first; empty when it is not there."""
    if not directory.is_dir():
        return []
    return sorted(directory.rglob("*"), key=lambda path: (-len(path.parts), str(path)))


def remove_pins(directory: Path) -> int:
    """Unpin all below `directory`, links first so that nothing counts into tables that go; how many there were."""
    found = pins(directory)
    files = [path for path in found if not path.is_dir()]
    for path in sorted(files, key=lambda path: not path.name.startswith("link")):
        path.unlink(missing_ok=True)
    for path in [*(path for path in found if path.is_dir()), directory]:
        if path.is_dir():
            path.rmdir()
    return len(files)


def mount_point(directory: Path) -> Path:
    """The mount that holds `directory`, which need not exist."""
    while not directory.is_dir() or not directory.is_mount():
        directory = directory.parent
    return directory


def is_ours(mount: Path) -> bool:
    """Did a koordlet mount it?"""
    return (mount / MOUNTED_BY_US).is_dir()


def others(mount: Path) -> list[str]:
    """What else is on this mount than the mark."""
    return sorted(entry.name for entry in mount.iterdir() if entry.name not in {MOUNTED_BY_US, *_KERNEL_FILES})


def unmount(mount: Path) -> str | None:
    """Undo koordlet's mount; None when done, or why it stays."""
    if found := others(mount):
        return f"still in use by {', '.join(found)}"
    (mount / MOUNTED_BY_US).rmdir()
    if _libc.umount2(os.fsencode(mount), 0) != 0:
        return os.strerror(ctypes.get_errno())
    return None
