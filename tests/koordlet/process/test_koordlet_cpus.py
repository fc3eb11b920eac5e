"""A real koordlet gives pods the CPUs that are theirs: pinned and shared ones, quotas by the node's ratio, idle classes
of core scheduling, and what a kernel without cookies is told as. Then it is killed, the reasons go, a new one gives all
of it back; at last it is asked again and stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from koordlet.system.cgroup.naming import KubeQOS, qos_dir
from koordlet.system.cpu.cpuset import CPUSet
from tests.koordlet.process.fleet import Fleet, Need, Pod, PodSpec, State, differences, walk
from tests.koordlet.process.patience import until
from tests.koordlet.process.scene import Scene

pytestmark = [pytest.mark.kernel, pytest.mark.timing]

ALL = CPUSet(os.sched_getaffinity(0))
LAST = max(ALL)
SHARED = str(ALL - {LAST})
RATIO = 1.25
NORMALIZED, LIMIT = 80_000, 100_000
"""A limit of one CPU on this node, and elsewhere."""
GATES = "CPUNormalization=true,CoreSched=true,BECPUSuppress=false"
STATUS = "scheduling.koordinator.sh/resource-status"
ONE = Need(cpu=(1000, 1000), memory=(64, 64))
SPECS = (
    PodSpec("pinned", KubeQOS.GUARANTEED, "LSR", (ONE,)),
    PodSpec("web", KubeQOS.BURSTABLE, "LS", (ONE, ONE)),
    PodSpec("plain", KubeQOS.BURSTABLE, "", (ONE,)),
    PodSpec("job", KubeQOS.BESTEFFORT, "BE"),
    PodSpec("nowhere", KubeQOS.GUARANTEED, "LSR", (ONE,), {STATUS: '{"cpuset":"4000"}'}),
    PodSpec("odd", KubeQOS.BURSTABLE, "LS", (ONE,), {STATUS: '{"cpuset":'}),
)
SLO = {
    "resourceQOSStrategy": {
        "policies": {"cpuPolicy": "coreSched"},
        "lsClass": {"cpuQOS": {"enable": True, "coreExpeller": True}},
        "beClass": {"cpuQOS": {"enable": True, "schedIdle": 1}},
    },
    "cpuBurstStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 100},
}


@dataclass
class History:
    """Files by moment."""

    pods: dict[str, Pod] = field(default_factory=dict)
    before: State = field(default_factory=dict)
    on: State = field(default_factory=dict)
    allowed: dict[str, str] = field(default_factory=dict)
    """CPUs that the processes of a directory may really use."""
    page: dict[str, Any] = field(default_factory=dict)
    killed: State = field(default_factory=dict)
    off: State = field(default_factory=dict)
    again: State = field(default_factory=dict)
    stopped: State = field(default_factory=dict)


@pytest.fixture(scope="module")
def scene(trees: Any, views: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    tree = trees()
    fleet = Fleet(tree)
    fleet.add(*SPECS)
    scene = Scene(fleet, views(tree), tmp_path_factory.mktemp("cluster"), gates=GATES)
    try:
        scene.open(SLO, cpus=len(ALL), memory_mib=4096)
        yield scene
    finally:
        scene.close()


def _ask(scene: Scene, *, enabled: bool) -> None:
    """The scheduler pins, the manager says what the node's CPUs are worth; or neither."""
    scene.annotate({"node.koordinator.sh/cpu-normalization-ratio": f"{RATIO:.2f}" if enabled else None})
    scene.fleet.annotate("pinned", {STATUS: json.dumps({"cpuset": str(LAST)})} if enabled else {})
    scene.ask({"resourceQOSStrategy": SLO["resourceQOSStrategy"] if enabled else None})
    scene.publish()


@pytest.fixture(scope="module")
def history(scene: Scene) -> History:
    """All of it, in order."""
    tree = scene.fleet.tree
    history = History({pod.spec.name: pod for pod in scene.fleet.pods.values()}, walk(tree))
    _ask(scene, enabled=True)
    scene.start()
    web, best_effort = history.pods["web"], qos_dir(scene.fleet.driver, KubeQOS.BESTEFFORT)

    def reached() -> bool:
        held = walk(tree)
        quota = _quota(held, tree.v2, web.container_dirs[0]) == NORMALIZED
        return quota and held[best_effort, "cpu.idle"] == "1" and held[web.sandbox_dir, "cpuset.cpus"] == SHARED

    until(reached, "CPUs, quotas and idle classes")
    scene.settle()
    history.on, history.page = walk(tree), json.loads(scene.koordlet.get("/enforcement"))
    history.allowed = {
        directory: _allowed(tree, directory) for pod in history.pods.values() for directory in pod.dirs[1:]
    }
    scene.koordlet.kill()
    history.killed = walk(tree)
    _ask(scene, enabled=False)
    scene.start()
    until(lambda: _unpinned(walk(tree), history.before) == [], "restoring of what the killed one left")
    scene.settle()
    history.off = walk(tree)
    _ask(scene, enabled=True)
    until(reached, "all settings again")
    scene.settle()
    history.again = walk(tree)
    assert scene.stop() == 0
    history.stopped = walk(tree)
    return history


