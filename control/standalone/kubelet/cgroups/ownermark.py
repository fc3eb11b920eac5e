"""The owner of a cgroup, as a mark on its directory in an extended attribute.

A cgroup can outlive every record of it: its kubelet may have been killed and the state directory removed.
kernfs keeps `trusted.*` attributes on v1 and v2 until the directory is removed; only root reads and writes them. The
mark is written right after mkdir. A kubelet without --owner-dir marks nothing; neither does a real kubelet.

A kubelet also locks its kubepods root. A pid says nothing in another PID namespace; the lock does, and the kernel
releases it when the process ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from control.processid import ProcessId, alive, boot_id, identify
from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.cgroups.naming import CgroupNames, QosClass

ATTRIBUTE = "trusted.koordctl"
PID_NAMESPACE = Path("/proc/self/ns/pid")
_ABSENT = (errno.ENODATA, errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM)


class CgroupMark(msgspec.Struct, frozen=True, rename="camel"):
    """A kubelet and the node it belongs to."""

    pid: int
    starttime: int
    """Field 22 of /proc/<pid>/stat, in clock ticks since boot."""
    pid_namespace: int
    boot_id: str
    state_dir: str
    pin_dir: str = ""
    """Directory of the BPF maps that the node's koordlet pins."""

    @classmethod
    def this_process(cls, state_dir: str, pin_dir: str) -> CgroupMark:
        process = identify(os.getpid())
        assert process is not None, "this process runs"
        return cls(process.pid, process.starttime, PID_NAMESPACE.stat().st_ino, boot_id(), state_dir, pin_dir)

    def lives(self, tree: CgroupTree, root: str) -> bool:
        """Whether the kubelet that owns the kubepods `root` runs."""
        if self.boot_id != boot_id():
            return False
        if self.pid_namespace != PID_NAMESPACE.stat().st_ino:
            return is_locked(tree, root)
        return alive(ProcessId(self.pid, self.starttime))


def lock(tree: CgroupTree, root: str) -> int | None:
    """Lock the kubepods `root` until this process ends or closes the returned descriptor; None if it is locked."""
    descriptor = os.open(tree.dirs(root)[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(tree: CgroupTree, root: str) -> bool:
    """Whether a kubelet holds the lock on the kubepods `root`."""
    try:
        descriptor = lock(tree, root)
    except FileNotFoundError:
        return False
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def write(tree: CgroupTree, path: str, owner: CgroupMark) -> str | None:
    """Mark `path` in every hierarchy. Returns the error where the kernel does not keep such attributes, else None."""
    value = msgspec.json.encode(owner)
    for directory in tree.dirs(path):
        try:
            os.setxattr(directory, ATTRIBUTE, value)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return f"{directory}: {error.strerror}"
    return None


def read(tree: CgroupTree, path: str) -> CgroupMark | None:
    """The owner of `path`; None when no hierarchy's directory has a readable mark."""
    for directory in tree.dirs(path):
        try:
            return msgspec.json.decode(os.getxattr(directory, ATTRIBUTE), type=CgroupMark)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
        except msgspec.DecodeError:
            return None
    return None


def foreign_groups(tree: CgroupTree, names: CgroupNames, state_dir: str) -> list[str]:
    """Cgroups in use below the kubepods root that no kubelet of `state_dir` made, such as a real kubelet's pods.

    Empty ones without a mark are left out: their kubelet was killed before it wrote the mark.
    """
    return [
        path
        for path in _pods(tree, names)
        if ((owner := read(tree, path)) is None or owner.state_dir != state_dir)
        and (tree.pids(path) or tree.children(path))
    ]


def _pods(tree: CgroupTree, names: CgroupNames) -> Iterator[str]:
    classes = [names.qos(qos) for qos in (QosClass.BURSTABLE, QosClass.BESTEFFORT)]
    for parent in (names.root(), *classes):
        yield from (path for name in tree.children(parent) if (path := f"{parent}/{name}") not in classes)
