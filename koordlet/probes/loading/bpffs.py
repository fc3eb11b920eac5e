"""The bpf file system and the probes' pins in it.

The pins of a probe are one directory ``<pin_dir>/<probe>/<key>``. The key is a digest of everything that shapes the
tables, so an upgraded koordlet never reads tables of another layout: it removes them. ``ready`` inside marks a complete
set, so that an incomplete set of a loader that was killed is not trusted. bpffs holds no plain files, hence the marks
are directories.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

READY = "ready"
MOUNTED_BY_US = "koordlet-mounted"
_MAGIC = 0xCAFE4A11
_libc = ctypes.CDLL(None, use_errno=True)


class BpffsUnavailable(Exception):
    """No bpf file system at the requested place; the message names the step that failed."""


def is_bpffs(path: Path) -> bool:
    """Whether `path` is on a bpf file system."""
    buffer = ctypes.create_string_buffer(256)
    return _libc.statfs(os.fsencode(path), buffer) == 0 and (
        ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF == _MAGIC
    )


def ensure(pin_dir: Path, mount_point: Path, may_mount: bool) -> None:
    """Make `pin_dir`; mounts bpffs at `mount_point` if it is not mounted and `may_mount`. Raises `BpffsUnavailable`."""
    if not is_bpffs(mount_point):
        if not may_mount:
            raise BpffsUnavailable(f"{mount_point} is not a mounted bpf file system")
        if _libc.mount(b"bpf", os.fsencode(mount_point), b"bpf", 0, None) != 0:
            raise BpffsUnavailable(f"mount bpffs at {mount_point}: {os.strerror(ctypes.get_errno())}")
        (mount_point / MOUNTED_BY_US).mkdir()
    try:
        pin_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BpffsUnavailable(f"{pin_dir}: {error.strerror}") from error
    if not is_bpffs(pin_dir):
        raise BpffsUnavailable(f"{pin_dir} is not within a bpf file system")


def unmount_if_ours(mount_point: Path) -> bool:
    """Undo the mount of `ensure`, in this or an earlier process, once nothing else is pinned there."""
    mark = mount_point / MOUNTED_BY_US
    if not mark.is_dir():
        return False
    left = {entry.name for entry in mount_point.iterdir()} - {MOUNTED_BY_US, "maps.debug", "progs.debug"}
    if left:
        return False
    mark.rmdir()
    if _libc.umount2(os.fsencode(mount_point), 0) == 0:
        return True
    mark.mkdir()  # busy: a process uses it; the next koordlet that stops tries again
    return False


def remove_pins(directory: Path) -> None:
    """Unpin one set: links first, so that nothing counts into tables that are being removed. It may be missing."""
    if not directory.is_dir():
        return
    with suppress(FileNotFoundError):
        (directory / READY).rmdir()
    for entry in sorted(directory.iterdir(), key=lambda entry: not entry.name.startswith("link_")):
        entry.unlink()
    directory.rmdir()


def remove_other_pins(probe_dir: Path, key: str) -> None:
    """Remove the sets of other keys: left by a koordlet of another version or configuration."""
    if not probe_dir.is_dir():
        return
    for entry in list(probe_dir.iterdir()):
        if entry.name != key:
            remove_pins(entry)


def remove_empty(directory: Path, stop: Path) -> None:
    """Remove `directory` and its parents below `stop` as long as they are empty."""
    while directory != stop and stop in directory.parents:
        try:
            directory.rmdir()
        except OSError:
            return
        directory = directory.parent
