"""koord-runtime-proxy with a live systemd, on a node with cgroup v2 and slice paths: installed by node.sh, confined by
its unit, restarted after a kill, with correct containers from their first instruction on, and removed.

The scenario runs once; the tests check its results. By hand, in the emulated guest (docs/runtime-proxy.md), as the
developers' machine has no cgroup v2 with controllers. A container's first reading of its group happens in its first
instructions (see firstlook.py); until all first readings are collected the kubelet has reported no container id to
koordlet.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control.standalone.kubelet.runtimes.criclient import CriClient
from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.fleet import MIB, Need, PodSpec
from tests.koordlet.process.patience import until
from tests.koordlet.process.scene import Scene
from tests.runtimeproxy.firstlook import Look, RunningPod, uptime
from tests.runtimeproxy.installed import REGISTRATION, Observations, install, kill, log_step, roll_back
from tests.runtimeproxy.slicenode import (
    CONTAINERD,
    LOG,
    PROXY,
    SLO,
    UNIT,
    Shown,
    SliceKubelet,
    V2Values,
    open_node,
    prepare_pods,
    scene_of,
    start,
    start_koordlet,
)
from tests.runtimeproxy.systemdnode import SystemdNode

pytestmark = pytest.mark.kernel

PINNED = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "1"})}
BATCH = (
    Need(batch_cpu=(500, 500), batch_memory=(64, 64)),
    Need(batch_cpu=(250, 250), batch_memory=(32, 32)),
)
EXTENDED = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {"containers": {f"c{place}": need.resources() for place, need in enumerate(BATCH)}}
    )
}
LSR = PodSpec("lsr", KubeQOS.GUARANTEED, "LSR", (Need((1000, 1000), (64, 64)),), PINNED)
OTHERS = (
    PodSpec("ls", KubeQOS.BURSTABLE, "LS", (Need((500, 1000), (32, 64)),)),
    PodSpec("be", KubeQOS.BESTEFFORT, "BE", BATCH, EXTENDED),
)
BYSTANDER = PodSpec("bystander", KubeQOS.BURSTABLE)
WANTED = {
    ("lsr", "c0"): V2Values("max/100000", "39", "0", str(64 * MIB), "max", "0", "1"),
    ("ls", "c0"): V2Values("100000/100000", "20", "0", str(64 * MIB), "max", "0", "0"),
    ("be", "c0"): V2Values("50000/100000", "20", "0", str(64 * MIB), "max", "0", "0-1"),
    ("be", "c1"): V2Values("25000/100000", "10", "0", str(32 * MIB), "max", "0", "0-1"),
}
POD_FILES = ("cpu.max", "cpu.weight", "memory.max")
WANTED_OF_PODS = {
    "lsr": ("max 100000", "39", str(64 * MIB)),
    "ls": ("100000 100000", "20", str(64 * MIB)),
    "be": ("75000 100000", "30", str(96 * MIB)),
}
KNOWN_TO_SYSTEMD = {
    ("ls", "c0"): ("1s", "20", str(64 * MIB)),
    ("be", "c0"): ("500ms", "20", str(64 * MIB)),
    ("be", "c1"): ("250ms", "10", str(32 * MIB)),
}
Key = tuple[str, str]


@dataclass
class Story(Observations):
    """And of pods."""

    limits: dict[str, str] = field(default_factory=dict)
    idle: str = ""
    at_start: dict[str, tuple[str, ...]] = field(default_factory=dict)
    known: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    first: dict[Key, Look] = field(default_factory=dict)
    shown_at: float = 0.0
    last: dict[Key, Look] = field(default_factory=dict)
    running_after: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)  # type: ignore[assignment]
    ended: bool = False
    """One pod, by the runtime itself."""


def running(socket: Path) -> set[str]:
    """Ids of containers that run."""

    async def asked() -> set[str]:
        async with CriClient(str(socket)) as client:
            return {container.id for container in await client.list_containers() if container.state == 1}

    return asyncio.run(asked())


def limits(node: SystemdNode) -> dict[str, str]:
    """Of the proxy that runs."""
    pid, group = node.main_pid(UNIT), node.group(f"system.slice/{UNIT}")
    values = {name: (group / name).read_text().strip() for name in ("memory.max", "pids.max")}
    values["oom"] = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
    values["files"] = Path(f"/proc/{pid}/limits").read_text().partition("Max open files")[2].split()[0]
    return values


def admit_pinned(node: SystemdNode, scene: Scene, shown: Shown, kubelet: SliceKubelet) -> tuple[RunningPod, RunningPod]:
    """The uninvolved pod and the pod with its own CPU, once koordlet's pool excludes that CPU."""
    bystander, lsr = kubelet.admit(BYSTANDER), kubelet.admit(LSR)
    shown.shown = [bystander, lsr]
    scene.publish()
    until(node.path(REGISTRATION).exists, "koordlet's registration")
    pool = "koordlet_cpuset_share_pool_cpu_cores"
    until(lambda: scene.koordlet.answer("/metrics") and sum(scene.koordlet.values(pool)) == 1, "CPUs shared")
    begun = scene.runs("qos")
    until(lambda: scene.runs("qos") > begun + 1, "a round with that pool")
    log_step("koordlet has its pool")
    return bystander, lsr


