"""Machines of several makers as sysfs trees: what Linux shows in /sys/devices/system/{cpu,node} and /proc/cpuinfo.

Each machine is written from its maker's published layout, scaled down where the real one only repeats itself; the
numbering of CPUs, cores, packages, caches and NUMA nodes follows the real one. `lscpu --sysroot` reads the same
trees (tests/koordlet/system/test_makers_topologies.py), so the fixtures are held against a second reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.roots import Roots

GIB_KB = 1 << 20
X86_FLAGS = "fpu sse2 avx2"
RDT_FLAGS = "cat_l3 mba cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local"


@dataclass(frozen=True)
class Thread:
    """One logical CPU."""

    package: int | None
    core: int | None
    """`topology/physical_package_id` and `core_id`; None without a topology directory."""
    node: int | None
    l2: int | None
    l3: int | None
    """Any number that is the same for all CPUs that share the cache; None without such a cache."""


@dataclass(frozen=True)
class Machine:
    """`cpus` by number, offline ones included."""

    cpus: Mapping[int, Thread]
    cpuinfo: str
    offline: frozenset[int] = frozenset()
    smt_active: int | None = None
    """`smt/active`; None: the kernel has no such file."""
    no_turbo: int | None = None
    """`intel_pstate/no_turbo`; None: another driver."""
    empty_nodes: tuple[int, ...] = ()
    """NUMA nodes with memory and without CPUs."""
    cache_ids: bool = True
    """Whether caches have an `id`: x86 and, since Linux 6.17, arm64 with a device tree or PPTT."""
    numa: bool = True
    cbm: str = ""
    """resctrl's L3 way mask; empty: resctrl is not mounted."""
    min_cbm_bits: int = 1
    online: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "online", frozenset(self.cpus) - self.offline)

    def l3_domains(self) -> dict[int, set[int]]:
        """L3 cache -> its online CPUs."""
        domains: dict[int, set[int]] = {}
        for number in sorted(self.online):
            cache = self.cpus[number].l3
            if cache is not None:
                domains.setdefault(cache, set()).add(number)
        return domains


def _x86(vendor: str, model: str, *flags: str) -> str:
    return f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: {model}\nflags\t\t: {' '.join((X86_FLAGS, *flags))}\n"


def intel_xeon() -> Machine:
    """Two sockets, four cores with two threads each. Linux numbers all first threads, socket by socket, then all second
    ones; core ids have gaps and repeat on the second socket. One L3 per socket; RDT with 11 ways."""
    cores = (0, 1, 4, 5)
    cpus = {}
    for number in range(16):
        package, place = number % 8 // 4, number % 4
        core = package * 4 + place
        cpus[number] = Thread(package, cores[place], package, core, package)
    info = _x86("GenuineIntel", "Intel(R) Xeon(R) Gold 6338", RDT_FLAGS)
    return Machine(cpus, info, smt_active=1, no_turbo=0, cbm="7ff")


def intel_xeon_smt_off() -> Machine:
    """The same with `nosmt`: the second threads are offline, and have neither topology nor caches."""
    machine = intel_xeon()
    return Machine(
        machine.cpus, machine.cpuinfo, offline=frozenset(range(8, 16)), smt_active=0, no_turbo=1, cbm=machine.cbm
    )


