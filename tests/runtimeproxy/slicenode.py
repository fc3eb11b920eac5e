"""A node with a live systemd, cgroup v2 and slice paths: Debian's containerd and dockerd as their packages' units with
the systemd cgroup driver, koordlet, a fake kubelet, and the files of deploy/runtimeproxy.

The kubelet's unit runs a program that keeps its command line, and ends when no process listens at its runtime endpoint;
the test makes the kubelet's requests at the endpoint of that command line. Pods' slices are created by systemd, as a
kubelet does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from control.standalone.containerd import images
from control.standalone.containerd.config import Folder, configuration
from koordlet.system.cgroup.naming import CgroupDriver, pod_dir
from tests.koordlet.process.fleet import MIB, PodSpec, quota, shares
from tests.koordlet.process.koordletprocess import Koordlet
from tests.koordlet.process.scene import Scene
from tests.ports import free_port
from tests.runtimeproxy.dockershim import Dockershim
from tests.runtimeproxy.firstlook import Kubelet, RunningPod
from tests.runtimeproxy.systemdnode import CACHED_ROOT, SystemdNode

ROOT = Path(__file__).resolve().parents[2]
TREE = "/opt/koord/tree"
"""The checkout's path on the node: services that may not see /home, /root and /tmp can run it from there."""
PYTHON = TREE + sys.executable.removeprefix(str(ROOT))
BINARY, UNIT = "/opt/koord/bin/koord-runtime-proxy", "koord-runtime-proxy.service"
FLAGS_FILE = "/var/lib/kubelet/kubeadm-flags.env"
LOG = "/var/log/services"
PROXY = "/var/run/koord-runtimeproxy/runtimeproxy.sock"
SLO = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True}}, "lsClass": {"cpuQOS": {"enable": True}}}}
PROGRAM = """
cd /sys/fs/cgroup
look() {
  read -r quota period <cpu.max; read -r weight <cpu.weight; read -r idle <cpu.idle
  read -r max <memory.max; read -r high <memory.high; read -r min <memory.min; read -r cpus <cpuset.cpus.effective
  read -r now rest </proc/uptime
  echo "look $now $quota/$period $weight $idle $max $high $min $cpus"
}
look
while :; do sleep 0.5; look; done
"""
KUBELET = """#!/bin/sh
[ "$1" != --version ] || {{ echo Kubernetes {version}; exit; }}
socket={socket}
for word; do case $word in --{flag}=unix://*) socket=${{word#*unix://}} ;; esac; done
python3 -IS -c "import socket; socket.socket(socket.AF_UNIX).connect('$socket')" || exit 1
echo "$socket" >/run/kubelet-is-up
trap 'exit 0' TERM
sleep infinity &
wait
"""
KUBELET_UNIT = f"""[Unit]
After=network-online.target
[Service]
EnvironmentFile=-{FLAGS_FILE}
ExecStart=/usr/bin/kubelet $KUBELET_KUBEADM_ARGS
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
"""
DOCKER_JSON = """{
  "bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false, "ip-masq": false,
  "exec-opts": ["native.cgroupdriver=systemd"]
}
"""
SERVICES = f"""[Service]
TimeoutStartSec=600s
TimeoutStopSec=600s
StandardOutput=append:{LOG}
StandardError=inherit
"""
"""Settings of every service: an emulated machine is slow, and this one has no journal."""


@dataclass(frozen=True)
class Runtime:
    """The kubelet's flags file, as kubeadm leaves it."""

    name: str
    """Of its service, and for node.sh."""
    units: tuple[str, ...]
    """What its package enables."""
    socket: str
    version: str
    """Of the kubelet."""
    flag: str
    kubelet_flags: str
    """Content of `FLAGS_FILE`."""

    @property
    def service(self) -> str:
        return f"{self.name}.service"

    @property
    def services(self) -> tuple[str, str, str]:
        """In the order in which they must start."""
        return self.service, UNIT, "kubelet.service"


CONTAINERD = Runtime(
    "containerd",
    ("containerd.service",),
    "/run/containerd/containerd.sock",
    "v1.26.15",
    "container-runtime-endpoint",
    'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock'
    ' --pod-infra-container-image=pause"\n',
)
DOCKER = Runtime(
    "docker",
    ("containerd.service", "docker.socket", "docker.service"),
    "/run/docker.sock",
    "v1.23.17",
    "docker-endpoint",
    'KUBELET_KUBEADM_ARGS="--network-plugin=cni --pod-infra-container-image=pause"\n',
)


