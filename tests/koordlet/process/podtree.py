"""Pods as cgroups in the kubelet's layout, below one group that can outweigh other work of the machine."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, pod_dir
from koordlet.system.cgroup.tree import cgroup_id
from koordlet.system.host import Host
from tests.koordlet.cgroupdirs import container_dir

HEAVY = 100
"""Weight of our groups against one of default weight where figures are compared: a busy machine hardly disturbs."""
HIERARCHIES = ("cpu", "cpuacct", "cpuset", "memory")
_serial = itertools.count()


@dataclass
class Container:
    """A container's cgroup and the processes in it."""

    tree: PodTree
    pod_uid: str
    hash: str
    dir: str
    """Relative to the view's root."""
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """As koordlet names it without a kubelet."""
        runtime = "containerd" if self.tree.driver is CgroupDriver.SYSTEMD else "unknown"
        return f"{runtime}://{self.hash}"

    @property
    def name(self) -> str:
        return self.hash[:12]

    def path(self, controller: str) -> Path:
        return self.tree.path(controller, self.dir)

    @property
    def cgroup_id(self) -> int:
        return cgroup_id(self.path("cpu"))

    def run(self, code: str, cpu: int | None = None) -> int:
        """Run Python code in here, pinned to `cpu`; returns the pid once it is about to begin."""
        pin = "" if cpu is None else f"os.sched_setaffinity(0, {{{cpu}}})\n"
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", f"import os, sys, time\nsys.stdin.readline()\n{pin}print(flush=True)\n{code}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        for root in self.tree.roots.values():
            (root / self.tree.top / self.dir / "cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        process.stdout.readline()
        return process.pid

    def quota(self, share: float, period_us: int = 100_000) -> None:
        if self.tree.v2:
            (self.path("cpu") / "cpu.max").write_text(f"{int(share * period_us)} {period_us}")
        else:
            (self.path("cpu") / "cpu.cfs_period_us").write_text(str(period_us))
            (self.path("cpu") / "cpu.cfs_quota_us").write_text(str(int(share * period_us)))

    def end(self) -> None:
        """Kill and reap what runs in here."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()
        self.processes.clear()

    def remove(self) -> None:
        """End everything and remove the container's cgroup."""
        self.end()
        self.tree.rmdir(self.dir)

    def make(self) -> None:
        """Make it again under its old name."""
        self.tree.mkdir(self.dir)

    def nested(self, directory: str) -> Container:
        """A cgroup below the container's, as systemd or a container runtime in the container makes it."""
        inner = Container(self.tree, self.pod_uid, self.hash, f"{self.dir}/{directory}")
        inner.make()
        self.tree.containers.append(inner)
        return inner


class PodTree:
    """kubepods below one group of ours, in every hierarchy that koordlet reads; `disks`: that of block I/O too."""

    def __init__(self, host: Host, driver: CgroupDriver, weight: int, *, disks: bool = False) -> None:
        self._controllers = "+cpu +memory +cpuset +io" if disks else "+cpu +memory +cpuset"
        mounts = host.facts.cgroup_mounts
        self.driver, self.v2 = driver, mounts.version == 2
        self.roots: dict[str, Path] = {}
        if mounts.version == 2:
            assert mounts.unified is not None
            self.roots[""] = mounts.unified
        else:
            controllers = (*HIERARCHIES, "blkio") if disks else HIERARCHIES
            self.roots = {name: mounts.v1[name] for name in controllers if name in mounts.v1}
            if mounts.unified is not None:  # hybrid: no controllers, but pressure
                self.roots["unified"] = mounts.unified
        self.top = f"koord-process-{os.getpid()}-{next(_serial)}"
        self.containers: list[Container] = []
        self.dirs: list[str] = []
        self.mkdir("")
        if self.v2:
            self.path("cpu", "").joinpath("cpu.weight").write_text(str(100 * weight))
        else:
            self.path("cpu", "").joinpath("cpu.shares").write_text(str(1024 * weight))

    def path(self, controller: str, directory: str) -> Path:
        return (self.roots[""] if self.v2 else self.roots[controller]) / self.top / directory

    def mkdir(self, directory: str) -> None:
        """With all parents."""
        if directory and directory.rpartition("/")[0] not in self.dirs:
            self.mkdir(directory.rpartition("/")[0])
        for root in dict.fromkeys(self.roots.values()):
            path = root / self.top / directory
            path.mkdir()
            if self.v2:
                (path.parent / "cgroup.subtree_control").write_text(self._controllers)
            elif root == self.roots.get("cpuset"):
                for name in ("cpuset.cpus", "cpuset.mems"):  # v1 refuses tasks while these are empty
                    (path / name).write_text((path.parent / name).read_text())
        self.dirs.append(directory)

    def rmdir(self, directory: str) -> None:
        for root in dict.fromkeys(self.roots.values()):
            path = root / self.top / directory
            for _ in range(250):  # the kernel takes a moment to let go of a killed process
                try:
                    path.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)
            else:
                raise AssertionError(f"{path} cannot be removed: {(path / 'cgroup.procs').read_text()!r}")
        self.dirs.remove(directory)

    def pod(self, qos: KubeQOS, containers: int = 1) -> list[Container]:
        """A pod's cgroups; its containers."""
        uid = str(uuid.uuid4())
        created = []
        for _ in range(containers):
            digest = uuid.uuid4().hex + uuid.uuid4().hex
            runtime = "containerd"
            directory = container_dir(self.driver, qos, uid, f"{runtime}://{digest}")
            self.mkdir(directory)
            created.append(Container(self, uid, digest, directory))
        self.containers += created
        return created

    def remove_pod(self, uid: str, qos: KubeQOS) -> None:
        for container in [known_container for known_container in self.containers if known_container.pod_uid == uid]:
            container.remove()
            self.containers.remove(container)
        self.rmdir(pod_dir(self.driver, qos, uid))

    def remove(self) -> None:
        for container in self.containers:
            container.end()
        for directory in reversed(list(self.dirs)):
            self.rmdir(directory)
