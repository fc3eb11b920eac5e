"""Readers of one group: valid, missing and malformed content, the same results from v1 and v2 trees."""

import shutil
from collections.abc import Callable

import pytest

from koordlet.system.cgroup.files import NumaMemory
from koordlet.system.cpu.cpuset import CPUSet
from koordlet.system.errors import CgroupGone, MalformedFile, ResourceUnsupported
from tests.koordlet.system.conftest import Tree
from tests.present import present

POD = "kubepods/burstable/pod1"
READERS = {
    "cpu_usage": 1_000_000_000,
    "cpu_quota": 50000,
    "cpu_period": 100000,
    "memory_usage": 4096,
    "cpuset": CPUSet({0, 1, 2, 5}),
    "procs": (1, 2),
    "tasks": (1, 2, 3),
}


@pytest.mark.parametrize("name", READERS)
def test_both_versions_have_the_same_value(tree: Tree, name: str) -> None:
    tree.fill()
    assert getattr(tree.fs(), name)(POD) == READERS[name]


def test_memory_by_numa_node_is_in_bytes_without_page_cache(tree: Tree) -> None:
    tree.fill()
    page = 4096 if tree.version == 2 else tree.fs().page_size
    expected = {
        1: {0: NumaMemory(42184 * page, 20 * page), 1: NumaMemory(43 * page, page)},
        2: {0: NumaMemory(172703744 + 77824, 77824), 1: NumaMemory(172032 + 4096, 4096)},
    }
    assert tree.fs().memory_numa(POD) == expected[tree.version]


def test_v1_memory_by_numa_node_includes_descendants(make_tree: Callable[[int], Tree]) -> None:
    tree = make_tree(1)
    tree.fill()
    tree.put(
        "memory",
        "memory.numa_stat",
        "total=1 N0=1\nanon=1 N0=1\nunevictable=0 N0=0\n"
        "hierarchical_total=9 N0=9\nhierarchical_anon=4 N0=4\nhierarchical_unevictable=1 N0=1\n",
    )
    fs = tree.fs()
    assert fs.memory_numa(POD) == {0: NumaMemory(9 * fs.page_size, 5 * fs.page_size)}


def test_v2_memory_by_numa_node_counts_locked_pages_once(make_tree: Callable[[int], Tree]) -> None:
    tree = make_tree(2)
    tree.fill()
    tree.put(
        "",
        "memory.numa_stat",
        "anon N0=100 N2=7\nfile N0=10 N2=0\ninactive_anon N0=60 N2=1\nactive_anon N0=10 N2=2\nunevictable N0=30 N2=4\n",
    )
    assert tree.fs().memory_numa(POD) == {0: NumaMemory(110, 100), 2: NumaMemory(7, 7)}


VALUES = {"cpu.shares": (1024, 998), "memory.limit_in_bytes": (-1, -1)}


@pytest.mark.parametrize(("resource", "values"), VALUES.items(), ids=VALUES)
def test_values_are_in_v1_units(tree: Tree, resource: str, values: tuple[int, int]) -> None:
    tree.fill()
    assert tree.fs().value(resource, POD) == values[tree.version - 1]


def test_pressure_of_each_resource_is_read(tree: Tree) -> None:
    tree.fill()
    fs = tree.fs()
    assert (present(fs.pressure("cpu", POD)).some.avg10, present(present(fs.pressure("io", POD)).full).total) == (
        1.5,
        500,
    )
    path = tree.dir("cpuacct") / "cpu.pressure"
    path.write_text("some 1\n")
    with pytest.raises(MalformedFile, match=str(path)):
        fs.pressure("cpu", POD)
    path.unlink()
    assert fs.pressure("cpu", POD) is None


@pytest.mark.parametrize(
    ("reader", "v1", "v2"),
    [
        ("cpu_usage", ("cpuacct", "cpuacct.usage"), ("", "cpu.stat")),
        ("cpu_quota", ("cpu", "cpu.cfs_quota_us"), ("", "cpu.max")),
        ("cpuset", ("cpuset", "cpuset.cpus"), ("", "cpuset.cpus.effective")),
        ("memory_usage", ("memory", "memory.usage_in_bytes"), ("", "memory.current")),
        ("memory_numa", ("memory", "memory.numa_stat"), ("", "memory.numa_stat")),
        ("procs", ("cpu", "cgroup.procs"), ("", "cgroup.procs")),
    ],
)
def test_a_missing_file_is_none_and_a_malformed_one_is_named(
    tree: Tree, reader: str, v1: tuple[str, str], v2: tuple[str, str]
) -> None:
    tree.fill()
    subsystem, file = v1 if tree.version == 1 else v2
    path = tree.dir(subsystem) / file
    path.write_text("usage_usec 12x\nnr_periods nonsense\n")
    with pytest.raises(MalformedFile, match=str(path)):
        getattr(tree.fs(), reader)(POD)
    path.unlink()
    assert getattr(tree.fs(), reader)(POD) is None