class V2Values(NamedTuple):
    """Of one container's group on cgroup v2, as the kernel writes them."""

    cpu_max: str
    weight: str
    idle: str
    memory: str
    high: str
    min: str
    cpus: str


class SliceKubelet(Kubelet):
    """Pods below kubepods.slice."""

    program, shape = PROGRAM, V2Values  # type: ignore[assignment]

    def __init__(self, node: SystemdNode, folder: Path, endpoint: Path) -> None:
        Kubelet.__init__(self, None, folder, endpoint)  # type: ignore[arg-type]
        self._node = node

    def admit(self, spec: PodSpec) -> RunningPod:
        uid = str(uuid.uuid4())
        pod = RunningPod(spec, uid, pod_dir(CgroupDriver.SYSTEMD, spec.kube, uid))
        cpus, memory = [need.cpu[1] for need in spec.containers], [need.memory[1] for need in spec.containers]
        properties = {"CPUWeight": weight(shares(sum(need.cpu[0] or 0 for need in spec.containers)))}
        if None not in cpus:
            properties["CPUQuotaPerSecUSec"] = 10 * quota(sum(limit or 0 for limit in cpus))
        if None not in memory:
            properties["MemoryMax"] = sum(limit or 0 for limit in memory) * MIB
        self._node.make_slice(pod.dir.rpartition("/")[2], properties)
        return pod


class SliceDockershim(SliceKubelet, Dockershim):
    """The same by Docker, whose containers are put into a slice by its name alone."""

    def __init__(self, node: SystemdNode, folder: Path, endpoint: str) -> None:
        super().__init__(node, folder, Path(endpoint))

    def _parent(self, pod: RunningPod) -> str:
        return pod.dir.rpartition("/")[2]

    def _said(self, container: str) -> str:
        return docker(self._node, DOCKER.socket, "logs", container).stdout

    def _ask(self, *words: str) -> str:  # type: ignore[override]
        return docker(self._node, str(self.socket), *words).stdout.strip()