def intel_hybrid() -> Machine:
    """Core i7 with two performance cores of two threads each and a cluster of four efficient cores, which share an L2
    and have one thread: cores of one machine differ in their number of threads."""
    cpus = {number: Thread(0, number // 2 * 4, 0, number // 2, 0) for number in range(4)}
    cpus |= {4 + at: Thread(0, 8 + at, 0, 10, 0) for at in range(4)}
    return Machine(cpus, _x86("GenuineIntel", "12th Gen Intel(R) Core(TM) i7-12700"), smt_active=1, no_turbo=0)


def amd_epyc() -> Machine:
    """One socket of an EPYC 7003 with NPS2: two NUMA nodes of two core complexes each, four cores of a complex share an
    L3, and no two complexes do. First threads come first. resctrl has one domain per complex, 16 ways."""
    cpus = {}
    for number in range(32):
        core = number % 16
        cpus[number] = Thread(0, core, core // 8, core, core // 4)
    return Machine(cpus, _x86("AuthenticAMD", "AMD EPYC 7543", RDT_FLAGS), smt_active=1, cbm="ffff")


def amd_epyc_one_offline() -> Machine:
    """The same with one thread and one whole core offline, as after a machine check."""
    machine = amd_epyc()
    return Machine(machine.cpus, machine.cpuinfo, offline=frozenset({5, 7, 23}), smt_active=1, cbm=machine.cbm)


def arm_neoverse() -> Machine:
    """Ampere Altra, two sockets, without SMT: package ids come from the firmware's table and do not begin at 0, the
    system cache is not shown as L3, no cache has an id, and /proc/cpuinfo has neither vendor nor model."""
    cpus = {
        number: Thread((36, 3180)[number // 4], 256 + number % 4 * 256, number // 4, number, None)
        for number in range(8)
    }
    info = (
        "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd atomics\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
    )
    return Machine(cpus, info, smt_active=0, cache_ids=False)


def arm_device_tree() -> Machine:
    """A small arm64 board whose firmware has no topology for the kernel: no package ids (-1), no NUMA, no caches, no
    smt directory."""
    cpus = {number: Thread(-1, number, None, None, None) for number in range(4)}
    info = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n"
    return Machine(cpus, info, cache_ids=False, numa=False)


def with_memory_expander() -> Machine:
    """A Xeon with a CXL memory expander: NUMA node 2 has memory and no CPUs."""
    machine = intel_xeon()
    return Machine(machine.cpus, machine.cpuinfo, smt_active=1, no_turbo=0, empty_nodes=(2,), cbm="7ff")


def small_virtual_machine() -> Machine:
    """A guest whose hypervisor shows neither topology nor caches, with gaps in the numbers of its CPUs."""
    cpus = {number: Thread(None, None, None, None, None) for number in (0, 1, 3)}
    return Machine(cpus, _x86("GenuineIntel", "QEMU Virtual CPU version 2.5+"), numa=False)


MACHINES: dict[str, Callable[[], Machine]] = {
    "Intel Xeon": intel_xeon,
    "Intel Xeon, SMT off": intel_xeon_smt_off,
    "Intel hybrid": intel_hybrid,
    "AMD EPYC NPS2": amd_epyc,
    "AMD EPYC, CPUs offline": amd_epyc_one_offline,
    "Arm Neoverse": arm_neoverse,
    "Arm device tree": arm_device_tree,
    "Intel Xeon with CXL memory": with_memory_expander,
    "small virtual machine": small_virtual_machine,
}


def build(machine: Machine, roots: Roots) -> None:
    """Write the trees of `roots`."""
    base = roots.sys / "devices/system/cpu"
    for number in machine.cpus:
        (base / f"cpu{number}").mkdir(parents=True)
        if number in machine.online:
            _cpu(machine, number, base / f"cpu{number}")
    for name, numbers in (("online", machine.online), ("possible", machine.cpus), ("present", machine.cpus)):
        (base / name).write_text(f"{CPUSet(numbers)}\n")
    if machine.smt_active is not None:
        (base / "smt").mkdir()
        (base / "smt/active").write_text(f"{machine.smt_active}\n")
    if machine.no_turbo is not None:
        (base / "intel_pstate").mkdir()
        (base / "intel_pstate/no_turbo").write_text(f"{machine.no_turbo}\n")
    if machine.numa:
        _nodes(machine, roots)
    roots.proc.mkdir(parents=True, exist_ok=True)
    (roots.proc / "cpuinfo").write_text(machine.cpuinfo)
    if machine.cbm:
        _resctrl(machine, roots.resctrl)


def _cpu(machine: Machine, number: int, path: Path) -> None:
    thread = machine.cpus[number]
    if thread.core is not None:
        siblings = [n for n in machine.online if _core(machine.cpus[n]) == _core(thread)]
        package = [n for n in machine.online if machine.cpus[n].package == thread.package]
        (path / "topology").mkdir()
        for name, content in (
            ("core_id", str(thread.core)),
            ("physical_package_id", str(thread.package)),
            ("thread_siblings", _mask(siblings)),
            ("core_siblings", _mask(package)),
            ("thread_siblings_list", str(CPUSet(siblings))),
            ("core_siblings_list", str(CPUSet(package))),
        ):
            (path / "topology" / name).write_text(f"{content}\n")
    core = next((n for n in sorted(machine.online) if _core(machine.cpus[n]) == _core(thread)), number)
    caches = [(1, "Data", core), (1, "Instruction", core), (2, "Unified", thread.l2), (3, "Unified", thread.l3)]
    if thread.l2 is None:
        return
    for index, (level, kind, cache) in enumerate(caches):
        if cache is None:
            continue
        sharing = [n for n in machine.online if _cache_of(machine, n, level) == _cache_of(machine, number, level)]
        directory = path / f"cache/index{index}"
        directory.mkdir(parents=True)
        for name, content in (
            ("level", str(level)),
            ("type", kind),
            ("shared_cpu_map", _mask(sharing)),
            ("shared_cpu_list", str(CPUSet(sharing))),
            ("size", "32K"),
        ):
            (directory / name).write_text(f"{content}\n")
        if machine.cache_ids:
            (directory / "id").write_text(f"{cache}\n")


def _core(thread: Thread) -> tuple[int | None, int | None]:
    return thread.package, thread.core


def _cache_of(machine: Machine, number: int, level: int) -> object:
    thread = machine.cpus[number]
    return _core(thread) if level == 1 else thread.l2 if level == 2 else thread.l3


def _mask(numbers: list[int]) -> str:
    return f"{sum(1 << number for number in numbers):x}"


def _nodes(machine: Machine, roots: Roots) -> None:
    """Offline CPUs are not in a node's list."""
    used = {machine.cpus[number].node for number in machine.cpus} - {None}
    for node in sorted({*used, *machine.empty_nodes}, key=str):
        cpus = [number for number in machine.online if machine.cpus[number].node == node]
        for base in (roots.sys / "devices/system/node", roots.sys / "bus/node/devices"):
            path = base / f"node{node}"
            path.mkdir(parents=True)
            (path / "cpulist").write_text(f"{CPUSet(cpus)}\n")
            (path / "cpumap").write_text(f"{_mask(cpus)}\n")
            lines = {"MemTotal": 64 * GIB_KB, "MemFree": 32 * GIB_KB, "Active(file)": GIB_KB, "Inactive(file)": GIB_KB}
            (path / "meminfo").write_text("".join(f"Node {node} {key}: {kb} kB\n" for key, kb in lines.items()))


def _resctrl(machine: Machine, root: Path) -> None:
    """A mounted resctrl with one domain for each L3."""
    domains = machine.l3_domains()
    full = 2048 if "AuthenticAMD" in machine.cpuinfo else 100
    (root / "info/L3").mkdir(parents=True)
    (root / "info/L3/cbm_mask").write_text(f"{machine.cbm}\n")
    (root / "info/L3/min_cbm_bits").write_text(f"{machine.min_cbm_bits}\n")
    l3 = ";".join(f"{cache}={machine.cbm}" for cache in domains)
    bandwidth = ";".join(f"{cache}={full:4}" for cache in domains)
    (root / "schemata").write_text(f"    MB:{bandwidth}\n    L3:{l3}\n")
