"""Pods of every class as real cgroups with real processes, as a kubelet and a runtime would set them up, and their
manifests for the kubelet's /pods. Used by the cross-check and by chaos.

What the kubelet sets is written here by its own formulas (requests to shares, limits to quota and bytes); a pause
container that no manifest names is in every pod, as a runtime makes it.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from koordlet.system.cgroup.naming import CgroupDriver, KubeQOS, pod_dir, qos_dir
from tests.koordlet.cgroupdirs import container_dir

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
LEAST_SHARES = 2


@dataclass(frozen=True)
class Need:
    """What one container asks for: (request, limit), None for nothing said. CPU in milli-cores, memory in MiB."""

    cpu: tuple[int | None, int | None] = (None, None)
    memory: tuple[int | None, int | None] = (None, None)
    batch_cpu: tuple[int | None, int | None] = (None, None)
    batch_memory: tuple[int | None, int | None] = (None, None)

    def resources(self) -> dict[str, dict[str, str]]:
        """As in a manifest."""
        resources: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
        for place, side in enumerate(("requests", "limits")):
            for name, amounts, unit in (
                ("cpu", self.cpu, "m"),
                ("memory", self.memory, "Mi"),
                ("kubernetes.io/batch-cpu", self.batch_cpu, ""),
                ("kubernetes.io/batch-memory", self.batch_memory, "Mi"),
            ):
                amount = amounts[place]
                if amount is not None:
                    resources[side][name] = f"{amount}{unit}"
        return resources


@dataclass(frozen=True)
class PodSpec:
    """A pod to be."""

    name: str
    kube: KubeQOS
    qos: str = ""
    """Koordinator's label; empty for none."""
    containers: tuple[Need, ...] = (Need(),)
    annotations: Mapping[str, str] = field(default_factory=dict)
    uid: str = ""
    """Of a pod that an API server knows; empty for any."""


@dataclass(frozen=True)
class Pod:
    """A pod that is: its directories are relative to the view's root."""

    spec: PodSpec
    uid: str
    dir: str
    hashes: tuple[str, ...]
    container_dirs: tuple[str, ...]
    sandbox_dir: str

    @property
    def dirs(self) -> tuple[str, ...]:
        return (self.dir, *self.container_dirs, self.sandbox_dir)

    def manifest(self, node: str) -> dict[str, Any]:
        """As the kubelet answers it."""
        spec = self.spec
        names = [f"c{place}" for place in range(len(spec.containers))]
        labels = {"koordinator.sh/qosClass": spec.qos} if spec.qos else {}
        return {
            "metadata": {
                "name": spec.name,
                "namespace": "default",
                "uid": self.uid,
                "labels": labels,
                "annotations": dict(spec.annotations),
            },
            "spec": {
                "nodeName": node,
                "containers": [
                    {"name": name, "image": "none", "resources": need.resources()}
                    for name, need in zip(names, spec.containers, strict=True)
                ],
            },
            "status": {
                "phase": "Running",
                "qosClass": spec.kube.value,
                "containerStatuses": [
                    {"name": name, "containerID": f"containerd://{digest}", "state": {"running": {}}}
                    for name, digest in zip(names, self.hashes, strict=True)
                ],
            },
        }


