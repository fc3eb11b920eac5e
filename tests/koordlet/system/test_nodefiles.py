"""The node's files through open descriptors agree with procfs, also when NUMA nodes are added and removed."""

from pathlib import Path

import pytest

from koordlet.system.cgroup.cache import ReadCache
from koordlet.system.errors import MalformedFile
from koordlet.system.proc import procfs
from koordlet.system.proc.nodefiles import NODE_LIST_READINGS, NodeFiles
from koordlet.system.roots import Roots
from tests.koordlet.roots import roots_under
from tests.present import present


def add_node(roots: Roots, node: int, free: int) -> Path:
    directory = roots.sys / f"bus/node/devices/node{node}"
    (directory / "hugepages/hugepages-2048kB").mkdir(parents=True, exist_ok=True)
    (directory / "hugepages/hugepages-2048kB/nr_hugepages").write_text("3\n")
    (directory / "meminfo").write_text(f"Node {node} MemTotal: 100 kB\nNode {node} MemFree: {free} kB\n")
    return directory


def ticks() -> procfs.CpuTicks:
    return procfs.parse_cpu_ticks(Path("/proc/stat").read_text())


def test_files_of_this_machine_agree_with_procfs() -> None:
    roots = Roots.host()
    with ReadCache() as cache:
        files = NodeFiles(roots, cache)
        for _ in range(2):
            before, now, after = ticks(), files.cpu_ticks(), ticks()
            assert now is not None
            assert before.total <= now.total <= after.total
            assert now.by_cpu.keys() == before.by_cpu.keys()
            assert present(files.memory()).total == present(procfs.read_meminfo(roots)).total
            assert files.numa_memory().keys() == procfs.read_numa_meminfo(roots).keys()
        opened = cache.opens
        files.cpu_ticks(), files.memory(), files.numa_memory()
        assert cache.opens - opened <= len(procfs.HUGE_PAGE_KB) * len(files.numa_memory())  # only the absent files


def test_added_and_removed_nodes_are_noticed(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    with ReadCache(verify=True) as cache:
        files = NodeFiles(roots, cache)
        assert files.numa_memory() == {}
        assert files.cpu_ticks() is None
        assert files.memory() is None
        add_node(roots, 0, 40)
        second = add_node(roots, 1, 10)
        for _ in range(NODE_LIST_READINGS):
            files.numa_memory()
        memory = files.numa_memory()
        assert memory == procfs.read_numa_meminfo(roots)
        assert memory[1].huge_pages == {2048: 3}
        add_node(roots, 0, 30)
        assert files.numa_memory()[0].free == 30 * 1024
        (second / "meminfo").unlink()
        assert files.numa_memory().keys() == {0}


def test_a_malformed_file_is_named(tmp_path: Path) -> None:
    roots = roots_under(tmp_path)
    roots.proc.mkdir(parents=True)
    (roots.proc / "stat").write_text("nonsense\n")
    with ReadCache(verify=True) as cache, pytest.raises(MalformedFile, match="proc/stat"):
        NodeFiles(roots, cache).cpu_ticks()