def known_to_systemd(node: SystemdNode, runtime: str, pods: list[RunningPod]) -> dict[Key, tuple[str, ...]]:
    """systemd's properties of the scopes that `runtime` has created for the pods' containers."""
    scopes = {
        (pod.spec.name, name): f"{pod.dir}/{runtime}-{container}.scope"
        for pod in pods
        for name, container in pod.containers.items()
    }
    names = [scope.rpartition("/")[2] for scope in scopes.values()]
    properties = node.systemctl("show", "--property=CPUQuotaPerSecUSec,CPUWeight,MemoryMax", *names).split("\n\n")
    known = {}
    for (key, scope), lines in zip(scopes.items(), properties, strict=True):
        assert node.group(scope).is_dir()
        words = dict(line.split("=", 1) for line in lines.splitlines())
        known[key] = (words["CPUQuotaPerSecUSec"], words["CPUWeight"], words["MemoryMax"])
    return known  # type: ignore[return-value]


def live(node: SystemdNode, scene: Scene, shown: Shown, folder: Path, story: Story) -> list[RunningPod]:
    """Pods are created, the proxy is killed, their containers are created, run and updated."""

    def settings(pod: RunningPod) -> tuple[str, ...]:
        return tuple((node.group(pod.dir) / name).read_text().strip() for name in POD_FILES)

    kubelet = SliceKubelet(node, folder, node.path(story.endpoint))
    bystander, lsr = admit_pinned(node, scene, shown, kubelet)
    pods = [lsr, *(kubelet.admit(spec) for spec in OTHERS)]
    for pod in pods:
        kubelet.sandbox(pod)
    log_step(f"sandboxes made; pods have { ({pod.spec.name: settings(pod) for pod in pods}) }")

    kill(node, CONTAINERD, story)
    names = [(pod, f"c{place}") for pod in pods for place in range(len(pod.spec.containers))]
    for pod, name in names:
        kubelet.start(pod, name)
        story.at_start.setdefault(pod.spec.name, settings(pod))
        story.first[pod.spec.name, name] = kubelet.looks(pod, name)[0]
    story.idle = (node.group("kubepods.slice/kubepods-besteffort.slice") / "cpu.idle").read_text().strip()
    story.shown_at = uptime()
    log_step(f"containers looked; pods have { ({pod.spec.name: settings(pod) for pod in pods}) }")
    story.known = known_to_systemd(node, "cri-containerd", pods)
    for pod, name in names:
        kubelet.update(pod, name)
    shown.shown = [bystander, *pods]
    scene.publish()
    scene.settle()
    log_step("koordlet knows the containers")
    node.systemctl("daemon-reload")
    log_step(f"reloaded; pods have { ({pod.spec.name: settings(pod) for pod in pods}) }")
    until(lambda: {pod.spec.name: settings(pod) for pod in pods} == WANTED_OF_PODS, "pods' settings")
    for pod, name in names:
        story.last[pod.spec.name, name] = kubelet.looks(pod, name, len(kubelet.looks(pod, name)))[-1]
        story.containers.add(pod.containers[name])
    log_step("settled")
    return pods