def shares(milli: int) -> int:
    return max(milli * 1024 // 1000, LEAST_SHARES)


def quota(milli: int) -> int:
    return max(milli * 100, 1000)


class Fleet:
    """Pods below one tree's kubepods. `write` and `read` speak v1 terms (see `kernel_text`)."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.pods: dict[str, Pod] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for qos in KubeQOS:
            self._mkdir(qos_dir(self.driver, qos))
        self._weigh_classes()

    @property
    def driver(self) -> CgroupDriver:
        driver: CgroupDriver = self.tree.driver
        return driver

    def add(self, *specs: PodSpec) -> list[Pod]:
        """Make them, as the kubelet and a runtime do: parents first."""
        pods = []
        for spec in specs:
            uid = spec.uid or str(uuid.uuid4())
            hashes = tuple(uuid.uuid4().hex + uuid.uuid4().hex for _ in range(len(spec.containers) + 1))
            dirs = [container_dir(self.driver, spec.kube, uid, f"containerd://{digest}") for digest in hashes]
            pod = Pod(spec, uid, pod_dir(self.driver, spec.kube, uid), hashes[:-1], tuple(dirs[:-1]), dirs[-1])
            self._mkdir(pod.dir)
            self._set_pod(pod)
            for directory in (*pod.container_dirs, pod.sandbox_dir):
                self._mkdir(directory)
                self._processes[directory] = self._sleeper(directory)
            for directory, need in zip(pod.container_dirs, spec.containers, strict=True):
                self._set_container(directory, need)
            self.write(pod.sandbox_dir, "cpu.shares", LEAST_SHARES)
            self.pods[uid] = pod
            pods.append(pod)
        self._weigh_classes()
        return pods

    def vacate(self, pod: Pod) -> None:
        """End what `add` runs in a pod: what a test runs there is alone."""
        for directory in (*pod.container_dirs, pod.sandbox_dir):
            self._end(directory)

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        """A user edits the pod."""
        (pod,) = [pod for pod in self.pods.values() if pod.spec.name == name]
        self.pods[pod.uid] = replace(pod, spec=replace(pod.spec, annotations=annotations))

    def remove(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        for directory in (*pod.container_dirs, pod.sandbox_dir):
            self._end(directory)
            self.tree.rmdir(directory)
        self.tree.rmdir(pod.dir)
        self._weigh_classes()

    def manifests(self, node: str) -> list[dict[str, Any]]:
        return [pod.manifest(node) for pod in self.pods.values()]

    def close(self) -> None:
        """End every process; the tree removes its directories itself."""
        for directory in list(self._processes):
            self._end(directory)

    def write(self, directory: str, resource: str, value: int) -> None:
        controller, file, text = kernel_text(self.tree.v2, resource, value)
        (self.tree.path(controller, directory) / file).write_text(text)

    # --- as the kubelet does

    def _set_pod(self, pod: Pod) -> None:
        """A limit is the pod's only when every container has one."""
        needs = pod.spec.containers
        self.write(pod.dir, "cpu.shares", shares(sum(need.cpu[0] or 0 for need in needs)))
        limits = [need.cpu[1] for need in needs]
        if None not in limits:
            self.write(pod.dir, "cpu.cfs_quota_us", quota(sum(limit or 0 for limit in limits)))
        limits = [need.memory[1] for need in needs]
        if None not in limits:
            self.write(pod.dir, "memory.limit_in_bytes", sum(limit or 0 for limit in limits) * MIB)

    def _set_container(self, directory: str, need: Need) -> None:
        self.write(directory, "cpu.shares", shares(need.cpu[0] or 0))
        if need.cpu[1] is not None:
            self.write(directory, "cpu.cfs_quota_us", quota(need.cpu[1]))
        if need.memory[1] is not None:
            self.write(directory, "memory.limit_in_bytes", need.memory[1] * MIB)
        if self.tree.v2:
            self.write(directory, "memory.oom.group", 1)

    def _weigh_classes(self) -> None:
        """Burstable weighs what its pods ask for, BestEffort the least: the kubelet says so again and again. What an
        idle group refuses it logs."""
        milli = dict.fromkeys(KubeQOS, 0)
        for pod in self.pods.values():
            milli[pod.spec.kube] += sum(need.cpu[0] or 0 for need in pod.spec.containers)
        for qos in (KubeQOS.BURSTABLE, KubeQOS.BESTEFFORT):
            directory = qos_dir(self.driver, qos)
            idle = self.tree.path("cpu", directory) / "cpu.idle"
            if not idle.exists() or idle.read_text().strip() == "0":
                self.write(directory, "cpu.shares", shares(milli[qos]))

    # --- parts

    def _mkdir(self, directory: str) -> None:
        if directory not in self.tree.dirs:
            self.tree.mkdir(directory)

    def _sleeper(self, directory: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "infinity"], start_new_session=True)
        for root in self.tree.roots.values():
            (root / self.tree.top / directory / "cgroup.procs").write_text(str(process.pid))
        return process

    def _end(self, directory: str) -> None:
        process = self._processes.pop(directory, None)
        if process is not None:
            process.kill()
            process.wait(60)


