"""Memory QoS that needs cgroup v2 on a stock kernel: background reclaim, protection by priority, a culprit's
memory.high. Run in the guest by name. Time is virtual: a round is one second, whatever it takes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koordlet.api.sloconfig.interferenceactions import DEFAULT
from koordlet.audit import NullAuditor
from koordlet.prometheus import Registries
from koordlet.qosmanager.engine.view import ContainerView, PodView
from koordlet.qosmanager.engine.viewbuilder import MEMORY_FILES, memory_reader
from koordlet.qosmanager.strategies.memoryqos import MemoryQOSReconcile
from koordlet.qosmanager.strategies.memoryreclaim import MemoryReclaim
from koordlet.qosmanager.throttling.levers import MEMORY_HIGH, MemoryLever
from koordlet.qosmanager.throttling.state import ThrottleState
from koordlet.resourceexecutor import Executor, Setting
from koordlet.resourceexecutor.actions import ActionOutcome, Actor
from koordlet.resourceexecutor.kernelfiles import KernelFiles
from koordlet.resourceexecutor.ledger import Ledger
from koordlet.system.cgroup.readers import CgroupFS
from koordlet.system.host import Host
from tests.koordlet.qosmanager.conftest import make_node, make_pod, make_view

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

MIB = 1 << 20
LIMIT, CACHED = 96, 80
CLASSES = {"lsClass": {"memoryQOS": {"enable": True, "wmarkRatio": 75, "wmarkScalePermill": 250}}}
HIGH, LOW = LIMIT * 75 // 100, LIMIT * 75 // 100 - LIMIT * 250 // 1000
READ = """
import os, sys, time
disk = os.open(sys.argv[1], os.O_RDONLY)
for at in range(0, int(sys.argv[2]) << 20, 1 << 20):
    os.pread(disk, 1 << 20, at)
print("read", flush=True)
time.sleep(600)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    """A loop device: data read from it is reclaimable page cache."""
    subprocess.run(["modprobe", "loop"], check=True)
    backing = tmp_path / "disk"
    with backing.open("wb") as file:
        file.truncate(CACHED * MIB)
    command = ["losetup", "--find", "--show", str(backing)]
    path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    yield path
    subprocess.run(["losetup", "--detach", path], check=True)


@pytest.fixture
def pod(cgroup_child: Callable[[str], Any]) -> Iterator[tuple[PodView, Any]]:
    """A pod of one container in test cgroups; it requests half of its limit."""
    root = cgroup_child("memory")
    group = root.child("pod")
    container = group.child("c0")
    resources = {"requests": {"memory": f"{LIMIT // 2}Mi"}, "limits": {"memory": f"{LIMIT}Mi"}}
    annotation = '{"priorityEnable":1,"priority":6,"oomKillGroup":1}'
    pod = make_pod("web", qos="LS", spec={"containers": [{"name": "c0", "resources": resources}]},
                    annotations={"koordinator.sh/memoryQOS": annotation})  # fmt: skip
    (meta,) = pod.meta.containers
    meta = replace(meta, cgroup_dir=container.dir)
    pod = replace(pod, meta=replace(pod.meta, cgroup_dir=group.dir, containers=(meta,)))
    yield replace(pod, containers=(ContainerView(meta, None, None, LIMIT * MIB),)), container


def view_of(pod: PodView, fs: CgroupFS, now: float) -> Any:
    root = pod.meta.cgroup_dir.rpartition("/")[0]
    dirs = {"Guaranteed": root, "Burstable": root, "BestEffort": root}
    slo = {"resourceQOSStrategy": CLASSES}
    files = frozenset(file for file in MEMORY_FILES if fs.support(file, root))
    return make_view(
        pods=(pod,), qos_dirs=dirs, node=make_node(memory="2Gi"), slo=slo, now=now,
        memory_now=memory_reader(fs), memory_files=files,
    )  # fmt: skip


def used(group: Any) -> int:
    return int((group.path("memory") / "memory.current").read_text())


def test_a_container_is_reclaimed_to_its_low_mark_in_steps(
    pod: Any, disk: str, kernel_fs: CgroupFS, kernel_host: Host, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    view, group = pod
    group.write("memory", "memory.max", LIMIT * MIB)
    process = spawn(["python3", "-S", "-c", READ, disk, str(CACHED)], group)
    assert process.stdout is not None
    assert process.stdout.readline() == "read\n"
    before = used(group)
    assert before > HIGH * MIB
    acts = MemoryReclaim()
    actor = Actor(KernelFiles(kernel_fs, kernel_host.roots), NullAuditor(), Registries())
    outcomes: list[ActionOutcome] = []
    lowest, now = before, 1000.0
    for _ in range(120):
        now += 1.0
        decision = acts.decide(view_of(view, kernel_fs, now))
        assert decision is not None
        done = actor.act(acts.name, decision.actions)
        acts.acted(now, done)
        outcomes += done.values()
        lowest = min(lowest, used(group))
        if decision.note.startswith("no container") and outcomes:
            break
    assert ActionOutcome.DONE in outcomes and set(outcomes) <= {ActionOutcome.DONE, ActionOutcome.PARTLY}
    assert len(outcomes) >= (before - HIGH * MIB) // (8 * MIB), "in small steps"
    assert LOW * MIB - 4 * MIB < lowest < LOW * MIB + 2 * MIB
    assert process.poll() is None


def test_priority_becomes_protection_and_is_restored(pod: Any, kernel_fs: CgroupFS, kernel_host: Host) -> None:
    view, group = pod
    files = KernelFiles(kernel_fs, kernel_host.roots)
    executor = Executor(files, Ledger(None, "boot"), NullAuditor(), Registries())
    qos = MemoryQOSReconcile()
    decision = qos.decide(view_of(view, kernel_fs, 1000.0))
    assert decision is not None
    assert not [u for u in decision.updates if "wmark" in u.setting.resource or "priority" in u.setting.resource]
    before = {u.setting: files.read(u.setting) for u in decision.updates}
    executor.declare(qos.name, decision.updates)
    assert executor.apply().problems == {}
    assert int((group.path("memory") / "memory.low").read_text()) == LIMIT // 2 * MIB * 6 // 12
    assert (group.path("memory") / "memory.oom.group").read_text() == "1\n"
    executor.restore_everything()
    assert {setting: files.read(setting) for setting in before} == before


def test_a_culprits_memory_is_throttled(pod: Any, kernel_fs: CgroupFS, kernel_host: Host) -> None:
    view, _ = pod
    files = KernelFiles(kernel_fs, kernel_host.roots)
    lever = MemoryLever(lambda resource, directory: bool(kernel_fs.support(resource, directory)))
    assert DEFAULT.memory is not None
    culprit = replace(view, charged=LIMIT * MIB)
    base = lever.base(view_of(culprit, kernel_fs, 0.0), culprit)
    assert base == LIMIT * MIB
    held = ThrottleState(base, 50, 0.0, 0.0, 0.0)
    (update,) = lever.updates(view_of(culprit, kernel_fs, 0.0), culprit, held, DEFAULT.memory)
    setting = Setting(MEMORY_HIGH, view.meta.cgroup_dir)
    assert (update.setting, update.value) == (setting, LIMIT // 2 * MIB)
    executor = Executor(files, Ledger(None, "boot"), NullAuditor(), Registries())
    executor.declare("interferenceactions", [update])
    assert executor.apply().problems == {}
    assert files.read(setting) == LIMIT // 2 * MIB
    executor.declare("interferenceactions", ())
    executor.apply()
    assert files.read(setting) == (1 << 63) - 1
