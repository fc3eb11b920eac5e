"""The walk of all cgroups against the kernel's own files, on v1 and v2."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from koordlet.metricsadvisor.usage.allgroups import AllGroups
from koordlet.metricsadvisor.usage.reader import USE, TickReader
from koordlet.probes.cgroup_stats import CONTROLLERS, FIGURES, CgroupStats, Hierarchy, LostRows, open_cgroup_stats
from koordlet.probes.loading.frame import ProbeEnvironment
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup import tree
from koordlet.system.cgroup.batch import BatchReader, Want
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cgroup.tree import cgroup_id
from koordlet.system.cpu.possible import possible_cpus
from koordlet.system.host import Host
from tests.present import present
from tests.waiting import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.timing]
PATIENCE = 60.0
TOTALS = tuple(name for name in FIGURES if name.endswith("_total"))

MIXED = """
import ctypes, mmap, sys
kept = bytearray(12 << 20)
locked = mmap.mmap(-1, 2 << 20)
locked.write(b"x" * (2 << 20))
address = ctypes.addressof(ctypes.c_char.from_buffer(locked))
if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(2 << 20)):
    sys.exit("mlock refused")
with open(PATH, "wb") as file:
    file.write(b"y" * (6 << 20))
for _ in range(3):
    open(PATH, "rb").read()
print(flush=True)
while True:
    pass
"""
"""Anonymous and locked memory, page cache, CPU."""


@pytest.fixture
def stats(kernel_host: Host) -> Iterator[CgroupStats]:
    opened, status = open_cgroup_stats(ProbeEnvironment(kernel_host, possible_cpus(kernel_host.roots), None))
    assert opened is not None, status.reason
    assert (status.loaded, status.source, status.pinned) == (True, "bpf", False)
    yield opened
    opened.close()


def walked(stats: CgroupStats, cgroup_dir: str) -> dict[str, float]:
    """Every figure of one directory, out of one walk."""
    hierarchies = stats.read()
    row: dict[str, float] = {}
    for controller in CONTROLLERS:
        root = stats.roots[controller]
        at = hierarchies[root].find(np.array([cgroup_id(f"{root}/{cgroup_dir}")], dtype=np.uint64))
        columns = hierarchies[root].columns(at, FIGURES)
        row.update({name: float(values[0]) for name, values in columns.items() if not np.isnan(values[0])})
    return row


def from_files(fs: CgroupFS, cgroup_dir: str, want: Want = USE) -> dict[str, float]:
    table = BatchReader(fs).read([cgroup_dir], want)
    assert not table.errors
    figures = {name: float(values[0]) for name, values in table.columns.items()}
    return {**figures, "memory_usage": float(present(fs.memory_usage(cgroup_dir)))}


def test_every_figure_is_the_files_to_the_last_digit(
    stats: CgroupStats, kernel_fs: CgroupFS, group: Callable[[str], Any], tmp_path: Path
) -> None:
    busy = group("walked")
    busy.quota(5000, 20000)
    busy.run(MIXED.replace("PATH", repr(f"{tmp_path}/cache")))
    assert busy.processes[0].stdout.readline() == "\n"
    directory = busy.cgroup.dir
    wait_until(lambda: from_files(kernel_fs, directory)["nr_throttled"] > 3, "never throttled")
    busy.settle()

    def quiet() -> tuple[dict[str, float], dict[str, float]] | None:
        """Walk, files, walk, with nothing between the walks."""
        before, files, after = (
            walked(stats, directory),
            from_files(kernel_fs, directory),
            walked(stats, directory),
        )
        figures = {name: before[name] for name in files}
        return (figures, files) if figures == {name: after[name] for name in files} else None

    figures, files = wait_until(quiet, "the stopped group never came to rest")
    assert figures == files
    for name in ("cpu_usage_ns", "nr_periods", "throttled_ns", "memory_usage"):
        assert files[name] > 0, name
    assert files["memory_rss"] >= 12 << 20
    assert files["memory_unevictable"] >= 2 << 20
    assert files["memory_cache"] >= 6 << 20
    assert files["memory_cache"] != files["memory_rss"]
    kinds = ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
    assert sum(files[f"memory_{kind}"] for kind in kinds) >= 20 << 20  # where /tmp is memory, its files are anonymous


def test_counters_of_a_running_group_lie_between_two_readings_of_its_files(
    stats: CgroupStats, kernel_fs: CgroupFS, group: Callable[[str], Any]
) -> None:
    busy = group("runs")
    busy.run()
    names = ("cpu_usage_ns", "nr_periods", "nr_throttled", "throttled_ns")
    for _ in range(20):
        before = from_files(kernel_fs, busy.cgroup.dir)
        now = walked(stats, busy.cgroup.dir)
        after = from_files(kernel_fs, busy.cgroup.dir)
        for name in names:
            assert before[name] <= now[name] <= after[name], name


def test_all_cgroups_are_there_and_no_others(stats: CgroupStats, cgroup_child: Callable[[str], Any]) -> None:
    parent = cgroup_child("family")
    cgroups = [parent, *(parent.child(f"c{number}") for number in range(20))]
    hierarchies = stats.read()
    for root in set(stats.roots.values()):
        ids = {cgroup_id(f"{root}/{cgroup.dir}") for cgroup in cgroups}
        assert ids <= set(hierarchies[root].ids.tolist())
        assert set(hierarchies[root].ids.tolist()) <= ids | {cgroup_id(f"{root}/{path}") for path in tree.walk(root)}
    ended = cgroups[-1]
    gone = {cgroup_id(f"{root}/{ended.dir}") for root in stats.roots.values()}
    ended.remove()
    assert not gone & {cgroup_id for hierarchy in stats.read().values() for cgroup_id in hierarchy.ids.tolist()}


def test_totals_of_pressure_are_those_of_the_last_averaging(
    stats: CgroupStats, kernel_fs: CgroupFS, group: Callable[[str], Any]
) -> None:
    """On v2, reading a file makes the kernel average, and then the walk shows the same; v1's groups have none."""
    busy = group("presses")
    busy.quota(5000, 20000)
    busy.run()
    directory = busy.cgroup.dir
    wait_until(lambda: from_files(kernel_fs, directory)["nr_throttled"] > 3, "never throttled")
    if not stats.unified:
        assert not set(TOTALS) & set(walked(stats, directory))
        return
    busy.settle()

    def totals() -> Mapping[str, float] | None:
        read = from_files(kernel_fs, directory, Want.PRESSURE)
        shown = walked(stats, directory)
        again = from_files(kernel_fs, directory, Want.PRESSURE)
        same = all(read[name] == again[name] for name in TOTALS)
        return {name: shown[name] - read[name] for name in TOTALS} if same and read["cpu_some_total"] > 0 else None

    assert set(wait_until(totals, "pressure never came to rest").values()) == {0.0}


