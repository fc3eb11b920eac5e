"""Settings that the specification requires at a container's first instruction: with the proxy in front of Debian's
containerd and dockerd, with NRI in a containerd that has it; koordlet's strategies alone reach the same values.

One koordlet process with its hook server, NRI plugin and strategies. Pods of every class are created on each way, with
sidecars; containers are updated and restarted, the proxy is killed in between. Until a container's first reading is
collected, the kubelet has not reported its id to koordlet: only a hook can have set the values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koordlet.system.cgroup.naming import KubeQOS
from koordlet.system.cpu.cpuset import CPUSet
from tests.koordlet.process.fleet import MIB, Need, PodSpec
from tests.koordlet.process.patience import PATIENCE_S, until
from tests.koordlet.process.scene import Scene
from tests.koordlet.process.view import View
from tests.runtimeproxy.dockershim import Dockershim
from tests.runtimeproxy.firstlook import Ground, Kubelet, Look, Pods, RunningPod, Values, uptime, within
from tests.runtimeproxy.proxyprocess import ProxyProcess
from tests.runtimes.daemons import Containerd, Dockerd
from tests.runtimes.nri import NRIContainerd
from tests.waiting import wait_until

pytestmark = pytest.mark.runtime

ALL = CPUSet(os.sched_getaffinity(0))
LAST = max(ALL)
SHARED = str(ALL - {LAST})
PINNED = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": str(LAST)})}
BATCH = (
    Need(batch_cpu=(500, 500), batch_memory=(64, 64)),
    Need(batch_cpu=(250, 250), batch_memory=(32, 32)),
)
EXTENDED = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {"containers": {f"c{place}": need.resources() for place, need in enumerate(BATCH)}}
    )
}
ONE = Need(cpu=(1000, 1000), memory=(64, 64))
OWN = (PodSpec("lse", KubeQOS.GUARANTEED, "LSE", (ONE,), PINNED),)
"""A pod with its own CPU: no other pod may get it."""
OTHERS = (
    PodSpec("lsr", KubeQOS.GUARANTEED, "LSR", (ONE,)),
    PodSpec("ls", KubeQOS.BURSTABLE, "LS", (Need((500, 1000), (32, 64)), Need((100, 200), (16, 32)))),
    PodSpec("be", KubeQOS.BESTEFFORT, "BE", BATCH, EXTENDED),
)
WANTED = {
    ("lse", "c0"): Values("1024", "-1", str(LAST), str(64 * MIB)),
    ("lsr", "c0"): Values("1024", "100000", SHARED, str(64 * MIB)),
    ("ls", "c0"): Values("512", "100000", SHARED, str(64 * MIB)),
    ("ls", "c1"): Values("102", "20000", SHARED, str(32 * MIB)),
    ("be", "c0"): Values("512", "50000", str(ALL), str(64 * MIB)),
    ("be", "c1"): Values("256", "25000", str(ALL), str(32 * MIB)),
}
WANTED_OF_PODS = {
    "lse": ("1024", "-1", str(64 * MIB)),
    "lsr": ("1024", "100000", str(64 * MIB)),
    "ls": ("614", "120000", str(96 * MIB)),
    "be": ("768", "75000", str(96 * MIB)),
}
SLO = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True}}, "lsClass": {"cpuQOS": {"enable": True}}}}
HOOKED = ("proxy", "docker", "nri")
Key = tuple[str, str]


@dataclass
class Way:
    """Observations on one way."""

    at_sandbox: dict[str, dict[str, str]] = field(default_factory=dict)
    """The pod's own settings when RunPodSandbox had returned."""
    first: dict[Key, Look] = field(default_factory=dict)
    restarted: dict[Key, Look] = field(default_factory=dict)
    """The first reading of the second attempt."""
    shown_at: float = 0.0
    """The time at which koordlet could first know a container's id."""
    looks: dict[Key, list[Look]] = field(default_factory=dict)
    """Values of the last container, through its updates and koordlet's rounds with the reported pod."""
    settled: dict[str, dict[str, str]] = field(default_factory=dict)


