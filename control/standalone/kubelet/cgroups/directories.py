"""Creates, configures, lists, kills and removes the kubelet's cgroup directories, on v1 and v2.

The import contract forbids koordlet's cgroup registry here, and a kubelet needs far less: it creates directories and
writes a few files once. Paths are relative to a hierarchy's root (see `naming`). On v1 each mounted controller is its
own hierarchy, and a container's directory is created in all of them. On v2 there is one tree, and controllers have to
be enabled in every parent. Each call blocks for microseconds; `remove` and `kill` do not wait, their callers retry.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from control.standalone.kubelet.cgroups.values import OPTIONAL_FILES, CgroupValues, files_v1, files_v2

CONTROLLERS = {"cpu", "cpuset", "io", "memory", "hugetlb", "pids"}
"""The controllers enabled for children on v2; others (rdma, misc) are not changed."""


class CgroupError(OSError):
    """The kernel refused a cgroup operation; the message names file and value."""


def _write(path: Path, text: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise CgroupError(error.errno, f"write {text!r} to {path}: {error.strerror}") from error


def _read(path: Path) -> str:
    return path.read_text().strip()


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """The mounted hierarchies. `roots` maps controller -> mount; on v2 it has the one key ``""``."""

    version: int
    roots: Mapping[str, Path]

    @classmethod
    def discover(cls, mount: Path) -> CgroupTree:
        """The hierarchies below `mount` (usually /sys/fs/cgroup); raises `CgroupError` when one is missing."""
        if (mount / "cgroup.controllers").exists():
            return cls(2, {"": mount})
        roots: dict[str, Path] = {}
        seen: set[tuple[int, int]] = set()
        for entry in sorted(mount.iterdir()) if mount.is_dir() else []:
            if not (entry / "cgroup.procs").exists():
                continue  # not a hierarchy
            # The cgroup2 tree of a hybrid host is one more hierarchy: systemd mirrors its groups there, and such a
            # host has pressure (PSI) only there.
            stat = entry.stat()
            if (stat.st_dev, stat.st_ino) not in seen or entry.name in ("cpu", "cpuacct", "memory"):
                seen.add((stat.st_dev, stat.st_ino))
                roots[entry.name] = entry
        for needed in ("cpu", "cpuset", "memory"):
            if needed not in roots:
                raise CgroupError(errno.ENOENT, f"no {needed} cgroup hierarchy below {mount}")
        return cls(1, roots)

    def dirs(self, path: str) -> list[Path]:
        """The directories of `path` in all hierarchies; co-mounted controllers count once."""
        unique: dict[Path, None] = {}
        for root in self.roots.values():
            unique[root.resolve() / path] = None
        return list(unique)

    def dir(self, controller: str, path: str) -> Path:
        return (self.roots[""] if self.version == 2 else self.roots[controller]) / path

    def create(self, path: str) -> None:
        """Create `path` and its parents in all hierarchies, ready for processes. Existing directories are kept."""
        if self.version == 2:
            self._create_v2(self.roots[""], path)
            return
        for root in {r.resolve() for r in self.roots.values()}:
            (root / path).mkdir(parents=True, exist_ok=True)
        self._fill_cpuset(self.roots["cpuset"], path)

    @staticmethod
    def _create_v2(root: Path, path: str) -> None:
        here = root
        for part in path.split("/"):
            available = set(_read(here / "cgroup.controllers").split())
            enabled = set(_read(here / "cgroup.subtree_control").split())
            for controller in sorted((available & CONTROLLERS) - enabled):
                _write(here / "cgroup.subtree_control", f"+{controller}")
            here /= part
            here.mkdir(exist_ok=True)

    @staticmethod
    def _fill_cpuset(root: Path, path: str) -> None:
        """Copy cpus and memory nodes from the parents: a new v1 cpuset is empty and accepts no task without them."""
        here = root
        for part in path.split("/"):
            parent, here = here, here / part
            for name in ("cpuset.cpus", "cpuset.mems"):
                if not _read(here / name):
                    _write(here / name, _read(parent / name))

    def apply(self, path: str, values: CgroupValues) -> None:
        """Write the files that `values` sets, except those that already have the text."""
        if self.version == 2:
            for name, text in files_v2(values).items():
                self._set(self.roots[""] / path / name, text)
            return
        for controller, files in files_v1(values).items():
            for name, text in files.items():
                self._set(self.roots[controller] / path / name, text)

    @staticmethod
    def _set(path: Path, text: str) -> None:
        if path.name in OPTIONAL_FILES and not path.exists():
            return
        if path.exists() and _read(path) != text:
            _write(path, text)
        elif not path.exists():
            raise CgroupError(errno.ENOENT, f"{path}: no such file, cannot write {text!r}")

    def procs_files(self, path: str) -> list[str]:
        """The files to which a process writes its pid to join `path` in all hierarchies."""
        return [str(d / "cgroup.procs") for d in self.dirs(path)]

    def _subdirs(self, base: Path) -> list[Path]:
        """`base` and all directories below it, deepest first; empty when `base` does not exist."""
        return [Path(directory) for directory, _, _ in os.walk(base)][::-1]

    def children(self, path: str) -> list[str]:
        """Names of the directories directly below `path`, in any hierarchy."""
        names: set[str] = set()
        for base in self.dirs(path):
            try:
                names.update(e.name for e in os.scandir(base) if e.is_dir())
            except FileNotFoundError:
                continue
        return sorted(names)

    def exists(self, path: str) -> bool:
        return any(d.is_dir() for d in self.dirs(path))

    def pids(self, path: str) -> set[int]:
        """Processes in `path` and below, in any hierarchy."""
        out: set[int] = set()
        for base in self.dirs(path):
            for sub in self._subdirs(base):
                try:
                    out.update(int(p) for p in (sub / "cgroup.procs").read_text().split())
                except (FileNotFoundError, OSError) as error:
                    if getattr(error, "errno", None) not in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                        raise
        return out

    def kill(self, path: str) -> bool:
        """Send SIGKILL once to every process in `path` and below; True when there was none."""
        killer = self.roots[""] / path / "cgroup.kill" if self.version == 2 else None
        pids = self.pids(path) - {os.getpid()}
        if killer is not None and killer.exists():
            _write(killer, "1")
        else:
            for pid in pids - {0}:  # 0: a process of another PID namespace; kill(0) would kill this process's group
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        return not pids

    def remove(self, path: str) -> bool:
        """Remove `path` and everything below it; False when a process is still in it."""
        removed = True
        for base in self.dirs(path):
            for sub in self._subdirs(base):
                try:
                    sub.rmdir()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                        raise CgroupError(error.errno, f"rmdir {sub}: {error.strerror}") from error
                    removed = False
        return removed

    def _key(self, controller: str, path: str, name: str, key: str) -> int | None:
        try:
            for line in (self.dir(controller, path) / name).read_text().splitlines():
                word, _, value = line.partition(" ")
                if word == key:
                    return int(value)
        except (FileNotFoundError, OSError):
            return None
        return None

    def oom_kills(self, path: str) -> int:
        """Number of processes of `path` that the kernel's OOM killer killed; 0 when `path` does not exist."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return self._key("memory", path, name, "oom_kill") or 0

    def cpu_usage_ns(self, path: str) -> int | None:
        if self.version == 2:
            usec = self._key("", path, "cpu.stat", "usage_usec")
            return None if usec is None else usec * 1000
        return self._number("cpuacct", path, "cpuacct.usage")

    def memory_usage(self, path: str) -> int | None:
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return self._number("memory", path, name)

    def memory_inactive_file(self, path: str) -> int | None:
        return self._key("memory", path, "memory.stat", "inactive_file" if self.version == 2 else "total_inactive_file")

    def _number(self, controller: str, path: str, name: str) -> int | None:
        if self.version == 1 and controller not in self.roots:
            return None
        try:
            return int((self.dir(controller, path) / name).read_text())
        except (FileNotFoundError, OSError, ValueError):
            return None