def test_a_removed_group_and_one_made_again(stats: CgroupStats, cgroup_child: Callable[[str], Any]) -> None:
    kept, other = cgroup_child("stays"), cgroup_child("goes")
    groups = AllGroups(stats)
    dirs = [kept.dir, other.dir]
    first = groups.read(dirs)
    assert not first.gone.any()
    assert first.cgroup_id.tolist() == [cgroup_id(child.path("cpu")) for child in (kept, other)]
    other.remove()
    other.make()
    again = groups.read(dirs)
    assert again.cgroup_id[0] == first.cgroup_id[0]
    assert again.cgroup_id[1] == cgroup_id(other.path("cpu")) != first.cgroup_id[1]
    other.remove()
    last = groups.read(dirs)
    assert last.gone.tolist() == [False, True]
    assert np.isnan(last.columns["cpu_usage_ns"]).tolist() == [False, True]
    other.make()
    assert not groups.read(dirs).gone.any()


def test_a_full_table_is_reported_and_the_files_are_read(
    stats: CgroupStats, kernel_host: Host, kernel_fs: CgroupFS, cgroup_child: Callable[[str], Any]
) -> None:
    child = cgroup_child("one-too-many")
    roots = {name: Path(root) for name, root in stats.roots.items()}
    small = CgroupStats(roots, unified=stats.unified, cpus=possible_cpus(kernel_host.roots), page_size=4096, rows=1)
    try:
        with pytest.raises(LostRows, match="beyond 1"):
            small.read()
        reader = TickReader(kernel_host, kernel_fs, AllGroups(small))
        subject = Subject(SubjectKind.GROUP, child.dir, child.dir, child.dir)
        readings = reader.read(Workloads(1, MappingProxyType({}), (subject,)), 1.0)
        assert "beyond 1" in reader.errors["cgroup_stats"]
        assert readings.column("cpu_usage_ns")[0] >= 0
    finally:
        small.close()


