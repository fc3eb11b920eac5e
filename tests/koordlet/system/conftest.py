"""Cgroup and /proc trees in a temporary directory, so that v1 and v2 are tested wherever the tests run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.host import Host
from tests.koordlet.roots import roots_under

V1_SUBSYSTEMS = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "net_cls", "perf_event")
POD = "kubepods/burstable/pod1"
MEMORY = {"cache": 100, "rss": 50, "inactive_file": 10, "active_file": 20, "inactive_anon": 30,
          "active_anon": 40, "unevictable": 5}  # fmt: skip


class Tree:
    """A host below `base`; `put(subsystem, file, text)` writes a file of cgroup `where`."""

    def __init__(self, base: Path, version: int) -> None:
        self.version = version
        self.roots = roots_under(base)
        self.roots.cgroup.mkdir(parents=True)
        if version == 2:
            (self.roots.cgroup / "cgroup.controllers").write_text("cpuset cpu io memory\n")
        for subsystem in V1_SUBSYSTEMS if version == 1 else ():
            (self.roots.cgroup / subsystem).mkdir()

    def dir(self, subsystem: str, where: str = POD) -> Path:
        return self.roots.cgroup / (subsystem if self.version == 1 else "") / where

    def put(self, subsystem: str, file: str, text: str, where: str = POD) -> Path:
        path = self.dir(subsystem, where) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def file(self, path: str, text: str) -> Path:
        """A file outside the cgroup tree, e.g. `proc/stat`."""
        target = self.roots.proc.parent / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def fs(self, kube_root: str = "kubepods") -> CgroupFS:
        return CgroupFS(Host(self.roots), kube_root=kube_root)

    def fill(self, where: str = POD, cpu_ns: int = 1_000_000_000) -> None:
        """The same group expressed in this version's files."""
        if self.version == 1:
            self.put("cpuacct", "cpuacct.usage", f"{cpu_ns}\n", where)
            self.put("cpuacct", "cpuacct.stat", "user 70\nsystem 30\n", where)
            self.put("cpu", "cpu.stat", "nr_periods 100\nnr_throttled 50\nthrottled_time 7000\n", where)
            self.put("cpu", "cpu.shares", "1024\n", where)
            self.put("cpu", "cpu.cfs_quota_us", "50000\n", where)
            self.put("cpu", "cpu.cfs_period_us", "100000\n", where)
            self.put("cpu", "cgroup.procs", "1\n2\n", where)
            self.put("cpu", "tasks", "1\n2\n3\n", where)
            self.put("cpuset", "cpuset.cpus", "0-2,5\n", where)
            self.put("memory", "memory.usage_in_bytes", "4096\n", where)
            self.put("memory", "memory.limit_in_bytes", "9223372036854771712\n", where)
            lines = "".join(f"{key} 1\n" for key in MEMORY) + "".join(
                f"total_{key} {value}\n" for key, value in MEMORY.items()
            )
            self.put("memory", "memory.stat", lines, where)
            self.put(
                "memory", "memory.numa_stat",
                "total=42227 N0=42184 N1=43\nfile=42206 N0=42164 N1=42\nanon=20 N0=19 N1=1\n"
                "unevictable=1 N0=1 N1=0\n", where,
            )  # fmt: skip
            for name in ("cpu", "memory", "io"):
                self.put("cpuacct", f"{name}.pressure", PRESSURE, where)
            return
        usec = cpu_ns // 1000
        self.put(
            "", "cpu.stat",
            f"usage_usec {usec}\nuser_usec 700000\nsystem_usec 300000\n"
            "nr_periods 100\nnr_throttled 50\nthrottled_usec 7\n", where,
        )  # fmt: skip
        self.put("", "cpu.weight", "39\n", where)
        self.put("", "cpu.max", "50000 100000\n", where)
        self.put("", "cgroup.procs", "1\n2\n", where)
        self.put("", "cgroup.threads", "1\n2\n3\n", where)
        self.put("", "cpuset.cpus", "0-7\n", where)
        self.put("", "cpuset.cpus.effective", "0-2,5\n", where)
        self.put("", "memory.current", "4096\n", where)
        self.put("", "memory.max", "max\n", where)
        v2 = {"cache": "file", "rss": "anon"}
        self.put("", "memory.stat", "".join(f"{v2.get(k, k)} {v}\n" for k, v in MEMORY.items()), where)
        self.put(
            "", "memory.numa_stat", "anon N0=77824 N1=4096\nfile N0=172703744 N1=172032\n", where
        )  # fmt: skip
        for name in ("cpu", "memory", "io"):
            self.put("", f"{name}.pressure", PRESSURE, where)


PRESSURE = "some avg10=1.50 avg60=2.50 avg300=3.50 total=1000\nfull avg10=0.50 avg60=0.25 avg300=0.12 total=500\n"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    return Tree(tmp_path, request.param)


@pytest.fixture
def make_tree(tmp_path: Path) -> Callable[[int], Tree]:
    return lambda version: Tree(tmp_path, version)
