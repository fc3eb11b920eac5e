"""`/proc`: CPU ticks, memory of node and NUMA nodes, vmstat, and single processes (spec 02 §5.2, 03 §1.10).

A process that ended is None. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from koordlet.system.cgroup.namespace import absolute
from koordlet.system.cpu.cputopology import node_dirs
from koordlet.system.errors import MalformedFile
from koordlet.system.kernel import read_text
from koordlet.system.roots import Roots

_USAGE_FIELDS = (1, 2, 3, 6, 7)  # user nice system irq softirq; not idle, iowait, steal
_STEAL = 8
"""Since Linux 2.6.11."""
HUGE_PAGE_KB = (1_048_576, 2_048)


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Cumulative busy clock ticks of the node and of each online CPU."""

    total: int
    by_cpu: Mapping[int, int]
    stolen: int = 0
    """Ticks of the node during which a CPU had work but the hypervisor ran other guests on it."""


@dataclass(frozen=True, slots=True)
class MemInfo:
    """Bytes. `values` has every line by its name."""

    total: int
    free: int
    available: int
    values: Mapping[str, int]

    @property
    def used(self) -> int:
        return self.total - self.available

    @property
    def used_with_page_cache(self) -> int:
        return self.total - self.free


@dataclass(frozen=True, slots=True)
class NumaMemInfo:
    """Bytes of one NUMA node; it has no MemAvailable, so reclaimable memory is estimated."""

    node: int
    total: int
    free: int
    used: int
    huge_pages: Mapping[int, int]
    """Page size in KiB -> number of pages; empty when sysfs shows none."""


@dataclass(frozen=True, slots=True)
class SchedStat:
    run_ns: int
    wait_ns: int
    """Runnable but waiting for a CPU."""
    slices: int


def parse_cpu_ticks(text: str, path: str = "stat") -> CpuTicks:
    total: int | None = None
    stolen = 0
    by_cpu = {}
    for line in text.splitlines():
        if not line.startswith("cpu"):
            break  # the cpu lines are the first ones
        fields = line.split()
        name = fields[0][3:]
        if len(fields) < 8 or not all(field.isdecimal() for field in fields[1:8]) or (name and not name.isdecimal()):
            raise MalformedFile(path, line, "expected at least seven counters")
        ticks = sum(int(fields[index]) for index in _USAGE_FIELDS)
        if name:
            by_cpu[int(name)] = ticks
        else:
            total = ticks
            stolen = int(fields[_STEAL]) if len(fields) > _STEAL and fields[_STEAL].isdecimal() else 0
    if total is None:
        raise MalformedFile(path, text, "no 'cpu' line")
    return CpuTicks(total, by_cpu, stolen)


def read_meminfo(roots: Roots) -> MemInfo | None:
    path = roots.proc / "meminfo"
    text = read_text(path)
    return None if text is None else parse_meminfo(text, str(path))


def parse_meminfo(text: str, path: str = "meminfo") -> MemInfo:
    values = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if not colon or not fields or not fields[0].isdecimal():
            raise MalformedFile(path, line, "expected '<name>: <number> [kB]'")
        values[name.strip()] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    total, free, available = (_needed(values, key, path) for key in ("MemTotal", "MemFree", "MemAvailable"))
    return MemInfo(total, free, available, values)


def _needed(values: Mapping[str, int], key: str, path: str) -> int:
    if key not in values:
        raise MalformedFile(path, key, "line is missing")
    return values[key]


def read_numa_meminfo(roots: Roots) -> dict[int, NumaMemInfo]:
    """NUMA node id -> memory; nodes without a `meminfo` are left out."""
    nodes = {}
    for node, directory in node_dirs(roots).items():
        path = directory / "meminfo"
        text = read_text(path)
        if text is None:
            continue
        huge = {}
        for size in HUGE_PAGE_KB:
            pages = read_text(directory / f"hugepages/hugepages-{size}kB/nr_hugepages")
            if pages is not None and pages.strip().isdecimal():
                huge[size] = int(pages)
        nodes[node] = parse_numa_meminfo(text, node, huge, str(path))
    return nodes


def parse_numa_meminfo(
    text: str, node: int, huge_pages: Mapping[int, int] | None = None, path: str = "meminfo"
) -> NumaMemInfo:
    """Used = total - (free + file pages + reclaimable slab), never negative."""
    values = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0] != "Node" or fields[1] != str(node) or not fields[3].isdecimal():
            raise MalformedFile(path, line, f"expected 'Node {node} <name>: <number> [kB]'")
        values[fields[2].removesuffix(":")] = int(fields[3]) * (1024 if fields[4:] == ["kB"] else 1)
    total, free = _needed(values, "MemTotal", path), _needed(values, "MemFree", path)
    reclaimable = sum(values.get(key, 0) for key in ("Active(file)", "Inactive(file)", "SReclaimable"))
    return NumaMemInfo(node, total, free, max(total - free - reclaimable, 0), huge_pages or {})


def read_vmstat(roots: Roots) -> dict[str, int] | None:
    path = roots.proc / "vmstat"
    text = read_text(path)
    return None if text is None else parse_vmstat(text, str(path))


def parse_vmstat(text: str, path: str = "vmstat") -> dict[str, int]:
    values = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        try:
            values[name] = int(value)
        except ValueError as error:
            raise MalformedFile(path, line, "expected '<name> <number>'") from error
    return values


def read_cgroups(roots: Roots, pid: int) -> dict[str, str] | None:
    """Controller (`""` for the unified tree, `name=systemd` for named ones) -> directory without leading
    slash. A directory that this process's cgroup namespace hides is omitted."""
    path = roots.proc / str(pid) / "cgroup"
    text = read_text(path)
    if not text:
        return None
    directories = {name: absolute(shown, roots.cgroup) for name, shown in parse_cgroups(text, str(path)).items()}
    return {name: directory for name, directory in directories.items() if directory is not None}


def parse_cgroups(text: str, path: str = "cgroup") -> dict[str, str]:
    directories = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, directory = rest.partition(":")
        if not number.isdecimal() or not colon or not directory.startswith("/"):
            raise MalformedFile(path, line, "expected '<id>:<controllers>:/<dir>'")
        for controller in controllers.split(","):
            directories[controller] = directory.removesuffix(" (deleted)").strip("/")
    return directories


def has_schedstat(roots: Roots) -> bool:
    """Whether the kernel keeps scheduling statistics of tasks."""
    return (roots.proc / "self/schedstat").exists()


def read_schedstat(roots: Roots, pid: int) -> SchedStat | None:
    """None also when the kernel has no scheduler statistics."""
    path = roots.proc / str(pid) / "schedstat"
    text = read_text(path)
    if not text:
        return None
    fields = text.split()
    if len(fields) != 3 or not all(field.isdecimal() for field in fields):
        raise MalformedFile(path, text, "expected three counters")
    return SchedStat(*map(int, fields))


def read_oom_score_adj(roots: Roots, pid: int) -> int | None:
    path = roots.proc / str(pid) / "oom_score_adj"
    text = read_text(path)
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise MalformedFile(path, text, "expected an integer") from error
