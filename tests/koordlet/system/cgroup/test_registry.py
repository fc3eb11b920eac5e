"""The registry against a second copy of the facts: the table of spec 03 §1.3 as plain rows."""

import pytest

from koordlet.system.cgroup.registry import NODE_FILES, RESOURCES, Support, lookup
from koordlet.system.errors import InvalidValue, ResourceUnsupported
from tests.present import present

A, K, D, R = Support.ALWAYS, Support.KUBE_ROOT, Support.DIRECTORY, Support.HIERARCHY_ROOT
SAME = "same"
ROWS = [
    ("cpu.stat", "cpu", A, SAME, A, None),
    ("cpu.shares", "cpu", A, "cpu.weight", A, ("2", "262144", "1", "262145")),
    ("cpu.cfs_quota_us", "cpu", A, "cpu.max", A, None),
    ("cpu.cfs_period_us", "cpu", A, "cpu.max", A, None),
    ("cpu.cfs_burst_us", "cpu", D, "cpu.max.burst", K, ("0", "100000000", "-1", "100000001")),
    ("cpu.bvt_warp_ns", "cpu", D, SAME, D, ("-1", "2", "-2", "3")),
    ("cpu.idle", "cpu", K, SAME, K, ("0", "1", "-1", "2")),
    ("tasks", "cpu", A, "cgroup.threads", A, None),
    ("cgroup.procs", "cpu", A, SAME, A, None),
    ("cpuset.cpus", "cpuset", A, SAME, A, ("", "0-2,5", "a", "1 ")),
    ("cpuset.cpus.effective", None, None, SAME, A, None),
    ("cpuacct.stat", "cpuacct", A, "cpu.stat", A, None),
    ("cpuacct.usage", "cpuacct", A, "cpu.stat", A, None),
    ("cpu.pressure", "cpuacct", K, SAME, K, None),
    ("memory.pressure", "cpuacct", K, SAME, K, None),
    ("io.pressure", "cpuacct", K, SAME, K, None),
    ("memory.limit_in_bytes", "memory", A, "memory.max", A, None),
    ("memory.usage_in_bytes", "memory", A, "memory.current", A, None),
    ("memory.stat", "memory", A, SAME, A, None),
    ("memory.numa_stat", "memory", A, SAME, A, None),
    ("memory.min", "memory", K, SAME, A, ("0", "max", "-1", "x")),
    ("memory.low", "memory", K, SAME, A, ("0", "9223372036854775807", "-1", "9223372036854775808")),
    ("memory.high", "memory", K, SAME, A, ("0", "max", "-1", "")),
    ("memory.wmark_ratio", "memory", K, SAME, D, ("0", "100", "-1", "101")),
    ("memory.wmark_scale_factor", "memory", K, SAME, D, ("1", "1000", "0", "1001")),
    ("memory.wmark_min_adj", "memory", K, SAME, D, ("-25", "50", "-26", "51")),
    ("memory.priority", "memory", K, SAME, D, ("0", "12", "-1", "13")),
    ("memory.use_priority_oom", "memory", K, SAME, D, ("0", "1", "-1", "2")),
    ("memory.oom.group", "memory", K, SAME, D, ("0", "1", "-1", "2")),
    ("memory.idle_page_stats", "memory", K, None, None, None),
    ("memory.pagecache_limit.enable", None, None, SAME, D, ("0", "1", "-1", "2")),
    ("memory.pagecache_limit.sync", None, None, SAME, D, ("0", "1", "-1", "2")),
    ("memory.pagecache_limit.size", None, None, SAME, D, ("0", "max", "-1", "")),
    *[
        (f"blkio.throttle.{name}_device", "blkio", K, None, None, ("253:16 0", "1 2 3 4", "253:16 -1", "8:0 x"))
        for name in ("read_iops", "read_bps", "write_iops", "write_bps")
    ],
    ("blkio.cost.weight", "blkio", K, None, None, ("8:0 1", "8:0 100", "8:0 0", "8:0 101")),
    (
        "blkio.cost.qos", "blkio", R, None, None,
        ("8:0 enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000", "8:0 enable=0",
         "8:0 enable=1 ctrl=user rpct=-1 rlat=3000 wpct=95 wlat=3000",
         "8:0 enable=x ctrl=user rpct=1 rlat=3000 wpct=95 wlat=3000"),
    ),
    (
        "blkio.cost.model", "blkio", R, None, None,
        ("8:0 ctrl=user rbps=1 rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 wrandiops=1", "8:0 ctrl=auto",
         "8:0 ctrl=user rbps=-1 rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 wrandiops=1",
         "8:0 ctrl=user rbps=x rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 wrandiops=1"),
    ),
    ("net_cls.classid", "net_cls", K, SAME, K, ("0x10002", "4294967295", "-1", "0x1FFFFFFFF")),
]  # fmt: skip
IDS = [row[0] for row in ROWS]
STOCK_KERNEL_FILES = {"memory.reclaim", "io.max", "io.weight", "io.stat", "io.cost.qos", "io.cost.model"}


