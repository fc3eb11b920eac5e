"""This machine: its roots and the facts about it, probed once.

:class:`HostFacts` is frozen and holds no handle, so rules over it are pure and tested as tables. Nothing here raises
because something is missing: not being root, no BTF, no PSI, no cgroup2, no bpffs are facts, each with a reason for
the log and the metrics. Only a missing cgroup root is told apart: ``cgroup_version`` is then 1 with no hierarchy.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from koordlet.system import kernel, resctrl
from koordlet.system.cpu import coresched, perf
from koordlet.system.cpu.cpuset import CPUListError, CPUSet
from koordlet.system.cpu.cputopology import CpuInfo, read_cpuinfo
from koordlet.system.errors import MalformedFile
from koordlet.system.kernel import Feature, read_text
from koordlet.system.mounts import CgroupMounts, Mount, find_cgroup_mounts, parse_mountinfo
from koordlet.system.proc import clockticks as clock
from koordlet.system.proc import kidled
from koordlet.system.roots import Roots

CGROUP_MAGIC = 0x27E0EB
CGROUP2_MAGIC = 0x63677270
BPFFS_MAGIC = 0xCAFE4A11
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Booleans are properties over :attr:`features`; ``reasons()`` explains every one that is false."""

    cgroup_mounts: CgroupMounts
    controllers: frozenset[str]
    """Controllers that can be used: v1 mounted, v2 listed in the root's ``cgroup.controllers``."""
    cgroupfs: bool
    """The cgroup root is a real one, not a directory tree standing in for it."""
    kernel_release: str
    kernel_version: tuple[int, int, int]
    page_size: int
    clk_tck: int
    online_cpus: CPUSet
    cpu: CpuInfo
    features: Mapping[str, Feature] = field(default_factory=dict)

    @property
    def cgroup_version(self) -> int:
        return self.cgroup_mounts.version

    @property
    def jiffy_ns(self) -> int:
        return clock.jiffy_ns(self.clk_tck)

    def has(self, name: str) -> bool:
        return bool(self.features[name])

    @property
    def root(self) -> bool:
        return self.has("root")

    @property
    def psi(self) -> bool:
        return self.has("psi")

    @property
    def btf(self) -> bool:
        return self.has("btf")

    @property
    def bpffs(self) -> bool:
        return self.has("bpffs")

    @property
    def cgroup2(self) -> bool:
        """A cgroup2 tree is mounted, be it with or beside v1 controllers."""
        return self.has("cgroup2")

    @property
    def core_sched(self) -> bool:
        return self.has("core_sched")

    @property
    def resctrl(self) -> bool:
        return self.has("resctrl")

    @property
    def anolis(self) -> bool:
        return self.has("anolis")

    def reasons(self) -> dict[str, str]:
        """Every missing feature with its reason."""
        return {name: feature.reason for name, feature in self.features.items() if not feature}


class Host:
    """Roots plus :attr:`facts`, which are probed at first use and, but for `mounted_bpffs`, never again."""

    def __init__(self, roots: Roots, facts: HostFacts | None = None) -> None:
        self.roots = roots
        if facts is not None:
            self.facts = facts

    @cached_property
    def facts(self) -> HostFacts:
        return probe(self.roots)

    def mounted_bpffs(self) -> None:
        """Look again: koordlet mounts bpffs where there is none. Who took `facts` before keeps the old ones."""
        features = {**self.facts.features, "bpffs": _bpffs(self.roots)}
        self.facts = replace(self.facts, features=MappingProxyType(features))


def probe(roots: Roots) -> HostFacts:
    mounts = _mounts(roots)
    cgroups = find_cgroup_mounts(mounts, roots.cgroup)
    release = kernel.release(roots)
    cpu = read_cpuinfo(roots)
    features = {
        "root": Feature.when(os.geteuid() == 0, f"running as uid {os.geteuid()}, kernel settings need root"),
        "cap_sys_admin": kernel.capability(roots, kernel.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"),
        "cgroup": Feature.when(cgroups.version == 2 or bool(cgroups.v1), f"{roots.cgroup}: no cgroup hierarchy found"),
        "cgroup2": Feature.when(cgroups.unified is not None, f"{roots.cgroup}: no cgroup2 mount at or below it"),
        "psi": kernel.psi(roots),
        "btf": kernel.btf(roots),
        "bpffs": _bpffs(roots),
        "core_sched": coresched.probe(),
        "perf_hardware": perf.probe(),
        "resctrl": resctrl.probe(cpu),
        "resctrl_monitoring": resctrl.probe_monitoring(cpu),
        "kidled": kidled.probe(roots),
        "anolis": _anolis(cgroups),
        "group_identity_sysctl": Feature.when(
            (roots.proc_sys / "kernel/sched_group_identity_enabled").exists(),
            "no sysctl kernel.sched_group_identity_enabled",
        ),
    }
    return HostFacts(
        cgroup_mounts=cgroups,
        controllers=_controllers(cgroups),
        cgroupfs=_is_cgroupfs(cgroups),
        kernel_release=release,
        kernel_version=kernel.parse_release(release),
        page_size=os.sysconf("SC_PAGE_SIZE"),
        clk_tck=clock.ticks_per_second(),
        online_cpus=_online(roots),
        cpu=cpu,
        features=MappingProxyType(features),
    )


def filesystem_magic(path: Path) -> int | None:
    """``statfs().f_type``, None when the path does not exist. ``os.statvfs`` does not show it."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statfs(os.fsencode(path), buffer) != 0:
        return None
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def _mounts(roots: Roots) -> list[Mount]:
    path = roots.proc / "self/mountinfo"
    text = read_text(path)
    try:
        return [] if text is None else parse_mountinfo(text, str(path))
    except MalformedFile:  # then directories alone tell; the probe must not fail
        return []


def _controllers(cgroups: CgroupMounts) -> frozenset[str]:
    if cgroups.version == 1:
        return frozenset(cgroups.v1)
    listed = read_text(cgroups.unified / "cgroup.controllers") if cgroups.unified else None
    return frozenset((listed or "").split())


def _is_cgroupfs(cgroups: CgroupMounts) -> bool:
    if cgroups.version == 2:
        return cgroups.unified is not None and filesystem_magic(cgroups.unified) == CGROUP2_MAGIC
    return bool(cgroups.v1) and all(filesystem_magic(path) == CGROUP_MAGIC for path in cgroups.v1.values())


def _bpffs(roots: Roots) -> Feature:
    path = roots.sys_fs / "bpf"
    return Feature.when(filesystem_magic(path) == BPFFS_MAGIC, f"{path} is not a mounted bpf file system")


def _anolis(cgroups: CgroupMounts) -> Feature:
    """Spec 03 §1.5: the group-identity file at the CPU root, or a memory watermark in a first-level cgroup."""
    cpu, memory = cgroups.hierarchy("cpu"), cgroups.hierarchy("memory")
    found = cpu is not None and (cpu / "cpu.bvt_warp_ns").exists()
    if not found and memory is not None:
        found = next(memory.glob("*/memory.wmark_ratio"), None) is not None
    return Feature.when(found, "neither cpu.bvt_warp_ns nor memory.wmark_ratio exist")


def _online(roots: Roots) -> CPUSet:
    text = read_text(roots.sys / "devices/system/cpu/online")
    try:
        return CPUSet.parse((text or "").strip()) or CPUSet(os.sched_getaffinity(0))
    except CPUListError:
        return CPUSet(os.sched_getaffinity(0))
