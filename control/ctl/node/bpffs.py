"""What a killed koordlet may leave on the bpf file system: pins, and its own mount.

koordlet removes both at an orderly stop; `down` does it for a killed one. A mount without koordlet's mark
(`koordlet.probes.loading.bpffs`; a test compares the two definitions) belongs to another process and stays.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

MOUNT_MARK = "koordlet-mounted"
_KERNEL_FILES = {"maps.debug", "progs.debug"}
_libc = ctypes.CDLL(None, use_errno=True)


def pins(directory: Path) -> list[Path]:
    """Everything below `directory`, deepest first; empty when it does not exist."""
    if not directory.is_dir():
        return []
    return sorted(directory.rglob("*"), key=lambda path: (-len(path.parts), str(path)))


def remove_pins(directory: Path) -> int:
    """Unpin everything below `directory`, links first so that no program counts into removed tables; returns how
    many."""
    entries = pins(directory)
    files = [path for path in entries if not path.is_dir()]
    for path in sorted(files, key=lambda path: not path.name.startswith("link")):
        path.unlink(missing_ok=True)
    for path in [*(path for path in entries if path.is_dir()), directory]:
        if path.is_dir():
            path.rmdir()
    return len(files)


def mount_point(directory: Path) -> Path:
    """The mount point of `directory`, which need not exist."""
    while not directory.is_dir() or not directory.is_mount():
        directory = directory.parent
    return directory


def is_koordlet_mount(mount: Path) -> bool:
    """Whether a koordlet has mounted it."""
    return (mount / MOUNT_MARK).is_dir()


def foreign_entries(mount: Path) -> list[str]:
    """Names on this mount besides the mark."""
    return sorted(entry.name for entry in mount.iterdir() if entry.name not in {MOUNT_MARK, *_KERNEL_FILES})


def unmount(mount: Path) -> str | None:
    """Unmount koordlet's mount; None on success, else the reason why it stays."""
    if entries := foreign_entries(mount):
        return f"still in use by {', '.join(entries)}"
    (mount / MOUNT_MARK).rmdir()
    if _libc.umount2(os.fsencode(mount), 0) != 0:
        return os.strerror(ctypes.get_errno())
    return None
