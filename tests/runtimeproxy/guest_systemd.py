"""koord-runtime-proxy under a live systemd, on a node with cgroup v2 and slice paths: installed by node.sh, confined by
its unit, killed and back, containers right from their first instruction on, and taken out again.

One story, told once; the tests are about what was seen. Runs in the emulated guest (tests/guest/suites.sh): the machine
of developers has no cgroup v2 with controllers. A container's own look at its group is its first instructions' (see
firstlook.py); until all first looks are read the kubelet has shown koordlet no container id.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control.standalone.kubelet.criclient import CriClient, CriError
from koordlet.system.naming import KubeQOS
from tests.koordlet.process import conftest as lab
from tests.koordlet.process.fleet import MIB, Need, PodSpec
from tests.koordlet.process.scene import Scene
from tests.runtimeproxy.firstlook import Look, RunningPod, uptime
from tests.runtimeproxy.slicenode import (
    BINARY,
    CONTAINERD,
    FLAGS_FILE,
    KUBEADM,
    PROXY,
    SLO,
    UNIT,
    Shown,
    SliceKubelet,
    V2Values,
    open_node,
    scene_of,
    start_koordlet,
    start_runtime,
)  # fmt: skip
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
SERVICES = ("containerd.service", "koordlet.service", UNIT, "kubelet.service")
SEND = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{}', 9))"
AWAY = "192.0.2.1"
Key = tuple[str, str]


@dataclass
class Story:
    """What was seen, in the order in which it happened."""

    first_process: str = ""
    installed: str = ""
    active: list[str] = field(default_factory=list)
    enabled: str = ""
    endpoint: str = ""
    status: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    idle: str = ""
    at_sandbox: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pids: tuple[int, int] = (0, 0)
    restarts: str = ""
    known: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    first: dict[Key, Look] = field(default_factory=dict)
    shown_at: float = 0.0
    last: dict[Key, Look] = field(default_factory=dict)
    taken_out: str = ""
    left: list[str] = field(default_factory=list)
    flags: str = ""
    endpoint_after: str = ""
    running_after: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    ended: set[str] | None = None


def answers(socket: Path) -> bool:
    async def asked() -> bool:
        async with CriClient(str(socket)) as client:
            try:
                await client.version(30)
            except CriError:
                return False
            return True

    return asyncio.run(asked())


def running(socket: Path) -> set[str]:
    """Ids of containers that run."""

    async def asked() -> set[str]:
        async with CriClient(str(socket)) as client:
            return {one.id for one in await client.list_containers() if one.state == 1}

    return asyncio.run(asked())


def kubelets_endpoint(node: SystemdNode) -> str:
    """What the kubelet that runs was told."""
    words = Path(f"/proc/{node.main_pid('kubelet.service')}/cmdline").read_text().split("\0")
    return next(word.partition("unix://")[2] for word in words if word.startswith("--container-runtime-endpoint="))


def confinement(node: SystemdNode, story: Story) -> None:
    """Of the proxy that runs: what the kernel holds of it, and what is refused to who enters its place."""
    pid = node.main_pid(UNIT)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    story.status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    group = node.group(f"system.slice/{UNIT}")
    story.limits = {name: (group / name).read_text().strip() for name in ("memory.max", "pids.max")}
    story.limits["oom"] = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
    files = Path(f"/proc/{pid}/limits").read_text().partition("Max open files")[2].split()
    story.limits["files"] = files[0]
    tries = {
        "a file in /etc": "touch /etc/koord-was-here",
        "a file in /var": "touch /var/koord-was-here",
        "a setting of the kernel": "echo 1 >/sys/kernel/mm/ksm/run",
        "a cgroup": "mkdir /sys/fs/cgroup/koord-was-here",
        "a socket of its own": "touch /run/koord-runtimeproxy/own && rm /run/koord-runtimeproxy/own",
        "a registration": "touch /etc/runtime/hookserver.d/own && rm /etc/runtime/hookserver.d/own",
        "homes": "ls -A /home /root",
        "files in /tmp": "ls -A /tmp",
        "the machine's memory": "cat /proc/meminfo",
        "disks": "ls /dev/vda /dev/kmsg",
    }
    script = "\n".join(f"( {command} ) 2>&1; echo end $?" for command in tries.values())
    inside = ["nsenter", f"--target={pid}", "--mount", "--root", "--wd", "sh", "-c", script]
    told = subprocess.run(inside, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = re.findall(r"(.*?)^end (\d+)\n", told, re.DOTALL | re.MULTILINE)
    story.refused = {name: f"{status} {words}".strip() for name, (words, status) in zip(tries, found, strict=True)}
    subprocess.run(["ip", "address", "add", f"{AWAY}/32", "dev", "lo"], check=True)
    try:
        for name, address in (("this host", "127.0.0.1"), ("others", AWAY)):
            enter = f'echo 0 >{group}/cgroup.procs; exec python3 -IS -c "{SEND.format(address)}"'
            done = subprocess.run(["sh", "-c", enter], capture_output=True, text=True, check=False)
            story.refused[name] = f"{done.returncode} {done.stderr[-100:]}".strip()
    finally:
        subprocess.run(["ip", "address", "del", f"{AWAY}/32", "dev", "lo"], check=True)


def said(what: str) -> None:
    """For the report: when the story came here."""
    print(f"{uptime():.0f} s after boot: {what}", flush=True)


def installer(node: SystemdNode, command: str, *words: str) -> str:
    """What node.sh says, with its own waiting for processes cut short."""
    quick = ("SETTLE_SECONDS=3", "START_SECONDS=200")
    return node.run("/opt/koord/install/node.sh", command, *words, environment=quick).stdout


def install(node: SystemdNode, story: Story) -> None:
    story.first_process = node.path("/proc/1/comm").read_text().strip()
    story.installed = installer(node, "install", "--binary", BINARY)
    story.active = node.systemctl("is-active", *SERVICES).split()
    story.enabled = node.systemctl("is-enabled", UNIT)
    story.endpoint = kubelets_endpoint(node)
    said("installed")
    confinement(node, story)
    said("seen what is refused")


def live(node: SystemdNode, scene: Scene, shown: Shown, folder: Path, story: Story) -> list[RunningPod]:
    """Pods are made, the proxy is killed, their containers are made, run and updated."""

    def settings(pod: RunningPod) -> tuple[str, ...]:
        return tuple((node.group(pod.dir) / name).read_text().strip() for name in POD_FILES)

    kubelet = SliceKubelet(node, folder, node.path(story.endpoint))
    bystander, lsr = kubelet.admit(BYSTANDER), kubelet.admit(LSR)
    shown.shown = [bystander, lsr]
    scene.publish()
    lab.until(node.path("/etc/runtime/hookserver.d/koordlet.json").exists, "koordlet's registration")
    pool = "koordlet_cpuset_share_pool_cpu_cores"
    lab.until(lambda: scene.koordlet.answer("/metrics") and sum(scene.koordlet.values(pool)) == 1, "CPUs shared")
    begun = scene.runs("qos")
    lab.until(lambda: scene.runs("qos") > begun + 1, "a round with that pool")
    said("koordlet has its pool")
    pods = [lsr, *(kubelet.admit(spec) for spec in OTHERS)]
    for pod in pods:
        kubelet.sandbox(pod)
        story.at_sandbox[pod.spec.name] = settings(pod)
    story.idle = (node.group("kubepods.slice/kubepods-besteffort.slice") / "cpu.idle").read_text().strip()
    said("sandboxes made")

    before = node.main_pid(UNIT)
    node.systemctl("kill", "--signal=KILL", UNIT)
    lab.until(lambda: node.main_pid(UNIT) not in (0, before) and answers(kubelet.socket), "the proxy again")
    story.pids, story.restarts = (before, node.main_pid(UNIT)), node.show(UNIT, "NRestarts")
    said("the proxy is back")

    names = [(pod, f"c{place}") for pod in pods for place in range(len(pod.spec.containers))]
    for pod, name in names:
        kubelet.start(pod, name)
        story.first[pod.spec.name, name] = kubelet.looks(pod, name)[0]
    story.shown_at = uptime()
    said(f"containers looked; pods have { ({pod.spec.name: settings(pod) for pod in pods}) }")
    for pod, name in names:
        scope = f"cri-containerd-{pod.containers[name]}.scope"
        assert node.group(f"{pod.dir}/{scope}").is_dir()
        told = node.systemctl("show", "--property=CPUQuotaPerSecUSec,CPUWeight,MemoryMax", scope)
        words = dict(line.split("=", 1) for line in told.splitlines())
        story.known[pod.spec.name, name] = (words["CPUQuotaPerSecUSec"], words["CPUWeight"], words["MemoryMax"])
        kubelet.update(pod, name)
    shown.shown = [bystander, *pods]
    scene.publish()
    node.systemctl("daemon-reload")
    scene.settle()
    lab.until(lambda: {pod.spec.name: settings(pod) for pod in pods} == WANTED_OF_PODS, "pods' settings")
    for pod, name in names:
        story.last[pod.spec.name, name] = kubelet.looks(pod, name, len(kubelet.looks(pod, name)))[-1]
        story.containers.add(pod.containers[name])
    said("settled")
    return pods


def roll_back(node: SystemdNode, pods: list[RunningPod], folder: Path, story: Story) -> None:
    story.taken_out = installer(node, "rollback")
    places = (f"/etc/systemd/system/{UNIT}", PROXY, "/var/lib/koord-runtimeproxy", "/usr/local/bin/koord-runtime-proxy")
    story.left = [place for place in places if os.path.lexists(node.path(place))]
    story.left += [node.systemctl("is-active", UNIT, ok=False), node.show(UNIT, "LoadState")]
    story.flags = node.path(FLAGS_FILE).read_text()
    story.endpoint_after = kubelets_endpoint(node)
    direct = SliceKubelet(node, folder, node.path(story.endpoint_after))
    story.running_after = running(direct.socket)
    for pod in pods:
        direct.end(pod)
    story.ended = running(direct.socket)
    said("rolled back")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("node")
    shown, made = Shown(), Story()
    with ExitStack() as ends:
        scene = scene_of(folder, shown)
        ends.callback(scene.close)
        pool = ends.enter_context(ThreadPoolExecutor(1))
        opened = pool.submit(scene.open, SLO, cpus=2, memory_mib=2048)
        node = open_node(folder)
        ends.callback(node.close)
        ends.push(lambda kind, *_: print(node.log.read_text()[-8000:]) if kind else None)
        said("systemd is up")
        start_runtime(node, folder)
        said("containerd runs")
        opened.result()
        start_koordlet(scene)
        said("koordlet starts")
        install(node, made)
        pods = live(node, scene, shown, folder, made)
        roll_back(node, pods, folder, made)
    return made


def test_systemd_runs_what_node_sh_installs(story: Story) -> None:
    assert story.first_process == "systemd"
    assert story.active == ["active"] * len(SERVICES), story.installed
    assert story.enabled == "enabled"
    assert story.endpoint == PROXY


def test_the_unit_confines_the_proxy(story: Story) -> None:
    status = story.status
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    none = "0" * 16
    assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [none] * 5
    assert story.limits == {
        "memory.max": str(512 * MIB), "pids.max": "128", "oom": "-999", "files": str(1 << 20)
    }  # fmt: skip


@pytest.mark.parametrize(
    "what", ["a file in /etc", "a file in /var", "a setting of the kernel", "a cgroup", "the machine's memory", "disks"]
)
def test_its_place_refuses(story: Story, what: str) -> None:
    assert not story.refused[what].startswith("0"), story.refused
    errors = {"the machine's memory": "No such file", "disks": "No such file"}
    assert errors.get(what, "Read-only file system") in story.refused[what]


def test_its_place_has_what_it_needs_and_hides_the_rest(story: Story) -> None:
    assert story.refused["a socket of its own"] == story.refused["a registration"] == "0"
    assert story.refused["homes"].replace("/home:", "").replace("/root:", "").split() == ["0"]
    assert story.refused["files in /tmp"] == "0"


def test_it_may_speak_to_its_own_host_only(story: Story) -> None:
    assert story.refused["this host"] == "0"
    assert "Operation not permitted" in story.refused["others"]


def test_systemd_brings_it_back_and_it_answers(story: Story) -> None:
    before, after = story.pids
    assert before != after
    assert story.restarts == "1"


@pytest.mark.parametrize("container", WANTED, ids="/".join)
def test_values_are_there_at_the_first_instruction(story: Story, container: Key) -> None:
    """Of containers made after the kill: in sandboxes that the proxy knows from the runtime."""
    assert tuple(story.first[container].values) == WANTED[container]
    assert story.first[container].at < story.shown_at


def test_systemd_knows_them(story: Story) -> None:
    assert {name: known for name, known in story.known.items() if name in KNOWN_TO_SYSTEMD} == KNOWN_TO_SYSTEMD


def test_they_outlast_updates_and_a_reload_of_systemd(story: Story) -> None:
    assert {name: tuple(look.values) for name, look in story.last.items()} == WANTED


def test_a_pods_slice_has_its_settings_before_its_containers(story: Story) -> None:
    assert story.at_sandbox == WANTED_OF_PODS
    assert story.idle == "1"


def test_a_roll_back_leaves_nothing_and_ends_no_container(story: Story) -> None:
    assert story.left == ["inactive", "not-found"], story.taken_out
    assert story.flags == KUBEADM
    assert story.endpoint_after == CONTAINERD
    assert story.running_after == story.containers
    assert story.ended == set()