def test_the_tick_is_the_same_from_the_walk_and_from_the_files(
    stats: CgroupStats, kernel_host: Host, kernel_fs: CgroupFS, group: Callable[[str], Any]
) -> None:
    busy = group("ticks")
    busy.run("kept = bytearray(4 << 20)\nprint(flush=True)\nwhile True: pass")
    assert busy.processes[0].stdout.readline() == "\n"
    busy.settle()
    subject = Subject(SubjectKind.POD, "uid", busy.cgroup.dir, "pod")
    workloads = Workloads(1, MappingProxyType({}), (subject, replace(subject, key="none", cgroup_dir="not/there")))
    walk, plain = TickReader(kernel_host, kernel_fs, AllGroups(stats)), TickReader(kernel_host, kernel_fs)

    def equal() -> bool:
        tables = [reader.read(workloads, 1.0).table for reader in (walk, plain)]
        assert [table.gone.tolist() for table in tables] == [[False, True]] * 2
        assert tables[0].cgroup_id.tolist() == tables[1].cgroup_id.tolist()
        assert tables[0].columns.keys() == tables[1].columns.keys()
        return all(
            np.array_equal(values, tables[1].columns[name], equal_nan=True)
            for name, values in tables[0].columns.items()
        )

    wait_until(equal, "walk and files still differ")
    assert not walk.errors


class OneTooMany:
    """A kernel whose structures mean something else: one page too many in every group."""

    def __init__(self, stats: CgroupStats) -> None:
        self._stats, self.roots = stats, stats.roots

    def read(self) -> Mapping[str, Hierarchy]:
        hierarchies = self._stats.read()
        for hierarchy in hierarchies.values():
            hierarchy.rows["rss"] += 1
        return hierarchies


def test_wrong_figures_are_found_out_and_the_files_take_over(
    stats: CgroupStats, kernel_host: Host, kernel_fs: CgroupFS, group: Callable[[str], Any]
) -> None:
    quiet = group("quiet")
    quiet.run("print(flush=True)\nwhile True: pass")
    assert quiet.processes[0].stdout.readline() == "\n"
    quiet.settle()
    subject = Subject(SubjectKind.GROUP, quiet.cgroup.dir, quiet.cgroup.dir, quiet.cgroup.dir)
    workloads = Workloads(1, MappingProxyType({}), (subject,))
    causes: list[str] = []
    reader = TickReader(kernel_host, kernel_fs, AllGroups(OneTooMany(stats)), causes.append)
    wait_until(lambda: reader.read(workloads, 1.0) and causes, "never found out")
    assert quiet.cgroup.dir in causes[0]
    assert "memory_rss" in causes[0]
    assert causes[0] in reader.errors["cgroup_stats"]

    def right() -> bool:
        shown = reader.read(workloads, 1.0).column("memory_rss")[0]
        return float(shown) == from_files(kernel_fs, quiet.cgroup.dir)["memory_rss"]

    wait_until(right, "not from the files")
    assert len(causes) == 1


def test_a_kernel_without_the_means_is_a_condition(kernel_host: Host, tmp_path: Path) -> None:
    mounts = kernel_host.facts.cgroup_mounts
    without = replace(mounts, version=1, v1=MappingProxyType({"cpu": tmp_path, "cpuacct": tmp_path}))
    host = Host(kernel_host.roots, replace(kernel_host.facts, cgroup_mounts=without))
    stats, status = open_cgroup_stats(ProbeEnvironment(host, 1, None))
    assert stats is None
    assert (status.loaded, status.source) == (False, "files")
    assert "memory" in status.reason
    (tmp_path / "memory.stat").touch()  # in a directory that is no cgroup, only the attachment fails
    plain = dict.fromkeys(CONTROLLERS, tmp_path)
    host = Host(
        kernel_host.roots, replace(kernel_host.facts, cgroup_mounts=replace(without, v1=MappingProxyType(plain)))
    )
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    stats, status = open_cgroup_stats(ProbeEnvironment(host, 1, None))
    assert stats is None
    assert "attach" in status.reason
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
