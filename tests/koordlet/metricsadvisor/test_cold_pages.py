"""Cold page cache: the estimate from lists, kidled's own ages, and the real kernel's page cache."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.metriccache import MetricCache
from koordlet.metriccache.facts import FACT_COLD_MEMORY
from koordlet.metricsadvisor.conditions import CollectorConditions
from koordlet.metricsadvisor.periodic.coldpages import (
    KIDLED,
    MEMORY_STAT,
    ColdPageCollector,
    ColdUse,
    RestingPages,
)
from koordlet.prometheus import Registries
from koordlet.statesinformer.pods.model import Subject, SubjectKind, Workloads
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.host import Host
from koordlet.system.proc.kidled import ENABLE
from koordlet.system.proc.workingset import WorkingSet
from tests.koordlet.cgroupfigures import memory_stat
from tests.koordlet.metriccache.lastvalue import last
from tests.koordlet.roots import roots_under

ONE = ("containerd://1", 1)


def resting(*lists: tuple[float, int], mapped: int = 0, refaulted: tuple[int, ...] = ()) -> int | None:
    """What rests after these (second, bytes on the inactive list), of a window of 60 s."""
    pages, resting_pages = RestingPages(60.0), None
    back = refaulted or (0,) * len(lists)
    for (at, amount), returned in zip(lists, back, strict=True):
        resting_pages = pages.push(at, {ONE: WorkingSet(10**9, amount, mapped, returned)}).get(ONE)
    return resting_pages


STEADY = [(at, 1000) for at in range(0, 66, 5)]
RESTING = {
    "all that lay there": (STEADY, 0, (), 1000),
    "not before a whole window": (STEADY[:12], 0, (), None),
    "what was added in between is not": ([*STEADY[:6], *((at, 5000) for at, _ in STEADY[6:])], 0, (), 1000),
    "what left in between is not": ([*STEADY[:6], (30, 200), *STEADY[7:]], 0, (), 200),
    "what programs map is not": (STEADY, 300, (), 700),
    "what came back is not": (STEADY, 0, (0,) * 7 + (400,) * 7, 600),
    "never below nothing": (STEADY, 5000, (), 0),
    "a counter that went back is a new baseline": (STEADY, 0, (7,) * 7 + (0,) * 7, None),
}


@pytest.mark.parametrize(("lists", "mapped", "refaulted", "expected"), RESTING.values(), ids=RESTING)
def test_resting_pages(lists: Any, mapped: int, refaulted: Any, expected: int | None) -> None:
    assert resting(*lists, mapped=mapped, refaulted=refaulted) == expected


def test_a_cgroup_made_again_is_a_new_baseline() -> None:
    pages = RestingPages(60.0)
    for at, amount in STEADY:
        pages.push(at, {ONE: WorkingSet(0, amount, 0, 0)})
    assert pages.push(70, {("containerd://1", 2): WorkingSet(0, 1000, 0, 0)}) == {}


@given(st.lists(st.integers(0, 10**6), min_size=15, max_size=60), st.integers(1, 10))
def test_never_more_than_at_any_time_of_the_window(amounts: list[int], step: int) -> None:
    pages = RestingPages(60.0)
    for number, amount in enumerate(amounts):
        at = number * step
        cold = pages.push(at, {ONE: WorkingSet(0, amount, 0, 0)}).get(ONE)
        inside = [amounts[n] for n in range(number + 1) if n * step >= at - 60]
        assert (cold is not None) == (at >= 60)
        assert cold is None or cold <= min(inside)


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_hot_use_is_never_negative(cold: int, used: int) -> None:
    assert ColdUse(cold, used).hot == max(used - cold, 0)


def test_the_worked_example() -> None:
    """Spec 02 §5.11: total 263432804, free 254391744 KiB, cold 100."""
    assert ColdUse(100, (263432804 - 254391744) * 1024).hot == 9041060 * 1024 - 100


# --- whole rounds over trees

POD = Subject(SubjectKind.POD, "uid-1", "kubepods/pod1", "web", pod_uid="uid-1", pod_name="web", namespace="default")
MAIN = replace(POD, kind=SubjectKind.CONTAINER, key="containerd://1", cgroup_dir="kubepods/pod1/1", name="main")
BAD = replace(MAIN, key="containerd://2", cgroup_dir="kubepods/pod1/2")
GONE = replace(MAIN, key="containerd://3", cgroup_dir="kubepods/pod1/3")
APP = Subject(SubjectKind.HOST_APP, "nginx", "nginx", "nginx")
SUBJECTS = (POD, MAIN, BAD, GONE, APP)
STAT = "inactive_anon 10\nactive_anon 20\nunevictable 0\nactive_file 300\ninactive_file 1000\n"
ROWS = [f"{kind}{list_}" for list_ in ("ei", "ui", "ea", "ua") for kind in ("cs", "ds", "cf", "df")] + ["slab"]


def idle_pages(cold: int) -> str:
    header = {
        "version": "1.0", "page_scans": 1, "slab_scans": 0, "scan_period_in_seconds": 5, "use_hierarchy": 1,
        "buckets": "1,2,5,15,30,60,120,240",
    }  # fmt: skip
    lines = [f"# {name}: {value}" for name, value in header.items()]
    lines += ["#"] * (14 - len(lines))
    lines += [f"  {row} 5 5 5 5 5 {cold if row == 'dfei' else 0} 0 0" for row in ROWS]
    return "\n".join(lines) + "\n"


class Machine:
    def __init__(self, base: Path, version: int, kidled: bool = False) -> None:
        self.roots, self.version = roots_under(base), version
        self.roots.cgroup.mkdir(parents=True)
        if version == 2:
            (self.roots.cgroup / "cgroup.controllers").write_text("cpu memory\n")
        memory = {
            "MemTotal": 1000,
            "MemFree": 400,
            "MemAvailable": 500,
            "Inactive(file)": 100,
            "Mapped": 10,
            "Shmem": 0,
        }
        self.put("proc/meminfo", "".join(f"{name}: {value} kB\n" for name, value in memory.items()))
        self.put("proc/vmstat", "workingset_refault_file 0\n")
        for subject in (POD, MAIN, BAD, APP):
            text = (
                "" if subject is BAD else STAT if version == 2 else "".join(f"total_{x}\n" for x in STAT.splitlines())
            )
            self.cgroup(subject, "memory.stat", text)
        self.switched = 0
        if kidled:
            for name in ENABLE:
                self.put(f"sys/kernel/mm/kidled/{name}", "0\n")
            self.cgroup(None, "memory.idle_page_stats", idle_pages(100))
            for subject in (POD, MAIN, APP):
                self.cgroup(subject, "memory.idle_page_stats", idle_pages(50 if subject is MAIN else 10**6))
            self.cgroup(BAD, "memory.idle_page_stats", "torn\n")
        self.now = 1000.0
        host = Host(self.roots)
        self.cache, self.registries = MetricCache(), Registries()
        self.registries.node = "n"
        self.conditions = CollectorConditions(self.registries)
        self.collector = ColdPageCollector(
            host, CgroupFS(host), lambda: Workloads(1, MappingProxyType({}), SUBJECTS), self.cache, self.registries,
            self.conditions, enable_kidled=self.switch, window=60.0, clock=lambda: self.now,
        )  # fmt: skip

    def put(self, path: str, text: str) -> None:
        target = self.roots.proc.parent / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def cgroup(self, subject: Subject | None, file: str, text: str) -> None:
        where = "" if subject is None else subject.cgroup_dir
        for top in ("cpu", "memory") if self.version == 1 else ("",):
            directory = self.roots.cgroup / top / where
            directory.mkdir(parents=True, exist_ok=True)
            (directory / file).write_text(text)

    def switch(self) -> None:
        self.switched += 1

    def last(self, kind: str, **labels: str) -> float | None:
        return last(self.cache, kind, 0, 1e9, **labels)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, request.param)


def test_lists_give_figures_after_a_window_on_both_versions(machine: Machine) -> None:
    machine.collector.read()
    assert "watching" in machine.conditions.states["cold_memory"].reason
    assert machine.cache.facts.get(FACT_COLD_MEMORY) is None
    for _ in range(13):
        machine.now += 5
        machine.collector.read()
    assert machine.cache.facts.get(FACT_COLD_MEMORY, newer_than=machine.now) == MEMORY_STAT
    assert machine.conditions.states["cold_memory"].source == MEMORY_STAT
    assert machine.last("node_memory_cold_page_size") == 90 * 1024
    assert machine.last("node_memory_with_hot_page_usage") == (600 - 90) * 1024
    for level, labels in (
        ("pod", {"pod_uid": "uid-1"}), ("container", {"container_id": "containerd://1"}),
        ("host_application", {"host_app_name": "nginx"}),
    ):  # fmt: skip
        assert machine.last(f"{level}_memory_cold_page_size", **labels) == 1000
        assert machine.last(f"{level}_memory_with_hot_page_usage", **labels) == 330
    assert machine.last("container_memory_cold_page_size", container_id="containerd://2") is None, "a torn file"
    row = {"node": "n", "pod_uid": "uid-1", "pod_name": "web", "pod_namespace": "default"}
    assert machine.registries.external.get_sample_value("koordlet_pod_memory_cold_bytes", row) == 1000


def test_kidled_is_used_where_it_exists(tmp_path: Path) -> None:
    """One bad container costs no other figure; more cold than used leaves 0."""
    machine = Machine(tmp_path, 1, kidled=True)
    machine.collector.read()
    machine.collector.read()
    assert machine.switched == 1
    assert machine.cache.facts.get(FACT_COLD_MEMORY) == KIDLED
    assert machine.last("node_memory_with_hot_page_usage") == 600 * 1024 - 100
    assert machine.last("container_memory_cold_page_size", container_id="containerd://1") == 50
    assert machine.last("container_memory_with_hot_page_usage", container_id="containerd://1") == 1280
    assert machine.last("container_memory_cold_page_size", container_id="containerd://2") is None
    assert machine.last("pod_memory_with_hot_page_usage", pod_uid="uid-1") == 0


def test_kidled_that_cannot_be_switched_on_leaves_the_lists(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1, kidled=True)

    def refuse() -> None:
        raise OSError("read-only file system")

    machine.collector._enable_kidled = refuse
    machine.collector.read()
    assert machine.collector.source == MEMORY_STAT


def test_figures_end_with_their_source(machine: Machine) -> None:
    for _ in range(14):
        machine.collector.read()
        machine.now += 5
    assert machine.collector.uses
    (machine.roots.proc / "meminfo").unlink()
    machine.collector.read()
    assert machine.collector.node is None
    assert not machine.collector.uses
    assert not machine.conditions.states["cold_memory"].up


# --- the real kernel

SIZE = 16 << 20
READ = """
import os, sys
with open(sys.argv[1], 'rb', buffering=0) as f:
    for line in sys.stdin:
        f.seek(0)
        while f.read(1 << 20): pass
        print('read', flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with a page cache of its own kind; temporary directories may be tmpfs."""
    image, point = tmp_path / "image", tmp_path / "disk"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(2 * SIZE)
    subprocess.run(["mkfs.ext2", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    yield point
    subprocess.run(["umount", str(point)], check=True)


@pytest.mark.kernel
def test_a_file_read_once_grows_cold_and_read_again_warms(
    kernel_fs: Any, kernel_host: Any, disk: Path, cgroup_child: Callable[..., Any], spawn: Any
) -> None:
    """Within 5 % of the file's size, by the page cache that the kernel charged the reader's cgroup."""
    child = cgroup_child()
    subject = replace(MAIN, key=child.dir, cgroup_dir=child.dir)
    path = disk / "data"
    path.touch()
    # The interpreter's own files are in memory before, charged elsewhere: they would be cold first and warm later.
    subprocess.run(["python3", "-S", "-c", READ, str(path)], input=b"go\n", stdout=subprocess.PIPE, check=True)
    with path.open("wb") as file:
        file.write(os.urandom(1 << 20) * (SIZE >> 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that the reader is charged for it
    reader = spawn(["python3", "-S", "-c", READ, str(path)], child)

    def read_file() -> None:
        reader.stdin.write("go\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "read\n"

    now = [0.0]
    registries = Registries()
    collector = ColdPageCollector(
        kernel_host, kernel_fs, lambda: Workloads(1, MappingProxyType({}), (subject,)), MetricCache(), registries,
        CollectorConditions(registries), enable_kidled=lambda: None, window=60.0, clock=lambda: now[0],
    )  # fmt: skip

    def watch() -> int:
        for _ in range(14):
            now[0] += 5
            collector.read()
        return collector.uses[child.dir][1].cold

    before = watch()
    read_file()
    assert memory_stat(kernel_fs, child.dir)["cache"] >= SIZE, "the reader was charged"
    grown = watch() - before
    assert 0.95 * SIZE <= grown <= memory_stat(kernel_fs, child.dir)["cache"], "read once, then left alone"
    for _ in range(3):
        read_file()
    assert watch() - before <= grown - 0.95 * SIZE, "read again and again"
