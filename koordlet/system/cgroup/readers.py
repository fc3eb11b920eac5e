"""Readers of one cgroup's files, the same on v1 and v2 (spec 02 §2.2).

None means that this kernel or this directory has no such file, or that the file's v1 hierarchy is not mounted or has no
such group. `CgroupGone` means that the cgroup does not exist; `MalformedFile` names file and line. Units are fixed:
nanoseconds, bytes, microseconds for CFS quota and period; unlimited is `UNLIMITED`. Collectors that read hundreds of
cgroups per tick use `batch`; both share one `ReadCache`.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from koordlet.system.cgroup import files, registry, tree
from koordlet.system.cgroup.cache import ReadCache
from koordlet.system.cgroup.registry import FileSpec, Support
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.errors import CgroupGone, MalformedFile, UnreadableFile
from koordlet.system.host import Host
from koordlet.system.kernel import Feature
from koordlet.system.proc import kidled
from koordlet.system.proc.psi import Pressure, parse_pressure

T = TypeVar("T")
_ID_LISTS = frozenset({"tasks", "cgroup.procs"})
_PRESSURE_FILES = frozenset({"cpu.pressure", "memory.pressure", "io.pressure"})


class CgroupFS:
    """`kube_root` is the kubepods directory (`kubepods.slice`, `kubepods`), in which most support rules look for a
    file. Without one (a host outside Kubernetes) they look in the concrete directory."""

    def __init__(self, host: Host, cache: ReadCache | None = None, *, kube_root: str = "") -> None:
        facts = host.facts
        self.version = facts.cgroup_version
        self.mounts = facts.cgroup_mounts
        self.page_size = facts.page_size
        self.kube_root = kube_root
        self.cache = cache if cache is not None else ReadCache(verify=not facts.cgroupfs)
        self._fallback = os.fspath(host.roots.cgroup)
        self._support: dict[str, Feature] = {}
        self._psi_hierarchy: str | None = None
        self._inodes: bool | None = None

    def hierarchy(self, subsystem: str) -> str:
        """Root of the hierarchy of a v1 `subsystem`; on v2 the unified root for every name."""
        if self.version == 2:
            return self._fallback
        mount = self.mounts.v1.get(subsystem)
        return f"{self._fallback}/{subsystem}" if mount is None else os.fspath(mount)

    def forget(self, cgroup_dirs: Iterable[str]) -> None:
        """Close the open files of these directories and of those below."""
        roots = {self._fallback, *(os.fspath(root) for root in (*self.mounts.v1.values(), self.mounts.unified) if root)}
        self.cache.forget(*(f"{root}/{cgroup_dir}" for cgroup_dir in cgroup_dirs for root in roots))

    def path(self, resource: str, cgroup_dir: str) -> str:
        """Absolute path of a resource's file; raises ResourceUnsupported when this cgroup version has none."""
        spec = registry.lookup(resource, self.version)
        return _join(self._base(spec), cgroup_dir, spec.file)

    def root(self, resource: str) -> str:
        """The root of the hierarchy in which a resource's files are: writes must stay below."""
        return self._base(registry.lookup(resource, self.version))

    def cgroup_id(self, cgroup_dir: str) -> int:
        """The kernel's id of a cgroup in the cpu hierarchy (v1) or the unified tree (v2)."""
        root = self.hierarchy("cpu")
        if self._inodes is None:
            self._inodes = tree.ids_are_inodes(root)
        path = _join(root, cgroup_dir)
        return tree.inode(path) if self._inodes else tree.cgroup_id(path)

    def exists(self, cgroup_dir: str) -> bool:
        """Whether the cgroup exists in the hierarchy that defines its id."""
        return os.path.isdir(_join(self.hierarchy("cpu"), cgroup_dir))  # noqa: PTH112

    def perf_dir(self, cgroup_dir: str) -> str:
        """The directory whose descriptor `perf_event_open` needs. perf_event is in the unified tree unless a v1
        hierarchy has it."""
        unified = self.mounts.unified
        if "perf_event" not in self.mounts.v1 and unified is not None:
            return _join(os.fspath(unified), cgroup_dir)
        return _join(self.hierarchy("perf_event"), cgroup_dir)

    def support(self, resource: str, cgroup_dir: str) -> Feature:
        """Whether `resource` can be used in `cgroup_dir`, by the `Support` rule of its row in the registry."""
        spec = registry.RESOURCES[resource].spec(self.version) if resource in registry.RESOURCES else None
        if spec is None:
            return Feature(False, f"{resource} is not registered for cgroup v{self.version}")
        if spec.support is Support.ALWAYS:
            return Feature(True)
        if resource in self._support:
            return self._support[resource]
        base = self._base(spec)
        where, remember = cgroup_dir, False
        if spec.support is Support.HIERARCHY_ROOT:
            where, remember = "", True
        elif spec.support is Support.KUBE_ROOT and self._is_dir(base, self.kube_root):
            where, remember = self.kube_root, True
        path = _join(base, where, spec.file)
        feature = Feature.when(os.path.exists(path), f"{path} does not exist")  # noqa: PTH110
        if remember:
            self._support[resource] = feature
        return feature

    def text(self, resource: str, cgroup_dir: str) -> str | None:
        """The file's content without surrounding newlines."""
        path = self.path(resource, cgroup_dir)
        try:
            content = self.cache.read_once(path) if resource in _ID_LISTS else self.cache.read(path)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # pressure files with psi=0
                return None
            raise UnreadableFile(path, error) from error
        if content is not None:
            return content.decode("ascii", "surrogateescape").strip("\n")
        if not os.path.isdir(path.rpartition("/")[0]) and not self.exists(cgroup_dir):  # noqa: PTH112
            raise CgroupGone(_join(self.hierarchy("cpu"), cgroup_dir))
        return None

    def value(self, resource: str, cgroup_dir: str) -> int | None:
        """An integer resource in v1 units, whatever the form of the file."""
        spec = registry.lookup(resource, self.version)
        return self._parsed(resource, cgroup_dir, lambda text, path: spec.codec.decode(text))

    def cpu_usage(self, cgroup_dir: str) -> int | None:
        """Cumulative nanoseconds."""
        parse = files.parse_cpu_usage
        return self._parsed("cpuacct.usage", cgroup_dir, lambda text, path: parse(text, self.version, path))

    def cpu_quota(self, cgroup_dir: str) -> int | None:
        return self.value("cpu.cfs_quota_us", cgroup_dir)

    def cpu_period(self, cgroup_dir: str) -> int | None:
        return self.value("cpu.cfs_period_us", cgroup_dir)

    def cpuset(self, cgroup_dir: str) -> CPUSet | None:
        """The CPUs that tasks may use: on v2 the effective set, on v1 the configured one."""
        name = "cpuset.cpus.effective" if self.version == 2 else "cpuset.cpus"
        return self._parsed(name, cgroup_dir, lambda text, path: _cpus(text))

    def memory_usage(self, cgroup_dir: str) -> int | None:
        """Bytes, page cache included."""
        return self.value("memory.usage_in_bytes", cgroup_dir)

    def memory_numa(self, cgroup_dir: str) -> Mapping[int, files.NumaMemory] | None:
        parse = files.parse_numa_stat
        return self._parsed(
            "memory.numa_stat", cgroup_dir, lambda text, path: parse(text, self.version, self.page_size, path)
        )

    def idle_pages(self, cgroup_dir: str) -> kidled.IdlePages | None:
        """v1 only; raises ResourceUnsupported on v2."""
        return self._parsed("memory.idle_page_stats", cgroup_dir, kidled.parse_idle_pages)

    def procs(self, cgroup_dir: str) -> tuple[int, ...] | None:
        return self._parsed("cgroup.procs", cgroup_dir, files.parse_ids)

    def tasks(self, cgroup_dir: str) -> tuple[int, ...] | None:
        """Thread ids."""
        return self._parsed("tasks", cgroup_dir, files.parse_ids)

    def pressure(self, resource: str, cgroup_dir: str) -> Pressure | None:
        """Of `cpu`, `memory` or `io`."""
        return self._parsed(f"{resource}.pressure", cgroup_dir, parse_pressure)

    def _base(self, spec: FileSpec) -> str:
        if self.version == 2:
            return _join(self._fallback, spec.subsystem)
        return self._pressure_root() if spec.file in _PRESSURE_FILES else self.hierarchy(spec.subsystem)

    @staticmethod
    def _is_dir(base: str, cgroup_dir: str) -> bool:
        """False for the root itself: only a named directory can be the kubepods directory."""
        return bool(cgroup_dir) and os.path.isdir(_join(base, cgroup_dir))  # noqa: PTH112 - strings, because this is hot

    def _pressure_root(self) -> str:
        """On v1 only vendor kernels have pressure files in cpuacct; a hybrid host's unified tree has them too."""
        if self._psi_hierarchy is None:
            vendor = self.hierarchy("cpuacct")
            unified = self.mounts.unified
            in_vendor = any(
                os.path.exists(_join(vendor, where, "cpu.pressure"))  # noqa: PTH110
                for where in ("", self.kube_root)
            )
            self._psi_hierarchy = vendor if in_vendor or unified is None else os.fspath(unified)
        return self._psi_hierarchy

    def _parsed(self, resource: str, cgroup_dir: str, parse: Callable[[str, str], T]) -> T | None:
        text = self.text(resource, cgroup_dir)
        if text is None:
            return None
        path = self.path(resource, cgroup_dir)
        try:
            return parse(text, path)
        except ValueError as error:
            raise MalformedFile(path, text, str(error)) from error


@functools.lru_cache(maxsize=256)
def _cpus(text: str) -> CPUSet:
    """Cached, because hundreds of containers share a few sets."""
    return CPUSet.parse(text)


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)