@pytest.mark.parametrize(("name", "subsystem", "v1", "v2_file", "v2", "values"), ROWS, ids=IDS)
def test_a_row_is_as_specified(
    name: str,
    subsystem: str | None,
    v1: Support | None,
    v2_file: str | None,
    v2: Support | None,
    values: tuple[str, str, str, str] | None,
) -> None:
    entry = RESOURCES[name]
    if subsystem is None:
        assert entry.v1 is None
    else:
        assert (present(entry.v1).subsystem, present(entry.v1).file, present(entry.v1).support) == (subsystem, name, v1)
    if v2_file is None:
        assert entry.v2 is None
    else:
        assert (present(entry.v2).file, present(entry.v2).support) == (name if v2_file == SAME else v2_file, v2)
    if values:
        validator = (present(entry.v1 or entry.v2)).validator
        for good in values[:2]:
            assert validator is not None
            validator.check(name, good)
        for bad in values[2:]:
            with pytest.raises(InvalidValue, match=name):
                assert validator is not None
                validator.check(name, bad)


def test_nothing_else_is_registered() -> None:
    assert set(RESOURCES) - set(IDS) == STOCK_KERNEL_FILES


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("cpu.shares", ["1", "10000"], ["0", "10001"]), ("cpu.cfs_burst_us", ["0", "9223372036854775807"], ["-1"])],
)
def test_v2_has_ranges_of_its_own(name: str, good: list[str], bad: list[str]) -> None:
    validator = present(RESOURCES[name].v2).validator
    for text in good:
        assert validator is not None
        validator.check(name, text)
    for text in bad:
        with pytest.raises(InvalidValue):
            assert validator is not None
            validator.check(name, text)


@pytest.mark.parametrize(("name", "version"), [("memory.idle_page_stats", 2), ("cpuset.cpus.effective", 1), ("x", 1)])
def test_an_unregistered_resource_is_unsupported(name: str, version: int) -> None:
    with pytest.raises(ResourceUnsupported, match=f"resource is unsupported: {name}"):
        lookup(name, version)


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1_0", "0x1", "1.5", "99999999999999999999"])
def test_a_range_accepts_plain_decimal_numbers_only(text: str) -> None:
    with pytest.raises(InvalidValue):
        present(present(RESOURCES["memory.min"].v1).validator).check("memory.min", text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("min_free_kbytes", "10240", "10239"),
        ("watermark_scale_factor", "400", "401"),
        ("reap_background", "1", "2"),
        ("oom_score_adj", "-1000", "-1001"),
        ("sched_core", "1", "2"),
    ],
)
def test_node_files_have_ranges(name: str, good: str, bad: str) -> None:
    present(NODE_FILES[name].validator).check(name, good)
    with pytest.raises(InvalidValue, match=name):
        present(NODE_FILES[name].validator).check(name, bad)