def _quota(state: State, v2: bool, directory: str) -> int:
    text = state[directory, "cpu.max" if v2 else "cpu.cfs_quota_us"].split()[0]
    return -1 if text == "max" else int(text)


def _allowed(tree: Any, directory: str) -> str:
    (pid,) = (tree.path("cpu", directory) / "cgroup.procs").read_text().split()
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123
        return next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list"))


def _unpinned(state: State, before: State) -> list[str]:
    """What differs from before but for bursts and the CPU sets that all containers share."""
    mine = {key: text for key, text in state.items() if "burst" not in key[1] and key[1] != "cpuset.cpus"}
    was = {key: text for key, text in before.items() if key in mine}
    cpus = {text for (_, file), text in state.items() if file == "cpuset.cpus" and text} - {str(ALL)}
    return [*differences(was, mine), *cpus]


def test_a_pinned_pod_runs_on_its_cpus_without_a_quota(history: History, scene: Scene) -> None:
    pod = history.pods["pinned"]
    for directory in (*pod.container_dirs, pod.sandbox_dir):
        assert history.on[directory, "cpuset.cpus"] == str(LAST)
        assert history.allowed[directory] == str(LAST)
    assert {_quota(history.on, scene.fleet.tree.v2, directory) for directory in pod.dirs[:-1]} == {-1}
    assert {_quota(history.before, scene.fleet.tree.v2, directory) for directory in pod.dirs[:-1]} == {LIMIT}


@pytest.mark.parametrize("name", ["web", "plain"])
def test_services_share_the_cpus_that_are_not_pinned(history: History, scene: Scene, name: str) -> None:
    pod = history.pods[name]
    for directory in (*pod.container_dirs, pod.sandbox_dir):
        assert history.on[directory, "cpuset.cpus"] == SHARED
        assert history.allowed[directory] == SHARED
    quotas = [_quota(history.on, scene.fleet.tree.v2, directory) for directory in (pod.dir, *pod.container_dirs)]
    assert quotas == [NORMALIZED * len(pod.container_dirs), *[NORMALIZED] * len(pod.container_dirs)]


def test_a_burst_stands_on_the_normalized_quota(history: History, scene: Scene) -> None:
    file = "cpu.max.burst" if scene.fleet.tree.v2 else "cpu.cfs_burst_us"
    assert {history.on[directory, file] for directory in history.pods["web"].container_dirs} == {str(NORMALIZED)}


@pytest.mark.parametrize("name", ["nowhere", "odd"])
def test_an_allocation_that_cannot_be_does_not_free_a_pod_from_its_class(history: History, name: str) -> None:
    assert {history.on[directory, "cpuset.cpus"] for directory in history.pods[name].container_dirs} == {SHARED}


def test_best_effort_is_left_alone(history: History) -> None:
    pod = history.pods["job"]
    files = ("cpuset.cpus", "cpu.max", "cpu.cfs_quota_us")
    held = [(state.get((d, file)), file) for d in pod.dirs for file in files for state in (history.on,)]
    assert held == [(history.before.get((d, file)), file) for d in pod.dirs for file in files]


def test_a_kernel_without_cookies_is_reported(history: History, kernel_host: Any) -> None:
    note = history.page["strategies"]["coresched"]
    if kernel_host.facts.core_sched:
        assert note.endswith("groups")
    else:
        assert kernel_host.facts.reasons()["core_sched"] in note
    owners = {row["owner"] for row in history.page["settings"]}
    assert {"cpusetallocator", "cpunormalization", "coresched", "cpuburst"} <= owners
    assert [row for row in history.page["settings"] if row.get("problem")] == []


def test_after_a_kill_and_with_all_gates_off_everything_is_restored(history: History) -> None:
    assert differences(history.on, history.killed) == []
    assert _unpinned(history.off, history.before) == []


def test_asked_again_it_is_the_same_and_a_stop_leaves_nothing(history: History) -> None:
    assert differences(history.on, history.again) == []
    assert differences(history.before, history.stopped) == []