class Story:
    """The ways, one after another, with one koordlet."""

    def __init__(self, scene: Scene, ground: Ground, folder: Path) -> None:
        self.scene, self.ground, self.folder = scene, ground, folder
        self.ways: dict[str, Way] = {}
        self._bystander = Kubelet(ground, folder, Path()).admit(PodSpec("bystander", KubeQOS.BURSTABLE))
        """koordlet does not trust a kubelet without any pod."""
        self._show([])

    def hooked(self, name: str, kubelet: Kubelet, proxy: ProxyProcess | None = None) -> None:
        way = self.ways[name] = Way()
        self._show([])
        self._wait_for_pool(len(ALL))
        own = [kubelet.admit(spec) for spec in OWN]
        self._show(own)
        self._wait_for_pool(len(ALL) - 1)
        begun = self.scene.runs("qos")
        until(lambda: self.scene.runs("qos") > begun + 1, "a round with that pool")
        pods = [*own, *(kubelet.admit(spec) for spec in OTHERS)]
        for pod in pods:
            kubelet.sandbox(pod)
            way.at_sandbox[pod.spec.name] = self.ground.read(pod.dir)
        if proxy is not None:  # it must know the pods again
            proxy.kill()
            proxy.start()
        containers = [(pod, f"c{place}") for pod in pods for place in range(len(pod.spec.containers))]
        for pod, container in containers:
            kubelet.start(pod, container)
            way.first[pod.spec.name, container] = kubelet.looks(pod, container)[0]
        for pod, container in containers:
            kubelet.update(pod, container)
            kubelet.restart(pod, container)
            way.restarted[pod.spec.name, container] = kubelet.looks(pod, container)[0]
            kubelet.update(pod, container)
        self._settle(way, kubelet, pods, containers)

    def alone(self, kubelet: Kubelet) -> None:
        """No hooks are called."""
        way = self.ways["strategies"] = Way()
        pods = kubelet.run(*OWN, *OTHERS)
        containers = [(pod, f"c{place}") for pod in pods for place in range(len(pod.spec.containers))]
        for pod, container in containers:
            way.first[pod.spec.name, container] = kubelet.looks(pod, container)[0]
        self._settle(way, kubelet, pods, containers)

    def _settle(self, way: Way, kubelet: Kubelet, pods: list[RunningPod], containers: list[tuple[Any, str]]) -> None:
        way.shown_at = uptime()
        self._show(pods)

        def agreed() -> bool:
            values = {(pod.spec.name, name): kubelet.looks(pod, name)[-1].values for pod, name in containers}
            return values == WANTED

        wait_until(agreed, "every container as it should be", PATIENCE_S)
        self.scene.settle()
        for pod, name in containers:
            way.looks[pod.spec.name, name] = kubelet.looks(pod, name, len(kubelet.looks(pod, name)))
        way.settled = {pod.spec.name: self.ground.read(pod.dir) for pod in pods}
        for pod in pods:
            kubelet.end(pod)

    def _show(self, pods: list[RunningPod]) -> None:
        self.scene.fleet.shown = [self._bystander, *pods]  # type: ignore[attr-defined]
        self.scene.publish()

    def _wait_for_pool(self, cpus: int) -> None:
        """Wait until koordlet's shared pool has `count` CPUs."""
        family = "koordlet_cpuset_share_pool_cpu_cores"
        until(lambda: sum(self.scene.koordlet.values(family)) == cpus, f"{cpus} CPUs for all to share")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    scratch = tmp_path_factory.mktemp("view")
    ground = Ground(scratch)
    view = View(ground, scratch, bpffs=False, also=ground.commands)
    logs = tmp_path_factory.mktemp("logs")
    registrations = view.scratch / "hookserver.d"
    registrations.mkdir()
    plain, nri, docker = Containerd(wrapper=False), NRIContainerd(), Dockerd()
    proxy = ProxyProcess(plain.socket, "--hook-timeout=100s")
    docker_proxy = ProxyProcess(docker.socket, "--hook-timeout=100s", "--backend-runtime-mode=Docker")
    proxy.hooks = docker_proxy.hooks = registrations
    scene = Scene(Pods(ground), view, tmp_path_factory.mktemp("cluster"), gates="BECPUSuppress=false")  # type: ignore[arg-type]
    story = Story(scene, ground, logs)
    try:
        for daemon in (plain, nri, docker):
            within(view, daemon)
            daemon.start()
        plain.import_images()
        nri.import_images()
        docker.load_images()
        scene.open(SLO, cpus=len(ALL), memory_mib=4096)
        scene.start(
            f"--runtime-hooks-host-endpoint={view.state / 'koordlet.sock'}",
            f"--runtime-hooks-nri-socket-path={nri.nri}",
            "--runtime-hooks-settle-timeout=100s",
            "--node-topology-sync-interval=0.3s",
        )
        scene.settle()
        until((registrations / "koordlet.json").exists, "koordlet's registration")
        up = "koordlet_runtime_hook_protocol_up"
        until(lambda: scene.koordlet.values(up, protocol="nri") == [1.0], "koordlet registered with NRI")
        proxy.start()
        docker_proxy.start()
        story.hooked("proxy", Kubelet(ground, logs, proxy.socket), proxy)
        story.hooked("docker", Dockershim(ground, logs, docker, docker_proxy.socket), docker_proxy)
        story.hooked("nri", Kubelet(ground, logs, nri.socket))
        story.alone(Kubelet(ground, logs, plain.socket))
        yield story
    finally:
        proxy.close()
        docker_proxy.close()
        scene.close()
        for daemon in (plain, nri, docker):
            daemon.close()
        view.close()
        ground.remove()