def docker(node: SystemdNode, endpoint: str, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """The `docker` command in there."""
    return node.run("/usr/bin/docker", f"--host=unix://{endpoint}", *words, ok=ok)


def weight(cpu_shares: int) -> int:
    """As runtimes translate v1's shares."""
    return 1 + (cpu_shares - 2) * 9999 // 262142


class Shown:
    """The pods in the kubelet's /pods; a `Scene` calls this its fleet."""

    def __init__(self) -> None:
        self.shown: list[RunningPod] = []

    def manifests(self, _node: str) -> list[dict[str, Any]]:
        return [pod.manifest() for pod in self.shown]

    def close(self) -> None:
        """Containers end with the node."""


class NodeKoordlet(Koordlet):
    """Runs as a service of the node."""

    node: ClassVar[SystemdNode]

    def __init__(
        self, view: Any, *flags: str, standalone: bool = False, environ: Mapping[str, str] | None = None
    ) -> None:
        """The unit has systemd's environment; `environ` must be empty."""
        assert not environ
        self.port, self.view = free_port(), view
        words = [f"--addr=127.0.0.1:{self.port}", "--node-name=own-node", *flags]
        self.node.put("/etc/systemd/system/koordlet.service", service(f"/opt/koord/bin/koordlet {' '.join(words)}"))
        self.node.systemctl("daemon-reload")
        self.node.systemctl("start", "koordlet.service")

    @property
    def log(self) -> str:
        return self.node.log.read_text()

    def answer(self, path: str) -> bytes | None:
        try:
            return self.get(path)
        except (urllib.error.URLError, OSError):
            assert self.node.main_pid("koordlet.service"), self.log[-3000:]
            return None

    def kill(self) -> None:
        """It ends with the node."""


def service(command: str) -> str:
    return f"[Service]\nEnvironment=agent_mode=hostMode\nExecStart={command}\n"


def program(module: str) -> str:
    """A script that runs a module of the checkout."""
    return (
        f'#!/bin/sh\nexport PYTHONPATH={TREE} PYTHONPYCACHEPREFIX=/opt/koord/compiled\nexec {PYTHON} -m {module} "$@"\n'
    )


def compiled(node: SystemdNode) -> None:
    """Compiled Python is cached by source path: also under the checkout's other name."""
    prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    if prefix is None:
        return
    for source in (ROOT, Path("/usr")):
        target = TREE if source == ROOT else str(source)
        place = node.path(f"/opt/koord/compiled{target}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(f"{prefix}{source}")


def open_node(folder: Path, *, own_network: bool = False) -> SystemdNode:
    """A booted node with everything that precedes koordlet and the proxy; none of that runs yet."""
    checkout = Path(f"{CACHED_ROOT}{ROOT}") if CACHED_ROOT.is_mount() else ROOT
    binds = {folder: str(folder), checkout: TREE, checkout / "deploy/runtimeproxy": "/opt/koord/install"}
    cache = os.environ.get("PYTHONPYCACHEPREFIX")
    if cache is not None:
        binds[Path(cache)] = cache
    node = SystemdNode(folder, binds, own_network=own_network)
    compiled(node)
    node.put(BINARY, program("runtimeproxy"), 0o755)
    node.put("/opt/koord/bin/koordlet", program("koordlet"), 0o755)
    node.put("/etc/systemd/system/kubelet.service", KUBELET_UNIT)
    node.put("/etc/docker/daemon.json", DOCKER_JSON)
    node.put("/etc/systemd/system/service.d/all.conf", SERVICES)
    node.put("/etc/default/koord-runtime-proxy", "KOORD_RUNTIME_PROXY_FLAGS=--hook-timeout=100s\n")
    text = configuration(Folder(Path("/var/lib/containerd")))
    for was, now in (
        ("SystemdCgroup = false", "SystemdCgroup = true"),
        ("/var/lib/containerd/containerd.sock", CONTAINERD.socket),
        ('"/var/lib/containerd/state"', '"/run/containerd"'),
    ):
        assert was in text, text
        text = text.replace(was, now)
    node.put("/etc/containerd/config.toml", text)
    node.path("/etc/runtime/hookserver.d").mkdir(parents=True, exist_ok=True)
    node.systemctl("daemon-reload")
    NodeKoordlet.node = node
    return node


def start(node: SystemdNode, runtime: Runtime) -> None:
    """Start the runtime and the kubelet, now and at every boot."""
    program = KUBELET.format(version=runtime.version, socket=runtime.socket, flag=runtime.flag)
    node.put("/usr/bin/kubelet", program, 0o755)
    node.put(FLAGS_FILE, runtime.kubelet_flags)
    node.systemctl("enable", "--now", *runtime.units)
    node.systemctl("enable", "--now", "kubelet.service")


def prepare_pods(node: SystemdNode, folder: Path) -> None:
    """The classes' slices, and images."""
    images.write_images(folder / "images.tar")
    make_slices(node)
    address = f"--address={CONTAINERD.socket}"
    node.run("ctr", address, "--namespace=k8s.io", "images", "import", str(folder / "images.tar"))


def make_slices(node: SystemdNode) -> None:
    """As a kubelet does when it starts."""
    for name in ("kubepods.slice", "kubepods-besteffort.slice", "kubepods-burstable.slice"):
        node.make_slice(name)


def scene_of(folder: Path, pods: Shown) -> Scene:
    """An API server and a kubelet's /pods, outside the node."""
    view, gates = SimpleNamespace(scratch=folder), "BECPUSuppress=false"
    scene = Scene(pods, view, folder, gates=gates, koordlet_type=NodeKoordlet)  # type: ignore[arg-type]
    scene.kubelet.cgroup_driver = "systemd"
    return scene


def start_koordlet(scene: Scene) -> None:
    """Runs as a service of the node, with the paths of a real one."""
    socket = "/var/run/koordlet/koordlet.sock"
    scene.start(
        f"--runtime-hooks-addr={socket}",
        f"--runtime-hooks-host-endpoint={socket}",
        "--runtime-hooks-config-path=/etc/runtime/hookserver.d",
        "--runtime-hooks-settle-timeout=100s",
        "--node-topology-sync-interval=1s",
    )
