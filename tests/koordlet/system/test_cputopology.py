import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.cpu.cputopology import CpuTopology, parse_cpuinfo, read_topology
from koordlet.system.errors import MalformedFile
from koordlet.system.roots import Roots
from tests.koordlet.roots import roots_under


def machine(
    roots: Roots, cpus: dict[int, tuple[int, int, int]], nodes: dict[int, str], online: str, *, cache_ids: bool = True
) -> Path:
    """`cpus`: id -> (socket, core, l3)."""
    base = roots.sys / "devices/system/cpu"
    base.mkdir(parents=True)
    for cpu, (socket, core, l3) in cpus.items():
        (base / f"cpu{cpu}/topology").mkdir(parents=True)
        (base / f"cpu{cpu}/topology/core_id").write_text(f"{core}\n")
        (base / f"cpu{cpu}/topology/physical_package_id").write_text(f"{socket}\n")
        for index, level, kind, cache in ((0, 1, "Data", cpu), (1, 1, "Instruction", 99), (2, 2, "Unified", cpu),
                                          (3, 3, "Unified", l3)):  # fmt: skip
            path = base / f"cpu{cpu}/cache/index{index}"
            path.mkdir(parents=True)
            (path / "level").write_text(f"{level}\n")
            (path / "type").write_text(f"{kind}\n")
            if cache_ids:
                (path / "id").write_text(f"{cache}\n")
            else:
                sharing = [other for other, row in cpus.items() if level == 3 and row[2] == l3] or [cpu]
                (path / "shared_cpu_list").write_text(f"{CPUSet(sharing)}\n")
    (base / "online").write_text(f"{online}\n")
    for node, listed in nodes.items():
        path = roots.sys / f"bus/node/devices/node{node}"
        path.mkdir(parents=True)
        (path / "cpulist").write_text(f"{listed}\n")
    return base


def grouped(topology: CpuTopology, key: Callable[..., Any]) -> dict[Any, set[int]]:
    groups: dict[str, Any] = {}
    for cpu in topology.cpus:
        groups.setdefault(key(cpu), set()).add(cpu.id)
    return groups


TWO_SOCKETS = {0: (0, 0, 10), 1: (0, 1, 10), 2: (1, 0, 11), 3: (1, 1, 11),
               4: (0, 0, 10), 5: (0, 1, 10), 6: (1, 0, 11), 7: (1, 1, 11)}  # fmt: skip


def test_core_ids_repeat_on_two_sockets_and_node_ids_have_gaps(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    base = machine(roots, TWO_SOCKETS, {0: "0-1,4-5", 2: "2-3,6-7", 5: ""}, "0-6")
    (base / "smt").mkdir()
    (base / "smt/active").write_text("1\n")
    (base / "intel_pstate").mkdir()
    (base / "intel_pstate/no_turbo").write_text("0\n")
    topology = read_topology(roots)
    assert topology.online == CPUSet(range(7))
    assert grouped(topology, lambda cpu: (cpu.socket, cpu.core)) == {
        (0, 0): {0, 4}, (0, 1): {1, 5}, (1, 0): {2, 6}, (1, 1): {3},
    }  # fmt: skip
    assert topology.by_node == {0: CPUSet((0, 1, 4, 5)), 2: CPUSet((2, 3, 6))}
    assert grouped(topology, lambda cpu: cpu.socket) == {0: {0, 1, 4, 5}, 1: {2, 3, 6}}
    assert grouped(topology, lambda cpu: cpu.l3) == {10: {0, 1, 4, 5}, 11: {2, 3, 6}}
    assert (topology.smt, topology.turbo) == (True, True)
    assert [cpu.id for cpu in topology.cpus] == [0, 4, 1, 5, 2, 6, 3]
    assert {cpu.l1 for cpu in topology.cpus} == set(range(7)), "instruction caches do not count"


def test_caches_without_ids_are_identified_by_the_cpus_that_share_them(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    machine(roots, TWO_SOCKETS, {}, "0-7", cache_ids=False)
    topology = read_topology(roots)
    assert grouped(topology, lambda cpu: cpu.l3) == {0: {0, 1, 4, 5}, 2: {2, 3, 6, 7}}
    assert topology.by_node == {0: CPUSet(range(8))}
    assert topology.smt, "two threads share a core"
    assert not topology.turbo


def test_cpus_without_topology_are_cores_of_one_socket(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    for cpu in (0, 1):
        (roots.sys / f"devices/system/cpu/cpu{cpu}").mkdir(parents=True)
    topology = read_topology(roots)
    assert [(cpu.id, cpu.core, cpu.socket, cpu.l3) for cpu in topology.cpus] == [(0, 0, 0, None), (1, 1, 0, None)]
    assert not topology.smt


def test_a_malformed_list_is_named(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    machine(roots, {}, {}, "0..3")
    with pytest.raises(MalformedFile, match="cpu/online"):
        read_topology(roots)


def test_cpuinfo_is_parsed() -> None:
    info = parse_cpuinfo(
        "processor: 0\nvendor_id\t: AuthenticAMD\nmodel name : EPYC: 2\nflags: a b\n\nvendor_id : Odd\n"
    )
    assert (info.model, info.vendor, info.flags) == ("EPYC: 2", "AuthenticAMD", frozenset("ab"))
    assert parse_cpuinfo("").model == "unknown"
    assert parse_cpuinfo("Model Name: ARM\nFeatures: fp\n").flags == {"fp"}


def test_this_machine_is_read() -> None:
    topology = read_topology(Roots.host())
    assert len(topology.online) == len(topology.cpus) >= 1
    assert topology.online >= CPUSet(os.sched_getaffinity(0))
