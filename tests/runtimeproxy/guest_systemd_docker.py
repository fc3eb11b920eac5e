"""koord-runtime-proxy in front of Docker with a live systemd, on a node with cgroup v2 and slice paths: containers are
correct from their first instruction on, with the systemd driver, which gets only the last slice's name. By hand, in the
emulated guest (docs/runtime-proxy.md); `guest_systemd.py` is the same with containerd."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control.standalone.containerd import images
from koordlet.system.cgroup.naming import KubeQOS
from tests.koordlet.process.scene import Scene
from tests.runtimeproxy.firstlook import Look, uptime
from tests.runtimeproxy.guest_systemd import (
    KNOWN_TO_SYSTEMD,
    LSR,
    OTHERS,
    WANTED,
    Key,
    admit_pinned,
    known_to_systemd,
    opened,
)
from tests.runtimeproxy.installed import Observations, install, kill, log_step, roll_back
from tests.runtimeproxy.slicenode import (
    DOCKER,
    PROXY,
    Shown,
    SliceDockershim,
    docker,
    make_slices,
    start,
)
from tests.runtimeproxy.systemdnode import SystemdNode

pytestmark = pytest.mark.kernel

PODS = (LSR, *(spec for spec in OTHERS if spec.kube is KubeQOS.BESTEFFORT))
CONTAINERS = [(pod.name, f"c{place}") for pod in PODS for place in range(len(pod.containers))]


@dataclass
class Story(Observations):
    first: dict[Key, Look] = field(default_factory=dict)
    shown_at: float = 0.0
    known: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    last: dict[Key, Look] = field(default_factory=dict)
    running_after: int = 0


def live(node: SystemdNode, scene: Scene, shown: Shown, folder: Path, story: Story) -> None:
    kubelet = SliceDockershim(node, folder, PROXY)
    bystander, lsr = admit_pinned(node, scene, shown, kubelet)
    pods = [lsr, *(kubelet.admit(spec) for spec in PODS[1:])]
    for pod in pods:
        kubelet.sandbox(pod)
    log_step("sandboxes made")
    kill(node, DOCKER, story)
    names = [(pod, f"c{place}") for pod in pods for place in range(len(pod.spec.containers))]
    for pod, name in names:
        kubelet.start(pod, name)
        story.first[pod.spec.name, name] = kubelet.looks(pod, name)[0]
    story.shown_at = uptime()
    log_step("containers looked")
    story.known = known_to_systemd(node, "docker", pods)
    for pod, name in names:
        kubelet.update(pod, name)
    shown.shown = [bystander, *pods]
    scene.publish()
    scene.settle()
    for pod, name in names:
        story.last[pod.spec.name, name] = kubelet.looks(pod, name, len(kubelet.looks(pod, name)))[-1]
    log_step("settled")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("node")
    shown, stories = Shown(), Story()

    def begin(node: SystemdNode) -> None:
        start(node, DOCKER)
        make_slices(node)
        images.write_images(folder / "images.tar")
        docker(node, DOCKER.socket, "load", "--input", str(folder / "images.tar"))

    with opened(folder, shown, begin) as (node, scene):
        install(node, DOCKER, stories)
        live(node, scene, shown, folder, stories)
        roll_back(node, DOCKER, stories)
        running = docker(node, DOCKER.socket, "ps", "--quiet").stdout.split()
        stories.running_after = len(running)
        docker(node, DOCKER.socket, "rm", "--force", *running)
        log_step("containers removed")
    return stories


def test_systemd_runs_what_node_sh_installs(story: Story) -> None:
    assert story.active == ["active"] * 3, story.installed
    assert story.endpoint == PROXY


@pytest.mark.parametrize("container", CONTAINERS, ids="/".join)
def test_values_are_there_at_the_first_instruction(story: Story, container: Key) -> None:
    """Values of containers created after the kill, in sandboxes that the proxy restored from Docker."""
    assert tuple(story.first[container].values) == WANTED[container]
    assert story.first[container].at < story.shown_at


def test_systemd_knows_them(story: Story) -> None:
    known_containers = {name: known for name, known in KNOWN_TO_SYSTEMD.items() if name in CONTAINERS}
    assert {name: story.known[name] for name in known_containers} == known_containers


def test_they_outlast_updates(story: Story) -> None:
    assert {name: tuple(look.values) for name, look in story.last.items()} == {
        name: WANTED[name] for name in CONTAINERS
    }


def test_a_roll_back_leaves_nothing_and_ends_no_container(story: Story) -> None:
    assert story.left == ["inactive", "not-found"], story.taken_out
    assert story.flags == DOCKER.kubelet_flags
    assert story.endpoint_after == DOCKER.socket
    assert story.running_after == len(CONTAINERS) + len(PODS)
