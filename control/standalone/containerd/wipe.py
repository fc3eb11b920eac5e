"""Removes everything that the own containerd left behind, without its help, because it may have been killed.

Containers outlive containerd by design: each has a shim. The bundles below the state directory list the containers.
The processes in cgroups that are named after these containers are killed, and the shims whose command line
has a path below the directory (containerd's socket). Call it after containerd itself has ended.
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
TIMEOUT_SECONDS = 10.0
MNT_DETACH = 2
SHIM_SOCKETS = Path("/run/containerd/s")
_libc = ctypes.CDLL(None, use_errno=True)


class WipeError(Exception):
    """Something could not be removed; the message names it."""


def wipe(folder: Folder, tree: CgroupTree) -> bool:
    """Kill containers and shims, remove their cgroups, sockets and mounts; files stay. Raises `WipeError`.

    Returns False when there was nothing to remove.
    """
    bundles = list(_bundles(folder))
    anything = bool(bundles or shims(folder) or mounts(folder))
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
    return anything


def shims(folder: Folder) -> list[int]:
    """Pids of this containerd's live shims."""
    below = os.fsencode(folder.root) + b"/"
    pids = []
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
            pids.append(int(entry.name))
    return pids


def mounts(folder: Folder) -> list[str]:
    """Mount points below the directory, in the order of mounting."""
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
    except (FileNotFoundError, ValueError):  # containerd was killed while it wrote the file: the container never ran
        return None
    path = str((spec.get("linux") or {}).get("cgroupsPath") or "").strip("/")
    # A cgroup that is not named after the container may contain other processes.
    return path if bundle.name in path and ".." not in path.split("/") else None


def _shim_socket(bundle: Path) -> Path | None:
    try:
        address = (bundle / "address").read_text().strip().removeprefix("unix://")
    except FileNotFoundError:
        return None
    path = Path(address)
    return path if path.parent == SHIM_SOCKETS else None


def _until(done: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise WipeError(f"cannot remove {description}")
        time.sleep(0.01)
