"""The CPUs of this machine from sysfs, without `lscpu`: sockets, cores, NUMA nodes, caches, SMT, turbo.

Cores are keyed by (socket, core) because core ids repeat across sockets, offline CPUs are left out, and NUMA node ids
may have gaps (the corrections of spec 02 §5.8). A CPU without topology in sysfs is its own core of socket 0. Cache ids
come from `cache/index*/id`; on kernels and architectures without ids the id is the lowest CPU that shares the cache,
which is unique too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from koordlet.system.cpu.cpuset import CPUSet, CPUSetError
from koordlet.system.errors import MalformedFile
from koordlet.system.kernel import read_text
from koordlet.system.roots import Roots

K = TypeVar("K")
_NODE_DIR = re.compile(r"^node(\d+)$")
_INDEX_DIR = re.compile(r"^index(\d+)$")


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """From `/proc/cpuinfo`, of the first processor."""

    model: str = "unknown"
    vendor: str = ""
    """`GenuineIntel`, `AuthenticAMD`, …; empty where the kernel shows none (Arm)."""
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Cpu:
    id: int
    core: int
    """Unique within its socket only."""
    socket: int
    node: int
    l1: int | None
    l2: int | None
    l3: int | None
    """Cache ids, None without such a cache."""


@dataclass(frozen=True)
class CpuTopology:
    """Online CPUs sorted by node, socket, core, id."""

    cpus: tuple[Cpu, ...]
    smt: bool
    turbo: bool
    """By the intel_pstate driver; false without it."""
    info: CpuInfo = field(default_factory=CpuInfo)

    @cached_property
    def online(self) -> CPUSet:
        return CPUSet(cpu.id for cpu in self.cpus)

    @cached_property
    def by_node(self) -> Mapping[int, CPUSet]:
        return _group({cpu.id: cpu.node for cpu in self.cpus})


def _group(keys: Mapping[int, K]) -> Mapping[K, CPUSet]:
    groups: dict[K, set[int]] = {}
    for cpu, key in keys.items():
        groups.setdefault(key, set()).add(cpu)
    return {key: CPUSet(cpus) for key, cpus in groups.items()}


def read_cpuinfo(roots: Roots) -> CpuInfo:
    text = read_text(roots.proc / "cpuinfo")
    return parse_cpuinfo(text or "")


def parse_cpuinfo(text: str) -> CpuInfo:
    first: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            first.setdefault(key.strip().lower(), value.strip())
    return CpuInfo(
        model=first.get("model name") or "unknown",
        vendor=first.get("vendor_id", ""),
        flags=frozenset((first.get("flags") or first.get("features", "")).split()),
    )


def read_topology(roots: Roots) -> CpuTopology:
    """Raises `MalformedFile` only for an invalid CPU list."""
    base = roots.sys / "devices/system/cpu"
    online = _cpu_list(base / "online")
    if online is None:
        online = CPUSet(int(path.name[3:]) for path in base.glob("cpu[0-9]*"))
    nodes = read_node_cpus(roots)
    node_of = {cpu: node for node, cpus in nodes.items() for cpu in cpus}
    cpus = [_read_cpu(base / f"cpu{cpu}", cpu, node_of.get(cpu, 0)) for cpu in online]
    threads: dict[tuple[int, int], int] = {}
    for cpu in cpus:
        threads[cpu.socket, cpu.core] = threads.get((cpu.socket, cpu.core), 0) + 1
    smt = _integer(base / "smt/active")
    return CpuTopology(
        cpus=tuple(sorted(cpus, key=lambda cpu: (cpu.node, cpu.socket, cpu.core, cpu.id))),
        smt=smt == 1 if smt is not None else any(count > 1 for count in threads.values()),
        turbo=_integer(base / "intel_pstate/no_turbo") == 0,
        info=read_cpuinfo(roots),
    )


def read_node_cpus(roots: Roots) -> dict[int, CPUSet]:
    """NUMA node id -> its CPUs, online or not; empty on kernels without NUMA. Memory-only nodes have none."""
    return {node: _cpu_list(path / "cpulist") or CPUSet() for node, path in node_dirs(roots).items()}


def node_dirs(roots: Roots) -> dict[int, Path]:
    """NUMA node id -> sysfs directory, ascending, generic initiators (no memory, no CPUs) left out."""
    initiators = _cpu_list(roots.sys / "devices/system/node/has_generic_initiator") or CPUSet()
    nodes = {}
    for base in (roots.sys / "bus/node/devices", roots.sys / "devices/system/node"):
        for path in base.glob("node[0-9]*"):
            match = _NODE_DIR.match(path.name)
            if match and int(match[1]) not in initiators:
                nodes[int(match[1])] = path
        if nodes:
            break
    return dict(sorted(nodes.items()))


def _read_cpu(path: Path, cpu: int, node: int) -> Cpu:
    core = _integer(path / "topology/core_id")
    socket = _integer(path / "topology/physical_package_id")
    caches: dict[int, int] = {}
    for index in path.glob("cache/index*"):
        if not _INDEX_DIR.match(index.name) or (read_text(index / "type") or "").strip() == "Instruction":
            continue
        level, cache = _integer(index / "level"), _integer(index / "id")
        if cache is None:
            shared = _cpu_list(index / "shared_cpu_list")
            cache = min(shared) if shared else cpu
        if level is not None:
            caches[level] = cache
    return Cpu(
        id=cpu,
        core=cpu if core is None else core,
        socket=0 if socket is None or socket < 0 else socket,  # arm64 shows -1 where the firmware has no value
        node=node,
        l1=caches.get(1),
        l2=caches.get(2),
        l3=caches.get(3),
    )


def _integer(path: Path) -> int | None:
    text = read_text(path)
    try:
        return None if text is None else int(text.strip())
    except ValueError:
        return None


def _cpu_list(path: Path) -> CPUSet | None:
    text = read_text(path)
    if text is None:
        return None
    try:
        return CPUSet.parse(text.strip())
    except CPUSetError as error:
        raise MalformedFile(path, text, str(error)) from error
