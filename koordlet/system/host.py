"""This machine: its roots and the facts about it, probed once.

`HostFacts` is frozen and holds no handle, so rules over it are pure and are tested as tables. Nothing here raises
because something is missing: no root rights, no BTF, no PSI, no cgroup2, no bpffs are facts, each with a reason for the
log and the metrics. Without a cgroup root `cgroup_version` is 1 and there is no hierarchy.
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
from koordlet.system.cgroup.tree import RepeatedWalk
from koordlet.system.cpu import coresched, perf
from koordlet.system.cpu.cpuset import CPUSet, CPUSetError
from koordlet.system.cpu.cputopology import CpuInfo, read_cpuinfo
from koordlet.system.errors import MalformedFile
from koordlet.system.kernel import Feature, read_text
from koordlet.system.mounts import CgroupMounts, Mount, find_cgroup_mounts, parse_mountinfo
from koordlet.system.proc import kidled
from koordlet.system.roots import Roots

CGROUP_MAGIC = 0x27E0EB
CGROUP2_MAGIC = 0x63677270
BPFFS_MAGIC = 0xCAFE4A11
DEFAULT_USER_HZ = 100
_libc = ctypes.CDLL(None, use_errno=True)


class _HasFeature:
    """Whether there is the feature that is named like the attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, facts: HostFacts, owner: type) -> bool:
        return facts.has(self._name)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The boolean properties are entries of `features`; `reasons()` explains each that is false."""

    cgroup_mounts: CgroupMounts
    controllers: frozenset[str]
    """Controllers that can be used: on v1 the mounted ones, on v2 those in the root's `cgroup.controllers`."""
    cgroupfs: bool
    """The cgroup root is a cgroup file system, not a plain directory tree as in tests."""
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
        """Nanoseconds of one clock tick, the unit of `/proc/stat` (spec 02 §1.7); rounded down."""
        return 1_000_000_000 // self.clk_tck

    def has(self, name: str) -> bool:
        return bool(self.features[name])

    root = _HasFeature()
    psi = _HasFeature()
    btf = _HasFeature()
    bpffs = _HasFeature()
    cgroup2 = _HasFeature()
    """A cgroup2 tree is mounted, alone or beside v1 hierarchies."""
    core_sched = _HasFeature()
    resctrl = _HasFeature()
    anolis = _HasFeature()

    def reasons(self) -> dict[str, str]:
        """Every missing feature with its reason."""
        return {name: feature.reason for name, feature in self.features.items() if not feature}


class Host:
    """Roots and `facts`. Facts are probed at first use and, except by `mounted_bpffs`, never again."""

    def __init__(self, roots: Roots, facts: HostFacts | None = None) -> None:
        self.roots = roots
        self._walks: dict[str, RepeatedWalk] = {}
        if facts is not None:
            self.facts = facts

    def repeated_walk(self, root: Path | str) -> RepeatedWalk:
        """Of a cgroup hierarchy. All users share one, because it remembers every directory."""
        return self._walks.setdefault(os.fspath(root), RepeatedWalk(root))

    @cached_property
    def facts(self) -> HostFacts:
        return probe(self.roots)

    def mounted_bpffs(self) -> None:
        """Probe bpffs again, after koordlet has mounted it. `facts` taken earlier do not change."""
        features = {**self.facts.features, "bpffs": _bpffs(self.roots)}
        self.facts = replace(self.facts, features=MappingProxyType(features))


def probe(roots: Roots) -> HostFacts:
    mounts = _mounts(roots)
    cgroups = find_cgroup_mounts(mounts, roots.cgroup)
    cpu = read_cpuinfo(roots)
    features = {
        "root": Feature.when(os.geteuid() == 0, f"running as uid {os.geteuid()}, kernel settings need root"),
        **kernel.capability_features(roots),
        "cap_bpf": kernel.bpf_capabilities(roots),
        "cgroup": Feature.when(cgroups.version == 2 or bool(cgroups.v1), f"{roots.cgroup}: no cgroup hierarchy found"),
        "cgroups_writable": _writable(cgroups),
        "sysctls_writable": kernel.sysctls(roots),
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
        page_size=os.sysconf("SC_PAGE_SIZE"),
        clk_tck=_clock_ticks_per_second(),
        online_cpus=_online(roots),
        cpu=cpu,
        features=MappingProxyType(features),
    )


def filesystem_magic(path: Path) -> int | None:
    """`statfs().f_type`, which `os.statvfs` lacks; None when the path does not exist."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statfs(os.fsencode(path), buffer) != 0:
        return None
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def _clock_ticks_per_second() -> int:
    """USER_HZ; 100 where the C library does not know it."""
    try:
        ticks = os.sysconf("SC_CLK_TCK")
    except (ValueError, OSError):
        ticks = 0
    return ticks if ticks > 0 else DEFAULT_USER_HZ


def _mounts(roots: Roots) -> list[Mount]:
    path = roots.proc / "self/mountinfo"
    text = read_text(path)
    try:
        return [] if text is None else parse_mountinfo(text, str(path))
    except MalformedFile:  # the probe must not fail; hierarchies are then found by their directories
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


def _writable(cgroups: CgroupMounts) -> Feature:
    roots = list(cgroups.v1.values()) if cgroups.version == 1 else [cgroups.unified] if cgroups.unified else []
    fixed = [str(path) for path in roots if not os.access(path, os.W_OK)]
    return Feature.when(
        not fixed, f"{', '.join(fixed)}: read-only, no setting has an effect. In a container, mount the node's "
        "/sys/fs/cgroup and name it with --cgroup-root-dir",
    )  # fmt: skip


def _bpffs(roots: Roots) -> Feature:
    path = roots.sys_fs / "bpf"
    return Feature.when(filesystem_magic(path) == BPFFS_MAGIC, f"{path} is not a mounted bpf file system")


def _anolis(cgroups: CgroupMounts) -> Feature:
    """Spec 03 §1.5: the group-identity file at the CPU root, or a memory watermark in a first-level cgroup."""
    cpu = cgroups.hierarchy("cpu")
    memory = cgroups.hierarchy("memory")
    present = cpu is not None and (cpu / "cpu.bvt_warp_ns").exists()
    if not present and memory is not None:
        present = next(memory.glob("*/memory.wmark_ratio"), None) is not None
    return Feature.when(present, "neither cpu.bvt_warp_ns nor memory.wmark_ratio exist")


def _online(roots: Roots) -> CPUSet:
    text = read_text(roots.sys / "devices/system/cpu/online")
    try:
        return CPUSet.parse((text or "").strip()) or CPUSet(os.sched_getaffinity(0))
    except CPUSetError:
        return CPUSet(os.sched_getaffinity(0))
