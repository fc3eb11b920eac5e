"""Everything that a containerd of ours has made and would leave, taken away without asking it: it may be dead.

Containers outlive containerd by design: each has a shim. What they are is read from the bundles below the state
folder. Killed are the processes in the cgroups that are named after those containers, and shims whose command line
names a path below the folder (containerd's socket). To be called when containerd itself has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from control.standalone.containerd.config import Folder
from control.standalone.kubelet.cgroups.directories import CgroupTree

PROC = Path("/proc")
PATIENCE = 10.0
MNT_DETACH = 2
SHIM_SOCKETS = Path("/run/containerd/s")
_libc = ctypes.CDLL(None, use_errno=True)


class WipeError(Exception):
    """Something stays; the message says what."""


def wipe(folder: Folder, tree: CgroupTree) -> bool:
    """End containers and shims, remove their cgroups, sockets and mounts. Files stay. Raises `WipeError`.

    False when there was nothing.
    """
    bundles = list(_bundles(folder))
    found = bool(bundles or shims(folder) or mounts(folder))
    sockets = [address for bundle in bundles if (address := _shim_socket(bundle)) is not None]
    groups = {path for bundle in bundles if (path := _cgroup(bundle)) is not None}
    for path in groups:
        _until(lambda path=path: tree.kill(path), f"processes in cgroup {path}")  # type: ignore[misc]
    for pid in shims(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _until(lambda: not shims(folder), f"shims of {folder.socket}")
    for path in groups:
        _until(lambda path=path: tree.remove(path), f"cgroup {path}")  # type: ignore[misc]
    for point in reversed(mounts(folder)):
        if _libc.umount2(os.fsencode(point), MNT_DETACH) != 0:
            code = ctypes.get_errno()
            raise WipeError(f"umount {point}: {os.strerror(code)}")
    for socket in sockets:
        socket.unlink(missing_ok=True)
    return found


def shims(folder: Folder) -> list[int]:
    """Pids of this containerd's live shims."""
    below = os.fsencode(folder.root) + b"/"
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if argv[0].rpartition(b"/")[2].startswith(b"containerd-shim") and any(
            word.startswith(below) for word in argv[1:]
        ):
            found.append(int(entry.name))
    return found


def mounts(folder: Folder) -> list[str]:
    """Mount points below the folder, in the order they were made."""
    points = [_unescape(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder.root)]


def _unescape(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _bundles(folder: Folder) -> Iterator[Path]:
    for file in folder.state.glob("io.containerd.runtime.v2.task/*/*/config.json"):
        yield file.parent


def _cgroup(bundle: Path) -> str | None:
    """The container's cgroup, relative to the hierarchies' roots."""
    try:
        spec = json.loads((bundle / "config.json").read_bytes())
    except (FileNotFoundError, ValueError):  # killed while it was written: the container never ran
        return None
    path = str((spec.get("linux") or {}).get("cgroupsPath") or "").strip("/")
    # Named after the container, or it is not this container's own.
    return path if bundle.name in path and ".." not in path.split("/") else None


def _shim_socket(bundle: Path) -> Path | None:
    try:
        address = (bundle / "address").read_text().strip().removeprefix("unix://")
    except FileNotFoundError:
        return None
    path = Path(address)
    return path if path.parent == SHIM_SOCKETS else None


def _until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise WipeError(f"{what} stays")
        time.sleep(0.01)