@pytest.mark.parametrize("way", HOOKED)
@pytest.mark.parametrize("container", WANTED, ids="/".join)
def test_values_are_there_at_the_first_instruction(story: Story, way: str, container: Key) -> None:
    first = story.ways[way].first[container]
    assert first.values == WANTED[container]
    assert first.at < story.ways[way].shown_at


@pytest.mark.parametrize("way", HOOKED)
def test_values_are_set_for_a_new_attempt(story: Story, way: str) -> None:
    way_story = story.ways[way]
    assert {name: look.values for name, look in way_story.restarted.items()} == WANTED
    assert max(look.at for look in way_story.restarted.values()) < way_story.shown_at


@pytest.mark.parametrize("way", HOOKED)
@pytest.mark.parametrize("container", WANTED, ids="/".join)
def test_they_never_change_by_updates_or_strategies(story: Story, way: str, container: Key) -> None:
    assert {look.values for look in story.ways[way].looks[container]} == {WANTED[container]}


def _told(settings: dict[str, str]) -> tuple[str, str, str]:
    return settings["cpu/cpu.shares"], settings["cpu/cpu.cfs_quota_us"], settings["memory/memory.limit_in_bytes"]


@pytest.mark.parametrize("way", HOOKED)
def test_a_pods_own_settings_are_there_before_its_containers(story: Story, way: str) -> None:
    way_story = story.ways[way]
    assert {name: _told(settings) for name, settings in way_story.at_sandbox.items()} == WANTED_OF_PODS
    assert way_story.at_sandbox == way_story.settled


def test_strategies_alone_reach_the_same_values(story: Story) -> None:
    """The strategies had work: without hooks, containers began with the kubelet's values."""
    alone = story.ways["strategies"]
    assert {name: looks[-1].values for name, looks in alone.looks.items()} == WANTED
    assert [alone.settled] * len(HOOKED) == [story.ways[way].settled for way in HOOKED]
    began = {name: look.values for name, look in alone.first.items()}
    assert began["be", "c0"] == Values("2", "-1", str(ALL), str((2**63 - 1) // 4096 * 4096))
    assert began["lsr", "c0"].quota == "100000"
    assert began["ls", "c0"].cpus == str(ALL)
