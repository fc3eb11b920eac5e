"""Typed readers: right, missing and damaged content, the same answers from v1 and v2 trees."""

import shutil

import pytest

from koordlet.system.cgroup import CgroupGone, MalformedFile, ResourceUnsupported
from koordlet.system.cgroup.files import MemoryStat, NumaMemory
from koordlet.system.cpu.cpuset import CPUSet

POD = "kubepods/burstable/pod1"
READERS = {
    "cpu_usage": 1_000_000_000,
    "cpu_quota": 50000,
    "cpu_period": 100000,
    "memory_usage": 4096,
    "memory_limit": -1,
    "memory_stat": MemoryStat(100, 50, 10, 20, 30, 40, 5),
    "cpuset": CPUSet({0, 1, 2, 5}),
    "procs": (1, 2),
    "tasks": (1, 2, 3),
}


@pytest.mark.parametrize("name", READERS)
def test_same_value_from_both_versions(tree, name):
    tree.fill()
    assert getattr(tree.fs(), name)(POD) == READERS[name]


def test_cpu_stat(tree):
    tree.fill()
    stat = tree.fs().cpu_stat(POD)
    assert (stat.nr_periods, stat.nr_throttled, stat.throttled_ns, stat.nr_bursts) == (100, 50, 7000, None)


def test_cpu_times(tree):
    tree.fill()
    times = tree.fs().cpu_times(POD)
    assert (times.user_ns, times.system_ns, times.usage_ns) == (700_000_000, 300_000_000, 1_000_000_000)


def test_shares(tree):
    tree.fill()
    assert tree.fs().cpu_shares(POD) == (1024 if tree.version == 1 else 998)


def test_memory_usage_derivations(tree):
    tree.fill()
    stat = tree.fs().memory_stat(POD)
    assert (stat.usage, stat.usage_with_page_cache) == (75, 105)


def test_numa_is_bytes_and_leaves_the_page_cache_out(tree):
    tree.fill()
    page = 4096 if tree.version == 2 else tree.fs().page_size
    expected = {
        1: {0: NumaMemory(42184 * page, 20 * page), 1: NumaMemory(43 * page, page)},
        2: {0: NumaMemory(172703744 + 77824, 77824), 1: NumaMemory(172032 + 4096, 4096)},
    }
    assert tree.fs().memory_numa(POD) == expected[tree.version]


def test_v1_numa_takes_the_hierarchical_lines(make_tree):
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


def test_v2_numa_counts_locked_pages_once_and_accepts_gaps(make_tree):
    tree = make_tree(2)
    tree.fill()
    tree.put(
        "",
        "memory.numa_stat",
        "anon N0=100 N2=7\nfile N0=10 N2=0\ninactive_anon N0=60 N2=1\nactive_anon N0=10 N2=2\nunevictable N0=30 N2=4\n",
    )
    assert tree.fs().memory_numa(POD) == {0: NumaMemory(110, 100), 2: NumaMemory(7, 7)}


def test_pressure(tree):
    tree.fill()
    pressure = tree.fs().pressure(POD)
    assert (pressure.cpu.some.avg10, pressure.io.full.total, pressure.memory.full_supported) == (1.5, 500, True)


def test_pressure_needs_all_three_files(tree):
    tree.fill()
    (tree.dir("cpuacct") / "io.pressure").unlink()
    assert tree.fs().pressure(POD) is None


@pytest.mark.parametrize(
    ("reader", "v1", "v2"),
    [
        ("cpu_usage", ("cpuacct", "cpuacct.usage"), ("", "cpu.stat")),
        ("cpu_stat", ("cpu", "cpu.stat"), ("", "cpu.stat")),
        ("cpu_quota", ("cpu", "cpu.cfs_quota_us"), ("", "cpu.max")),
        ("cpu_shares", ("cpu", "cpu.shares"), ("", "cpu.weight")),
        ("cpuset", ("cpuset", "cpuset.cpus"), ("", "cpuset.cpus.effective")),
        ("memory_limit", ("memory", "memory.limit_in_bytes"), ("", "memory.max")),
        ("memory_stat", ("memory", "memory.stat"), ("", "memory.stat")),
        ("memory_numa", ("memory", "memory.numa_stat"), ("", "memory.numa_stat")),
        ("procs", ("cpu", "cgroup.procs"), ("", "cgroup.procs")),
        ("pressure", ("cpuacct", "cpu.pressure"), ("", "cpu.pressure")),
    ],
)
def test_missing_is_none_and_damaged_names_the_file(tree, reader, v1, v2):
    tree.fill()
    subsystem, file = v1 if tree.version == 1 else v2
    path = tree.dir(subsystem) / file
    path.write_text("usage_usec 12x\nnr_periods nonsense\n")
    with pytest.raises(MalformedFile, match=str(path)):
        getattr(tree.fs(), reader)(POD)
    path.unlink()
    assert getattr(tree.fs(), reader)(POD) is None