def test_a_removed_cgroup_is_an_error(tree: Tree) -> None:
    tree.fill()
    fs = tree.fs()
    assert fs.exists(POD)
    assert fs.cpu_usage(POD) == 1_000_000_000
    for subsystem in ("cpu", "cpuacct", "memory", "cpuset"):
        shutil.rmtree(tree.dir(subsystem), ignore_errors=True)
    with pytest.raises(CgroupGone, match="cgroup path or file not exist"):
        fs.cpu_usage(POD)
    assert not fs.exists(POD)


def test_a_v1_hierarchy_without_the_group_is_none(make_tree: Callable[[int], Tree]) -> None:
    tree = make_tree(1)
    tree.fill()
    shutil.rmtree(tree.dir("memory"))
    assert tree.fs().memory_usage(POD) is None


def test_pressure_of_a_hybrid_host_comes_from_the_unified_tree(make_tree: Callable[[int], Tree]) -> None:
    tree = make_tree(1)
    tree.fill()
    for name in ("cpu", "memory", "io"):
        text = (tree.dir("cpuacct") / f"{name}.pressure").read_text().replace("1.50", "9.00")
        (tree.dir("cpuacct") / f"{name}.pressure").unlink()
        target = tree.roots.cgroup / "unified" / POD / f"{name}.pressure"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    (tree.roots.cgroup / "unified/cgroup.controllers").write_text("")
    assert present(tree.fs().pressure("cpu", POD)).some.avg10 == 9.0


def test_each_support_rule_looks_in_its_place(tree: Tree) -> None:
    tree.fill()
    fs = tree.fs()
    assert fs.support("cpu.shares", "no/such/dir")
    assert not fs.support("cpu.bvt_warp_ns", POD)
    tree.put("cpu", "cpu.bvt_warp_ns", "0\n")
    assert fs.support("cpu.bvt_warp_ns", POD), "the rule DIRECTORY is checked on every use"
    feature = fs.support("cpu.idle", POD)
    assert not feature
    assert "kubepods/cpu.idle" in feature.reason
    tree.put("cpu", "cpu.idle", "0\n", "kubepods")
    assert not fs.support("cpu.idle", POD), "the result of the rule KUBE_ROOT is kept"
    assert tree.fs().support("cpu.idle", POD)


def test_support_without_kubepods_looks_in_the_directory(tree: Tree) -> None:
    tree.put("cpu", "cpu.idle", "0\n", "system.slice")
    fs = tree.fs(kube_root="")
    assert fs.support("cpu.idle", "system.slice")
    assert not fs.support("cpu.idle", "user.slice")


def test_net_cls_is_a_directory_below_the_root_on_v2(make_tree: Callable[[int], Tree]) -> None:
    tree = make_tree(2)
    assert tree.fs().path("net_cls.classid", "a") == f"{tree.roots.cgroup}/net_cls/a/net_cls.classid"


def test_an_unregistered_resource_is_an_error(make_tree: Callable[[int], Tree]) -> None:
    with pytest.raises(ResourceUnsupported, match="not registered for cgroup v2"):
        make_tree(2).fs().idle_pages(POD)


def test_forgotten_directories_are_closed_in_every_hierarchy(tree: Tree) -> None:
    tree.fill(POD)
    tree.fill(f"{POD}/abc")
    tree.fill("kubepods/burstable/pod12")
    fs = tree.fs()
    for where in (POD, f"{POD}/abc", "kubepods/burstable/pod12"):
        fs.cpu_usage(where)
        fs.memory_usage(where)
    fs.forget([POD, "not/there"])
    assert {path.rpartition("/")[0].rpartition("/")[2] for path in fs.cache.paths()} == {"pod12"}
    assert fs.cpu_usage(POD) == 1_000_000_000
    fs.cache.close()
