"""Taking over a node from Koordinator's koordlet: what it left is found, and reset if nothing wants it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from koordlet.prometheus import Registries
from koordlet.resourceexecutor.executor import Executor
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.resourceexecutor.settings import DesiredSetting, Setting, Value
from koordlet.resourceexecutor.takeover import MARK, leftovers, predecessor_ran
from koordlet.system.cgroup.naming import CgroupDriver
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.cgroup.validators import INT64_MAX
from koordlet.system.host import Host
from koordlet.system.mounts import CgroupMounts
from tests.conftest import ChildCgroup
from tests.koordlet.resourceexecutor.conftest import Recorder
from tests.present import present

CLASS, POD, CONTAINER = "kubepods/besteffort", "kubepods/besteffort/pod1", "kubepods/besteffort/pod1/c"
SERVICE = "kubepods/burstable/pod2/d"


def test_a_predecessor_is_known_by_its_folder(tmp_path: Path) -> None:
    assert not predecessor_ran(tmp_path)
    (tmp_path / MARK).mkdir(parents=True)
    assert predecessor_ran(tmp_path)


def plain_tree(host: Host, root: Path, version: int, content: dict[str, dict[str, str]]) -> CgroupFS:
    """Directories and files instead of cgroups."""
    version_1 = CgroupMounts(1, dict.fromkeys(("cpu", "cpuset", "memory", "blkio"), root))
    mounts = CgroupMounts(2, unified=root) if version == 2 else version_1
    for directory, files in content.items():
        (root / directory).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (root / directory / name).write_text(f"{text}\n")
    roots = replace(host.roots, cgroup=root)
    return CgroupFS(Host(roots, replace(host.facts, cgroup_mounts=mounts)))


V1 = {
    "kubepods": {"cpuset.cpus": "0-7", "cpu.bvt_warp_ns": "0"},
    CLASS: {"cpuset.cpus": "0-1", "cpu.bvt_warp_ns": "-1", "cpu.cfs_quota_us": "200000", "cpu.idle": "1"},
    POD: {"cpuset.cpus": "0-1", "cpu.idle": "0", "blkio.throttle.read_bps_device": "8:0 1048576\n8:16 0"},
    CONTAINER: {"cpuset.cpus": "0-7", "cpu.cfs_quota_us": "50000", "memory.priority": "3"},
    f"{CONTAINER}/tenant": {"cpuset.cpus": "0", "cpu.idle": "1"},
    SERVICE: {"cpu.bvt_warp_ns": "2", "cpu.cfs_burst_us": "300000", "cpu.cfs_quota_us": "70000", "cpuset.cpus": "2"},
    "kubepods/other": {"cpu.bvt_warp_ns": "2"},
    "system.slice": {"cpu.bvt_warp_ns": "2"},
}
V2 = {
    "kubepods": {"cpuset.cpus": ""},
    CLASS: {"cpuset.cpus": "0-1", "memory.low": "0", "memory.high": "max", "cpu.max": "max 100000"},
    POD: {"cpuset.cpus": "", "memory.min": "4096", "io.max": "8:0 rbps=1048576 wbps=max riops=max wiops=7"},
    SERVICE: {"memory.low": "65536", "memory.high": "1048576", "memory.oom.group": "1", "cpu.max.burst": "5"},
}


@pytest.mark.parametrize(
    ("version", "content", "expected"),
    [
        (
            1,
            V1,
            {
                Setting("cpuset.cpus", CLASS): "0-7",
                Setting("cpu.bvt_warp_ns", CLASS): 0,
                Setting("cpu.cfs_quota_us", CLASS): -1,
                Setting("cpu.idle", CLASS): 0,
                Setting("cpu.shares", CLASS): 2,
                Setting("cpuset.cpus", POD): "0-7",
                Setting("blkio.throttle.read_bps_device", POD, "8:0"): "0",
                Setting("memory.priority", CONTAINER): 0,
                Setting("cpu.bvt_warp_ns", SERVICE): 0,
                Setting("cpu.cfs_burst_us", SERVICE): 0,
            },
        ),
        (
            2,
            V2,
            {
                Setting("cpuset.cpus", CLASS): "",
                Setting("memory.min", POD): 0,
                Setting("blkio.throttle.read_bps_device", POD, "8:0"): "0",
                Setting("blkio.throttle.write_iops_device", POD, "8:0"): "0",
                Setting("memory.low", SERVICE): 0,
                Setting("memory.high", SERVICE): INT64_MAX,
                Setting("cpu.cfs_burst_us", SERVICE): 0,
            },
        ),
    ],
    ids=["v1", "v2"],
)
def test_settings_of_the_predecessor_are_found(
    kernel_host: Host, tmp_path: Path, version: int, content: dict[str, dict[str, str]], expected: dict[Setting, object]
) -> None:
    groups = plain_tree(kernel_host, tmp_path, version, content)
    assert leftovers(KernelFiles(groups, kernel_host.roots), groups, CgroupDriver.CGROUPFS) == expected


def test_a_node_without_pods_has_no_leftovers(kernel_host: Host, tmp_path: Path) -> None:
    groups = plain_tree(kernel_host, tmp_path, 1, {})
    assert leftovers(KernelFiles(groups, kernel_host.roots), groups, CgroupDriver.SYSTEMD) == {}


@pytest.mark.kernel
def test_unwanted_settings_are_reset_and_wanted_ones_stay(
    kernel_host: Host, cgroup_child: Callable[..., ChildCgroup]
) -> None:
    top = cgroup_child()
    kubepods = top.child("kubepods")
    besteffort, burstable = kubepods.child("besteffort"), kubepods.child("burstable")
    pod, service = besteffort.child("pod1"), burstable.child("pod2")
    mounts = kernel_host.facts.cgroup_mounts
    own = CgroupMounts(
        mounts.version,
        {name: root / top.dir for name, root in mounts.v1.items()},
        None if mounts.unified is None else mounts.unified / top.dir,
    )
    roots = replace(kernel_host.roots, cgroup=kernel_host.roots.cgroup / top.dir)
    groups = CgroupFS(Host(roots, replace(kernel_host.facts, cgroup_mounts=own)))
    files = KernelFiles(groups, kernel_host.roots)
    first = min(kernel_host.facts.online_cpus)
    all_cpus = str(present(files.read(Setting("cpuset.cpus", "kubepods"))))
    left: dict[Setting, Value] = {
        Setting("cpu.cfs_quota_us", CLASS): 50_000,
        Setting("cpu.idle", CLASS): 1,
        Setting("cpu.idle", POD): 1,
        Setting("cpuset.cpus", CLASS): str(first),
        Setting("cpuset.cpus", POD): str(first),
        Setting("cpu.cfs_quota_us", "kubepods/burstable/pod2"): 50_000,
        Setting("cpu.cfs_burst_us", "kubepods/burstable/pod2"): 20_000,
    }
    if mounts.version == 2:
        left |= {Setting("memory.low", POD): 65536, Setting("memory.high", POD): 1 << 20}
    for setting, value in sorted(
        left.items(), key=lambda item: -item[0].depth if item[0].resource == "cpuset.cpus" else 0
    ):
        files.write(setting, value)
    ledger = Ledger(None, "boot")
    ledger.originals.update(leftovers(files, groups, CgroupDriver.CGROUPFS))
    executor = Executor(files, ledger, Recorder(), Registries(), expected=["suppress"])
    executor.declare("suppress", [DesiredSetting(Setting("cpu.cfs_quota_us", CLASS), 70_000)])
    assert executor.apply().problems == {}
    after = {setting: files.read(setting) for setting in left}
    neutral: dict[Setting, Value] = {
        **dict.fromkeys(left, 0),
        Setting("cpu.cfs_quota_us", CLASS): 70_000,
        Setting("cpuset.cpus", CLASS): all_cpus,
        Setting("cpuset.cpus", POD): all_cpus,
        Setting("cpu.cfs_quota_us", "kubepods/burstable/pod2"): 50_000,
        Setting("memory.high", POD): INT64_MAX,
    }
    assert after == {setting: neutral[setting] for setting in left}
    assert [files.read(Setting("cpu.shares", path)) for path in (CLASS, POD)] == [2, 2], "the kubelet's weight"
    executor.declare("suppress", [])
    executor.apply()
    assert files.read(Setting("cpu.cfs_quota_us", CLASS)) == -1
    assert [pod.dir, service.dir] == [f"{top.dir}/{POD}", f"{top.dir}/kubepods/burstable/pod2"]