@pytest.mark.parametrize("missing", ["active_anon", "unevictable", "file"])
def test_memory_stat_names_the_missing_key(tree, missing):
    tree.fill()
    path = tree.dir("memory") / "memory.stat"
    key = missing if tree.version == 2 else "total_" + missing.replace("file", "cache")
    key = "total_cache" if key == "total_file" else key
    path.write_text("".join(x for x in path.read_text().splitlines(True) if not x.startswith(key + " ")))
    with pytest.raises(MalformedFile, match=key):
        tree.fs().memory_stat(POD)


def test_v2_group_without_the_cpu_controller_has_no_periods(make_tree):
    tree = make_tree(2)
    tree.put("", "cpu.stat", "usage_usec 5\nuser_usec 3\nsystem_usec 2\n")
    assert tree.fs().cpu_stat(POD) is None
    assert tree.fs().cpu_usage(POD) == 5000


def test_gone_cgroup(tree):
    tree.fill()
    fs = tree.fs()
    assert fs.exists(POD)
    assert fs.cpu_usage(POD) == 1_000_000_000
    for subsystem in ("cpu", "cpuacct", "memory", "cpuset"):
        shutil.rmtree(tree.dir(subsystem), ignore_errors=True)
    with pytest.raises(CgroupGone, match="cgroup path or file not exist"):
        fs.cpu_usage(POD)
    assert not fs.exists(POD)


def test_v1_hierarchy_without_the_group_is_absence(make_tree):
    tree = make_tree(1)
    tree.fill()
    shutil.rmtree(tree.dir("memory"))
    assert tree.fs().memory_stat(POD) is None


def test_hybrid_pressure_comes_from_the_unified_tree(make_tree):
    tree = make_tree(1)
    tree.fill()
    for name in ("cpu", "memory", "io"):
        text = (tree.dir("cpuacct") / f"{name}.pressure").read_text().replace("1.50", "9.00")
        (tree.dir("cpuacct") / f"{name}.pressure").unlink()
        target = tree.roots.cgroup / "unified" / POD / f"{name}.pressure"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    (tree.roots.cgroup / "unified/cgroup.controllers").write_text("")
    assert tree.fs().pressure(POD).cpu.some.avg10 == 9.0


def test_support_rules(tree):
    tree.fill()
    fs = tree.fs()
    assert fs.support("cpu.shares", "no/such/dir")
    assert not fs.support("cpu.bvt_warp_ns", POD)
    tree.put("cpu", "cpu.bvt_warp_ns", "0\n")
    assert fs.support("cpu.bvt_warp_ns", POD), "a D rule looks again on every use"
    feature = fs.support("cpu.idle", POD)
    assert not feature
    assert "kubepods/cpu.idle" in feature.reason
    tree.put("cpu", "cpu.idle", "0\n", "kubepods")
    assert not fs.support("cpu.idle", POD), "a K rule is remembered"
    assert tree.fs().support("cpu.idle", POD)


def test_support_without_kubepods_looks_in_the_directory(tree):
    tree.put("cpu", "cpu.idle", "0\n", "system.slice")
    fs = tree.fs(kube_root="")
    assert fs.support("cpu.idle", "system.slice")
    assert not fs.support("cpu.idle", "user.slice")


def test_net_cls_is_a_directory_on_v2(make_tree):
    tree = make_tree(2)
    assert tree.fs().path("net_cls.classid", "a") == f"{tree.roots.cgroup}/net_cls/a/net_cls.classid"


def test_unregistered_resource(make_tree):
    with pytest.raises(ResourceUnsupported, match="not registered for cgroup v2"):
        make_tree(2).fs().idle_pages(POD)


def test_what_is_forgotten_is_closed_in_every_hierarchy(tree):
    tree.fill(POD)
    tree.fill(f"{POD}/abc")
    tree.fill("kubepods/burstable/pod12")
    fs = tree.fs()
    for where in (POD, f"{POD}/abc", "kubepods/burstable/pod12"):
        fs.cpu_usage(where)
        fs.memory_stat(where)
    fs.forget([POD, "not/there"])
    assert {path.rpartition("/")[0].rpartition("/")[2] for path in fs.cache.paths()} == {"pod12"}
    assert fs.cpu_usage(POD) == 1_000_000_000
    fs.cache.close()