def leave(node: SystemdNode, pods: list[RunningPod], folder: Path, story: Story) -> None:
    """The proxy is removed, then a pod; the others end with the node."""
    roll_back(node, CONTAINERD, story)
    direct = SliceKubelet(node, folder, node.path(story.endpoint_after))
    story.running_after = running(direct.socket)
    first, *_ = pods
    direct.end(first)
    story.ended = story.running_after - running(direct.socket) == set(first.containers.values())
    log_step("a pod ended")


@contextmanager
def opened(folder: Path, shown: Shown, begin: Callable[[SystemdNode], None]) -> Iterator[tuple[SystemdNode, Scene]]:
    """A node whose koordlet starts; `begin` starts its runtime meanwhile."""
    with ExitStack() as ends:
        scene = scene_of(folder, shown)
        ends.callback(scene.close)
        pool = ends.enter_context(ThreadPoolExecutor(1))
        opening = pool.submit(scene.open, SLO, cpus=2, memory_mib=2048)
        node = open_node(folder)
        ends.callback(node.close)
        logs = (node.log, node.path(LOG))
        ends.push(lambda kind, *_: print(*(log.read_text()[-8000:] for log in logs if log.exists())) if kind else None)
        log_step("systemd is up")
        begin(node)
        log_step("the runtime runs")
        opening.result()
        start_koordlet(scene)
        log_step("koordlet starts")
        yield node, scene


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("node")
    shown, stories = Shown(), Story()

    def begin(node: SystemdNode) -> None:
        start(node, CONTAINERD)
        prepare_pods(node, folder)

    with opened(folder, shown, begin) as (node, scene):
        install(node, CONTAINERD, stories)
        stories.limits = limits(node)
        pods = live(node, scene, shown, folder, stories)
        leave(node, pods, folder, stories)
    return stories


def test_systemd_runs_what_node_sh_installs(story: Story) -> None:
    assert story.first_process == "systemd"
    assert story.active == ["active"] * 3, story.installed
    assert story.enabled == "enabled"
    assert story.endpoint == PROXY


def test_the_unit_limits_the_proxy(story: Story) -> None:
    assert (story.status["NoNewPrivs"], story.status["Seccomp"], story.status["CapBnd"]) == ("1", "2", "0" * 16)
    assert story.limits == {"memory.max": str(512 * MIB), "pids.max": "128", "oom": "-999", "files": str(1 << 20)}


def test_systemd_restarts_it_and_it_responds(story: Story) -> None:
    before, after = story.pids
    assert before != after
    assert story.restarts == "1"


@pytest.mark.parametrize("container", WANTED, ids="/".join)
def test_values_are_there_at_the_first_instruction(story: Story, container: Key) -> None:
    """Values of containers created after the kill, in sandboxes that the proxy restored from the runtime."""
    assert tuple(story.first[container].values) == WANTED[container]
    assert story.first[container].at < story.shown_at


def test_systemd_knows_them(story: Story) -> None:
    assert {name: known for name, known in story.known.items() if name in KNOWN_TO_SYSTEMD} == KNOWN_TO_SYSTEMD


def test_they_outlast_updates_and_a_reload_of_systemd(story: Story) -> None:
    assert {name: tuple(look.values) for name, look in story.last.items()} == WANTED


def test_a_pods_slice_has_its_settings_when_its_first_container_starts(story: Story) -> None:
    """systemd had written its own values when the sandbox's scope appeared."""
    assert story.at_start == WANTED_OF_PODS
    assert story.idle == "1"


def test_a_roll_back_leaves_nothing_and_ends_no_container(story: Story) -> None:
    assert story.left == ["inactive", "not-found"], story.taken_out
    assert story.flags == CONTAINERD.kubelet_flags
    assert story.endpoint_after == CONTAINERD.socket
    assert story.running_after == story.containers
    assert story.ended
