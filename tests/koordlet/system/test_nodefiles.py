"""The node's files through kept descriptors say what procfs says, also when NUMA nodes come and go."""

from pathlib import Path

import pytest

from koordlet.system.cgroup import ReadCache
from koordlet.system.errors import MalformedFile
from koordlet.system.proc import procfs
from koordlet.system.proc.nodefiles import LOOK_AGAIN, NodeFiles
from koordlet.system.roots import Roots


def add_node(roots: Roots, node: int, free: int) -> Path:
    directory = roots.sys / f"bus/node/devices/node{node}"
    (directory / "hugepages/hugepages-2048kB").mkdir(parents=True, exist_ok=True)
    (directory / "hugepages/hugepages-2048kB/nr_hugepages").write_text("3\n")
    (directory / "meminfo").write_text(f"Node {node} MemTotal: 100 kB\nNode {node} MemFree: {free} kB\n")
    return directory


def test_this_machine() -> None:
    roots = Roots.host()
    with ReadCache() as cache:
        files = NodeFiles(roots, cache)
        for _ in range(2):
            before, now, after = procfs.read_cpu_ticks(roots), files.cpu_ticks(), procfs.read_cpu_ticks(roots)
            assert before.total <= now.total <= after.total
            assert now.by_cpu.keys() == before.by_cpu.keys()
            assert files.memory().total == procfs.read_meminfo(roots).total
            assert files.numa_memory().keys() == procfs.read_numa_meminfo(roots).keys()
        opened = cache.opens
        files.cpu_ticks(), files.memory(), files.numa_memory()
        assert cache.opens - opened <= len(procfs.HUGE_PAGE_KB) * len(files.numa_memory())  # absent ones only


def test_nodes_that_come_and_go(tmp_path: Path) -> None:
    roots = Roots.under(tmp_path)
    with ReadCache(verify=True) as cache:
        files = NodeFiles(roots, cache)
        assert files.numa_memory() == {}
        assert files.cpu_ticks() is None
        assert files.memory() is None
        add_node(roots, 0, 40)
        second = add_node(roots, 1, 10)
        for _ in range(LOOK_AGAIN):
            files.numa_memory()
        found = files.numa_memory()
        assert found == procfs.read_numa_meminfo(roots)
        assert found[1].huge_pages == {2048: 3}
        add_node(roots, 0, 30)
        assert files.numa_memory()[0].free == 30 * 1024
        (second / "meminfo").unlink()
        assert files.numa_memory().keys() == {0}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    roots = Roots.under(tmp_path)
    roots.proc.mkdir(parents=True)
    (roots.proc / "stat").write_text("nonsense\n")
    with ReadCache(verify=True) as cache, pytest.raises(MalformedFile, match="proc/stat"):
        NodeFiles(roots, cache).cpu_ticks()