def kernel_text(v2: bool, resource: str, value: int) -> tuple[str, str, str]:
    """(controller, file, text) of a setting that is named and counted as on v1 (spec 03 §1.3, §1.4)."""
    controller = resource.partition(".")[0]
    if not v2:
        unlimited = str((2**63 - 1) // PAGE * PAGE) if resource == "memory.limit_in_bytes" else "-1"
        return controller, resource, unlimited if value == -1 else str(value)
    unlimited = "max" if value in (-1, 2**63 - 1) else str(value)
    match resource:
        case "cpu.shares":
            return controller, "cpu.weight", str(1 + (value - 2) * 9999 // 262142)
        case "cpu.cfs_quota_us":
            return controller, "cpu.max", f"{unlimited} 100000"
        case "cpu.cfs_burst_us":
            return controller, "cpu.max.burst", str(value)
        case "memory.limit_in_bytes":
            return controller, "memory.max", unlimited
        case "memory.high" | "memory.low" | "memory.min" if unlimited != "max":
            return controller, resource, str(value // PAGE * PAGE)
        case "memory.high":
            return controller, resource, unlimited
    return controller, resource, str(value)


# --- the walk

VOLATILE = {
    "tasks", "cgroup.procs", "cgroup.threads", "cpuacct.usage", "memory.max_usage_in_bytes", "memory.failcnt",
    "memory.memsw.max_usage_in_bytes", "memory.memsw.failcnt", "memory.kmem.max_usage_in_bytes", "memory.kmem.failcnt",
    "memory.kmem.tcp.max_usage_in_bytes", "memory.kmem.tcp.failcnt", "memory.peak", "memory.swap.peak",
    "cgroup.event_control", "memory.force_empty", "memory.pressure_level", "memory.reclaim", "cgroup.kill",
    "blkio.reset_stats", "cpu.weight.nice",
}  # fmt: skip
"""Writable files that count or command or show another one's value, instead of holding a setting."""

State = dict[tuple[str, str], str]
"""(directory, file) -> content"""


def walk(tree: Any, below: str = "") -> State:
    """Every file that a process could write, of every group at or below a directory of the tree."""
    state: State = {}
    for root in dict.fromkeys(tree.roots.values()):
        top = root / tree.top
        for parent, _, names in os.walk(top / below):
            directory = str(Path(parent).relative_to(top)).removeprefix(".")
            for name in names:
                path = Path(parent, name)
                if _is_setting(path):
                    state[directory, name] = path.read_text().strip() or _followed(path)
    return state


def _followed(path: Path) -> str:
    """An empty v2 CPU set is the parent's; kernel 6.1 can't be brought back to that while tasks run."""
    effective = path.with_name("cpuset.cpus.effective")
    return effective.read_text().strip() if path.name == "cpuset.cpus" and effective.exists() else ""


def _is_setting(path: Path) -> bool:
    name = path.name
    if name in VOLATILE or name.endswith(".pressure"):
        return False
    return bool(path.stat().st_mode & 0o200)


def differences(expected: State, state: State, ignored: Iterable[tuple[str, str]] = ()) -> list[str]:
    """What is not as it should be, in words."""
    skip = set(ignored)
    return [
        f"{directory}/{file}: {state.get((directory, file))!r}, should be {expected.get((directory, file))!r}"
        for directory, file in sorted(expected.keys() | state.keys())
        if (directory, file) not in skip and expected.get((directory, file)) != state.get((directory, file))
    ]
