"""A node whose containers report their cgroup's values: a runtime, koordlet, the tested part in between, and a fake
kubelet.

All of it sees one cgroup as its root, containerd and its containers included: a mount namespace shows that group at
/sys/fs/cgroup. So paths are those of a real node (/kubepods/…) and nothing else on the machine is changed. A
container's program writes, from its first instructions on and repeatedly, its own cgroup's values with the machine's
clock (seconds since boot). cgroup v1 only: the values are read by their v1 names.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from control.standalone.kubelet.cgroups.directories import CgroupTree
from control.standalone.kubelet.runtimes.criclient import CriClient
from koordlet.api.cri.api_pb2 import UpdateContainerResourcesRequest
from koordlet.api.hooks.api_pb2 import LinuxContainerResources
from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, pod_dir, qos_dir
from tests.koordlet.process.cluster import NODE
from tests.koordlet.process.fleet import MIB, Pod, PodSpec, quota, shares
from tests.koordlet.process.podtree import HIERARCHIES
from tests.runtimes.daemons import Daemon
from tests.runtimes.pods import container_config, sandbox_config
from tests.waiting import wait_until

CGROUPS = Path("/sys/fs/cgroup")
POD_FILES = ("cpu/cpu.shares", "cpu/cpu.cfs_quota_us", "cpu/cpu.idle", "memory/memory.limit_in_bytes")
PROGRAM = """
look() {
  read -r a </sys/fs/cgroup/cpu/cpu.shares; read -r b </sys/fs/cgroup/cpu/cpu.cfs_quota_us
  read -r c </sys/fs/cgroup/cpuset/cpuset.cpus; read -r d </sys/fs/cgroup/memory/memory.limit_in_bytes
  read -r now rest </proc/uptime
  echo "look $now $a $b $c $d"
}
look
while :; do sleep 0.2; look; done
"""
_serial = itertools.count()
T = TypeVar("T")


class Values(NamedTuple):
    """Values of one container's group, as the kernel writes them."""

    shares: str
    quota: str
    cpus: str
    memory: str


class Look(NamedTuple):
    """`at`: seconds since boot."""

    at: float
    values: Values


def read_looks(lines: list[str], shape: Callable[..., Any] = Values) -> list[Look]:
    """Values from a log whose last line may be incomplete."""
    words = [line.partition("look ")[2].split() for line in lines if line.endswith("\n") and "look " in line]
    return [Look(float(at), shape(*values)) for at, *values in words]


class Ground:
    """A group in every hierarchy, for a `View` with `scratch`; its `commands` show the group to runtimes as well."""

    def __init__(self, scratch: Path) -> None:
        self.groups = CgroupTree.discover(CGROUPS)
        assert self.groups.version == 1, "containers are asked for v1's files"
        self.top = f"koord-process-{os.getpid()}-look{next(_serial)}"
        self.groups.create(self.top)
        self.roots = {name: self.groups.roots[name] for name in HIERARCHIES}
        self.commands = tuple(self._showing(scratch))

    def _showing(self, scratch: Path) -> Iterator[str]:
        """In the view: the group in place of each hierarchy. runc uses the first mounts in the list, so the hierarchies
        are removed from that namespace, and the view for koordlet is mounted last."""
        for name in self.roots:
            yield f"umount {scratch}/cgroup/{name}"
        yield f"mkdir {scratch}/aside"
        for root in {hierarchy.resolve() for hierarchy in self.groups.roots.values()}:
            yield f"mount --bind {root / self.top} {scratch}/aside"
            yield f"umount {root}"
            yield f"mount --move {scratch}/aside {root}"
        for name, root in self.roots.items():
            yield f"mount --bind {root} {scratch}/cgroup/{name}"

    def mkdir(self, directory: str) -> None:
        self.groups.create(f"{self.top}/{directory}")

    def write(self, directory: str, file: str, text: str) -> None:
        self._path(directory, file).write_text(text)

    def read(self, directory: str) -> dict[str, str]:
        """A pod's own settings."""
        return {file: self._path(directory, file).read_text().strip() for file in POD_FILES}

    def _path(self, directory: str, file: str) -> Path:
        controller, name = file.split("/")
        return self.groups.dir(controller, f"{self.top}/{directory}") / name

    def remove(self) -> None:
        wait_until(lambda: self.groups.kill(self.top), "no process is left in our group")
        wait_until(lambda: self.groups.remove(self.top), "our group goes")


@dataclass
class RunningPod:
    """A pod that the test has created in the kubelet's role."""

    spec: PodSpec
    uid: str
    dir: str
    runtime: str = "containerd"
    sandbox: str = ""
    config: Any = None
    containers: dict[str, str] = field(default_factory=dict)
    """Name -> id."""
    attempts: dict[str, int] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """As in the kubelet's /pods: containers with their present ids."""
        manifest = Pod(self.spec, self.uid, self.dir, ("",) * len(self.spec.containers), (), "").manifest(NODE)
        status = manifest["status"]
        status["containerStatuses"] = [
            container_status
            for container_status in status["containerStatuses"]
            if container_status["name"] in self.containers
        ]
        for container_status in status["containerStatuses"]:
            container_status["containerID"] = f"{self.runtime}://{self.containers[container_status['name']]}"
        return manifest


