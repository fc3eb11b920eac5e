import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system.errors import MalformedFile
from koordlet.system.proc import procfs
from koordlet.system.roots import Roots
from tests.koordlet.roots import roots_under
from tests.present import present

HOST = Roots.host()


def test_ticks_are_as_in_the_specified_example() -> None:
    ticks = procfs.parse_cpu_ticks(
        "cpu  514003 37519 593580 1706155242 5134 45033 38832 0 0 0\n"
        "cpu0 9755 845 15540 26635869 3021 2312 9724 0 0 0\nintr 5 6\n"
    )
    assert ticks == procfs.CpuTicks(1228967, {0: 38176})


@pytest.mark.parametrize(("line", "stolen"), [("1 2 3 4 5 6 7 250 9 10", 250), ("1 2 3 4 5 6 7", 0)])
def test_ticks_stolen_by_the_hypervisor_are_read(line: str, stolen: int) -> None:
    ticks = procfs.parse_cpu_ticks(f"cpu  {line}\ncpu0 {line}\n")
    assert (ticks.total, ticks.stolen) == (19, stolen)


@pytest.mark.parametrize(
    "text", ["", "cpu0 1 2 3 4 5 6 7\n", "cpu 1 2 3\n", "cpu 1 2 3 4 5 6 x\n", "cpux 1 2 3 4 5 6 7\n"]
)
def test_a_malformed_stat_is_named(text: str) -> None:
    with pytest.raises(MalformedFile, match="proc/stat"):
        procfs.parse_cpu_ticks(text, "proc/stat")


def test_meminfo_is_in_bytes() -> None:
    info = procfs.parse_meminfo(
        "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 524288 kB\nHugePages_Total:       3\n"
    )
    assert info.used == 536870912
    assert info.used_with_page_cache == 1048575 * 1024
    assert info.values["HugePages_Total"] == 3


@pytest.mark.parametrize("text", ["MemTotal: 1 kB\nMemFree: 1 kB\n", "MemTotal 1 kB\n", "MemTotal: x kB\n"])
def test_a_malformed_meminfo_is_named(text: str) -> None:
    with pytest.raises(MalformedFile, match="meminfo"):
        procfs.parse_meminfo(text)


NUMA = "Node {n} MemTotal: {0} kB\nNode {n} MemFree: {1} kB\nNode {n} Active(file): {2} kB\n" \
       "Node {n} Inactive(file): {3} kB\nNode {n} SReclaimable: {4} kB\nNode {n} Shmem: 777 kB\n" \
       "Node {n} HugePages_Total: 1\n"  # fmt: skip


@pytest.mark.parametrize(
    ("node", "numbers", "used"),
    [
        (0, (1048576, 262144, 131072, 131072, 65536), 469762048),
        (1, (1048576, 524288, 65536, 65536, 0), 402653184),
        (3, (10, 10, 10, 0, 0), 0),
    ],
)
def test_memory_use_of_a_numa_node(node: int, numbers: tuple[int, int, int, int, int], used: int) -> None:
    info = procfs.parse_numa_meminfo(NUMA.format(*numbers, n=node), node)
    assert info.used == used


def test_meminfo_of_another_node_is_an_error() -> None:
    with pytest.raises(MalformedFile, match="Node 1"):
        procfs.parse_numa_meminfo("Node 0 MemTotal: 1 kB\n", 1)


def test_numa_nodes_may_have_gaps_and_huge_pages(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    base = roots.sys / "bus/node/devices"
    for node in (0, 2, 4):
        (base / f"node{node}/hugepages/hugepages-2048kB").mkdir(parents=True)
        (base / f"node{node}/hugepages/hugepages-2048kB/nr_hugepages").write_text(f"{node}\n")
        (base / f"node{node}/meminfo").write_text(NUMA.format(100, 50, 0, 0, 0, n=node))
    (roots.sys / "devices/system/node").mkdir(parents=True)
    (roots.sys / "devices/system/node/has_generic_initiator").write_text("4\n")
    nodes = procfs.read_numa_meminfo(roots)
    assert {node: info.huge_pages for node, info in nodes.items()} == {0: {2048: 0}, 2: {2048: 2}}


def test_the_cgroups_of_a_process_are_parsed() -> None:
    text = "12:cpu,cpuacct:/kubepods/pod1\n1:name=systemd:/a:b\n0::/x (deleted)\n"
    assert procfs.parse_cgroups(text) == {
        "cpu": "kubepods/pod1", "cpuacct": "kubepods/pod1", "name=systemd": "a:b", "": "x",
    }  # fmt: skip
    with pytest.raises(MalformedFile):
        procfs.parse_cgroups("cpu:/x\n")


def test_this_process_is_read() -> None:
    pid = os.getpid()
    assert procfs.read_cgroups(HOST, pid)
    assert present(procfs.read_schedstat(HOST, pid)).run_ns > 0
    assert -1000 <= present(procfs.read_oom_score_adj(HOST, pid)) <= 1000


def test_an_ended_process_is_none() -> None:
    ended = 2**22 + 1
    for read in (procfs.read_cgroups, procfs.read_schedstat, procfs.read_oom_score_adj):
        assert read(HOST, ended) is None


def test_this_node_is_read() -> None:
    assert present(procfs.read_meminfo(HOST)).total > present(procfs.read_meminfo(HOST)).used > 0
    assert present(procfs.read_vmstat(HOST))["nr_free_pages"] > 0


def test_absent_files_are_none(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    for read in (procfs.read_meminfo, procfs.read_vmstat):
        assert read(roots) is None
    assert procfs.read_numa_meminfo(roots) == {}


@given(st.dictionaries(st.text("abc_", min_size=1), st.integers(0, 2**64)))
def test_vmstat_is_parsed(pairs: dict[str, int]) -> None:
    assert procfs.parse_vmstat("".join(f"{key} {value}\n" for key, value in pairs.items())) == pairs
