"""Throttling a pod on this machine's kernel: the kernel accepts every step, and the previous values are restored."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordlet.api.sloconfig.interferenceactions import DEFAULT
from koordlet.audit import NullAuditor
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.view import PodView
from koordlet.qosmanager.throttling.iolever import IoLever
from koordlet.qosmanager.throttling.levers import CPU_QUOTA, MEMORY_LIMIT, CpuLever, MemoryLever
from koordlet.qosmanager.throttling.state import ThrottleState
from koordlet.resourceexecutor import DesiredSetting, Executor, Setting
from koordlet.resourceexecutor.blockio import BlockStore
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.host import Host
from koordlet.wiring.ownerrules import RULES
from tests.koordlet.qosmanager.conftest import make_pod, make_view

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

MIB = 1 << 20
LEVELS = (80, 60, 20, 10, 40, 90)
HOLD = "held = bytearray(b'x') * (64 << 20)\nprint('held', flush=True)\nimport time\ntime.sleep(600)"


@pytest.fixture
def pod(cgroup_child: Callable[[str], Any]) -> tuple[PodView, list[Any]]:
    """Two containers of two cores; one has no limit in the spec."""
    group = cgroup_child("lever")
    groups = [group.child(name) for name in ("c0", "c1")]
    limits = {"resources": {"limits": {"kubernetes.io/batch-cpu": "2000"}}}
    spec = {"containers": [{"name": "c0", **limits}, {"name": "c1"}]}
    pod = make_pod("burn", qos="BE", kube="BestEffort", containers=2, cpu=1500, memory=64 * MIB, spec=spec)
    metas = tuple(replace(m, cgroup_dir=g.dir) for m, g in zip(pod.meta.containers, groups, strict=True))
    return replace(pod, meta=replace(pod.meta, cgroup_dir=group.dir, containers=metas)), groups


@pytest.fixture
def executor(kernel_fs: CgroupFS, kernel_host: Host) -> Executor:
    files = KernelFiles(kernel_fs, kernel_host.roots)
    return Executor(files, Ledger(None, "boot"), NullAuditor(), Registries(), rules=RULES)


def test_quotas_fall_and_rise_with_a_container_that_has_its_own(pod: Any, executor: Executor) -> None:
    """v1 refuses a pod quota below one of its containers'."""
    view, _ = pod
    assert DEFAULT.cpu is not None
    own = Setting(CPU_QUOTA, view.meta.containers[0].cgroup_dir)
    whole, other = Setting(CPU_QUOTA, view.meta.cgroup_dir), Setting(CPU_QUOTA, view.meta.containers[1].cgroup_dir)
    executor.declare("batchresource", [DesiredSetting(own, 200_000)])
    assert executor.apply().problems == {}
    lever, node = CpuLever(), make_view(pods=(view,))
    base = lever.base(node, view)
    assert base == 1500
    for level in LEVELS:
        held = ThrottleState(base, level, 0.0, 0.0, 0.0)
        executor.declare("interferenceactions", lever.updates(node, view, held, DEFAULT.cpu))
        executor.declare("batchresource", [] if level == 10 else [DesiredSetting(own, 200_000)])
        assert executor.apply().problems == {}
        assert [executor.current(directory) for directory in (whole, own, other)] == [1500 * level, 1500 * level, -1]
    executor.declare("interferenceactions", [])
    assert executor.apply().problems == {}
    assert [executor.current(directory) for directory in (whole, own, other)] == [-1, 200_000, -1]


def test_an_unreachable_limit_is_reported_and_kills_nothing(
    pod: Any, executor: Executor, kernel_fs: CgroupFS, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """64 MiB cannot be reclaimed; v1 returns EBUSY, and no process is killed."""
    assert kernel_fs.version == 1, "cgroup v2 would kill; there memory.high is used"
    view, groups = pod
    process = spawn(["python3", "-S", "-c", HOLD], groups[0])
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert DEFAULT.memory is not None
    lever, node = MemoryLever(lambda resource, directory: False), make_view(pods=(view,))
    setting = Setting(MEMORY_LIMIT, view.meta.cgroup_dir)
    for level, refused in ((50, True), (300, False)):
        held = ThrottleState(64 * MIB, level, 0.0, 0.0, 0.0)
        executor.declare("interferenceactions", lever.updates(node, view, held, DEFAULT.memory))
        assert (setting in executor.apply().problems) == refused
        assert process.poll() is None
    assert executor.current(setting) == 192 * MIB
    executor.declare("interferenceactions", [])
    executor.apply()
    assert executor.current(setting) == -1


def test_block_io_is_limited_in_pod_and_containers_and_restored(
    pod: Any, kernel_fs: CgroupFS, kernel_host: Host, tmp_path: Path
) -> None:
    backing = tmp_path / "disk"
    with backing.open("wb") as file:
        file.truncate(MIB)
    command = ["losetup", "--find", "--show", str(backing)]
    disk = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    try:
        number = (Path("/sys/block") / Path(disk).name / "dev").read_text().strip()
        view, groups = pod
        store = BlockStore(kernel_fs)
        files = KernelFiles(kernel_fs, kernel_host.roots, [store])
        executor = Executor(files, Ledger(None, "boot"), NullAuditor(), Registries(), rules=RULES)
        lever = IoLever(lambda: (number,), lambda resource, directory: False, flat=True)
        node = make_view(pods=(view,), io_now=lambda container: 5.0 * MIB)
        base = lever.base(node, view)
        assert base == 10 * MIB and DEFAULT.io is not None
        updates = list(lever.updates(node, view, ThrottleState(base, 40, 0.0, 0.0, 0.0), DEFAULT.io))
        directories = {view.meta.cgroup_dir, *(group.dir for group in groups)}
        assert {update.setting.cgroup_dir for update in updates} == directories and len(updates) == 6
        executor.declare("interferenceactions", updates)
        assert executor.apply().problems == {}
        assert {files.read(update.setting) for update in updates} == {str(4 * MIB)}
        executor.declare("interferenceactions", [])
        assert executor.apply().problems == {}
        assert {files.read(update.setting) for update in updates} == {"0"}
    finally:
        subprocess.run(["losetup", "--detach", disk], check=True)