class Pods:
    """The pods of a kubelet's /pods; a `Scene` calls this its fleet."""

    def __init__(self, ground: Ground) -> None:
        self.tree, self.shown = ground, list[RunningPod]()
        for qos in KubeQOS:
            ground.mkdir(qos_dir(CgroupDriver.CGROUPFS, qos))

    def manifests(self, _node: str) -> list[dict[str, Any]]:
        return [pod.manifest() for pod in self.shown]

    def close(self) -> None:
        """The runtime owns the containers."""


class Kubelet:
    """Creates pods' directories and requests their sandboxes and containers, which run `program` and print words for
    `shape`, from a runtime at `endpoint`."""

    program, shape = PROGRAM, Values

    def __init__(self, ground: Ground, folder: Path, endpoint: Path) -> None:
        self._ground, self._folder, self.socket = ground, folder, endpoint

    def admit(self, spec: PodSpec) -> RunningPod:
        """The pod's directory, with the kubelet's settings."""
        uid = str(uuid.uuid4())
        pod = RunningPod(spec, uid, pod_dir(CgroupDriver.CGROUPFS, spec.kube, uid))
        self._ground.mkdir(pod.dir)
        needs = spec.containers
        self._ground.write(pod.dir, "cpu/cpu.shares", str(shares(sum(need.cpu[0] or 0 for need in needs))))
        limits = [need.cpu[1] for need in needs]
        if None not in limits:
            self._ground.write(pod.dir, "cpu/cpu.cfs_quota_us", str(quota(sum(limit or 0 for limit in limits))))
        limits = [need.memory[1] for need in needs]
        if None not in limits:
            amount = sum(limit or 0 for limit in limits) * MIB
            self._ground.write(pod.dir, "memory/memory.limit_in_bytes", str(amount))
        return pod

    def sandbox(self, pod: RunningPod) -> None:
        labels = {"koordinator.sh/qosClass": pod.spec.qos}
        pod.config = sandbox_config(
            f"/{pod.dir}", name=pod.spec.name, uid=pod.uid, labels=labels, annotations=pod.spec.annotations
        )
        pod.config.log_directory = str(self._folder)
        pod.sandbox = self._ask(lambda client: client.run_pod_sandbox(pod.config))

    def start(self, pod: RunningPod, name: str) -> None:
        """Its next attempt at the container `name` (c0, c1, …)."""
        pod.attempts[name] = pod.attempts.get(name, -1) + 1
        config = container_config(
            "/bin/sh", "-c", self.program, name=name, resources=self.resources(pod, name), attempt=pod.attempts[name]
        )
        config.log_path = self._log(pod, name).name

        async def made(client: CriClient) -> str:
            container = await client.create_container(pod.sandbox, config, pod.config)
            await client.start_container(container)
            return container

        pod.containers[name] = self._ask(made)

    def run(self, *specs: PodSpec) -> list[RunningPod]:
        """The whole log."""
        pods = [self.admit(spec) for spec in specs]
        for pod in pods:
            self.sandbox(pod)
            for place in range(len(pod.spec.containers)):
                self.start(pod, f"c{place}")
        return pods

    @staticmethod
    def resources(pod: RunningPod, name: str) -> LinuxContainerResources:
        """The resources in a kubelet's request."""
        need = pod.spec.containers[int(name[1:])]
        return LinuxContainerResources(
            cpu_period=100_000,
            cpu_quota=0 if need.cpu[1] is None else quota(need.cpu[1]),
            cpu_shares=shares(need.cpu[0] or 0),
            memory_limit_in_bytes=0 if need.memory[1] is None else need.memory[1] * MIB,
        )

    def update(self, pod: RunningPod, name: str) -> None:
        """The kubelet requests the same again, as its CPU manager and a resize do."""
        request = UpdateContainerResourcesRequest(container_id=pod.containers[name], linux=self.resources(pod, name))
        self._ask(lambda client: client.call("UpdateContainerResources", request))

    def restart(self, pod: RunningPod, name: str) -> None:
        """A new attempt in place of a stopped one."""
        self._ask(lambda client: client.stop_container(pod.containers[name]))
        self._ask(lambda client: client.remove_container(pod.containers[name]))
        self.start(pod, name)

    def end(self, pod: RunningPod) -> None:
        self._ask(lambda client: client.stop_pod_sandbox(pod.sandbox))
        self._ask(lambda client: client.remove_pod_sandbox(pod.sandbox))

    def looks(self, pod: RunningPod, name: str, more_than: int = 0) -> list[Look]:
        """The values that the container's attempt read, once there are more than `looks` of them."""

        def enough() -> list[Look]:
            looks = self._looks(pod, name)
            return looks if len(looks) > more_than else []

        looks: list[Look] = wait_until(enough, f"more than {more_than} looks of {pod.spec.name}/{name}")
        return looks

    def _looks(self, pod: RunningPod, name: str) -> list[Look]:
        log = self._log(pod, name)
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        return read_looks(lines, self.shape)

    def _log(self, pod: RunningPod, name: str) -> Path:
        return self._folder / f"{pod.uid}-{name}-{pod.attempts[name]}.log"

    def _ask(self, do: Callable[[CriClient], Awaitable[T]]) -> T:
        async def asked() -> T:
            async with CriClient(str(self.socket)) as client:
                return await do(client)

        return asyncio.run(asked())


def within(view: Any, daemon: Daemon) -> None:
    """Have the runtime start inside the view."""
    argv = daemon.argv
    daemon.argv = lambda: view.enter(argv())  # type: ignore[method-assign]


def uptime() -> float:
    """The present time of the containers' clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
