import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.system.errors import MalformedFile
from koordlet.system.proc import clockticks as clock
from koordlet.system.proc import procfs
from koordlet.system.roots import Roots

HOST = Roots.host()


def test_ticks_of_the_worked_example():
    ticks = procfs.parse_cpu_ticks(
        "cpu  514003 37519 593580 1706155242 5134 45033 38832 0 0 0\n"
        "cpu0 9755 845 15540 26635869 3021 2312 9724 0 0 0\nintr 5 6\n"
    )
    assert ticks == procfs.CpuTicks(1228967, {0: 38176})


@pytest.mark.parametrize(("line", "stolen"), [("1 2 3 4 5 6 7 250 9 10", 250), ("1 2 3 4 5 6 7", 0)])
def test_ticks_that_a_hypervisor_took(line, stolen):
    ticks = procfs.parse_cpu_ticks(f"cpu  {line}\ncpu0 {line}\n")
    assert (ticks.total, ticks.stolen) == (19, stolen)


@pytest.mark.parametrize(
    "text", ["", "cpu0 1 2 3 4 5 6 7\n", "cpu 1 2 3\n", "cpu 1 2 3 4 5 6 x\n", "cpux 1 2 3 4 5 6 7\n"]
)
def test_damaged_stat(text):
    with pytest.raises(MalformedFile, match="proc/stat"):
        procfs.parse_cpu_ticks(text, "proc/stat")


def test_hundred_ticks_a_second_are_a_core():
    jiffy = clock.jiffy_ns(100)
    assert 100 / clock.period_ticks(0, 1_000_000_000, jiffy) == 1.0
    assert clock.jiffy_ns(0) == 10_000_000
    assert clock.ticks_per_second() == os.sysconf("SC_CLK_TCK")


def test_meminfo():
    info = procfs.parse_meminfo(
        "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 524288 kB\nHugePages_Total:       3\n"
    )
    assert info.used == 536870912
    assert info.used_with_page_cache == 1048575 * 1024
    assert info.values["HugePages_Total"] == 3


@pytest.mark.parametrize("text", ["MemTotal: 1 kB\nMemFree: 1 kB\n", "MemTotal 1 kB\n", "MemTotal: x kB\n"])
def test_damaged_meminfo(text):
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
def test_numa_meminfo(node, numbers, used):
    info = procfs.parse_numa_meminfo(NUMA.format(*numbers, n=node), node)
    assert info.used == used


def test_numa_meminfo_of_another_node():
    with pytest.raises(MalformedFile, match="Node 1"):
        procfs.parse_numa_meminfo("Node 0 MemTotal: 1 kB\n", 1)


def test_numa_nodes_with_gaps_and_huge_pages(tmp_path):
    roots = Roots.under(tmp_path)
    base = roots.sys / "bus/node/devices"
    for node in (0, 2, 4):
        (base / f"node{node}/hugepages/hugepages-2048kB").mkdir(parents=True)
        (base / f"node{node}/hugepages/hugepages-2048kB/nr_hugepages").write_text(f"{node}\n")
        (base / f"node{node}/meminfo").write_text(NUMA.format(100, 50, 0, 0, 0, n=node))
    (roots.sys / "devices/system/node").mkdir(parents=True)
    (roots.sys / "devices/system/node/has_generic_initiator").write_text("4\n")
    found = procfs.read_numa_meminfo(roots)
    assert {node: info.huge_pages for node, info in found.items()} == {0: {2048: 0}, 2: {2048: 2}}


STAT = "{pid} ({comm}) S 1 8482 8482 0 -1 4194304 97 0 0 0 11 22 0 0 20 0 4 0 79612 3133440 394 1 1 1 1 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"  # noqa: E501


@pytest.mark.parametrize("comm", ["cat", "a b", "((sd-pam))", ") R 1 2", "new\nline", "", "()"])
def test_process_names_of_every_kind(comm):
    stat = procfs.parse_stat(STAT.format(pid=7, comm=comm))
    assert (stat.comm, stat.state, stat.ppid, stat.pgrp) == (comm, "S", 1, 8482)
    assert (stat.utime, stat.stime, stat.num_threads, stat.start_time, stat.rss_pages) == (11, 22, 4, 79612, 394)
    assert stat.processor == 1


@given(st.text(max_size=15), st.integers(1, 2**22))
def test_any_name_and_pid(comm, pid):
    stat = procfs.parse_stat(STAT.format(pid=pid, comm=comm))
    assert (stat.pid, stat.comm) == (pid, comm)


@pytest.mark.parametrize("text", ["7 cat S 1\n", "7 (cat) S 1 2\n", "x (cat) S 1 2\n"])
def test_damaged_process_stat(text):
    with pytest.raises(MalformedFile, match="stat"):
        procfs.parse_stat(text)


def test_cgroup_of_a_process():
    text = "12:cpu,cpuacct:/kubepods/pod1\n1:name=systemd:/a:b\n0::/x (deleted)\n"
    assert procfs.parse_cgroups(text) == {
        "cpu": "kubepods/pod1", "cpuacct": "kubepods/pod1", "name=systemd": "a:b", "": "x",
    }  # fmt: skip
    with pytest.raises(MalformedFile):
        procfs.parse_cgroups("cpu:/x\n")


def test_this_process():
    pid = os.getpid()
    stat = procfs.read_stat(HOST, pid)
    assert (stat.pid, stat.ppid, stat.state) == (pid, os.getppid(), "R")
    assert procfs.same_process(HOST, pid, stat.start_time)
    assert not procfs.same_process(HOST, pid, stat.start_time + 1)
    assert procfs.read_comm(HOST, pid) == stat.comm
    assert procfs.read_status(HOST, pid)["Pid"] == str(pid)
    assert procfs.read_cmdline(HOST, pid)[0]
    assert procfs.read_cgroups(HOST, pid)
    assert procfs.read_schedstat(HOST, pid).run_ns > 0
    assert -1000 <= procfs.read_oom_score_adj(HOST, pid) <= 1000


def test_ended_process():
    gone = 2**22 + 1
    for read in (procfs.read_stat, procfs.read_status, procfs.read_comm, procfs.read_cmdline,
                 procfs.read_cgroups, procfs.read_schedstat, procfs.read_oom_score_adj):  # fmt: skip
        assert read(HOST, gone) is None
    assert not procfs.same_process(HOST, gone, 0)


def test_this_node():
    assert procfs.read_cpu_ticks(HOST).total > 0
    assert procfs.read_meminfo(HOST).total > procfs.read_meminfo(HOST).used > 0
    assert procfs.read_vmstat(HOST)["nr_free_pages"] > 0


def test_absent_files(tmp_path):
    roots = Roots.under(tmp_path)
    for read in (procfs.read_cpu_ticks, procfs.read_meminfo, procfs.read_vmstat):
        assert read(roots) is None
    assert procfs.read_numa_meminfo(roots) == {}


@given(st.dictionaries(st.text("abc_", min_size=1), st.integers(0, 2**64)))
def test_vmstat(pairs):
    assert procfs.parse_vmstat("".join(f"{key} {value}\n" for key, value in pairs.items())) == pairs
