"""A full node for koordlet's benchmarks: cgroups as a kubelet leaves them, an API server, and the kubelet's /pods.

Untidy like a real node: every pod has a pause container that no status names, finished pods are listed whose cgroups
are gone, systemd's slices exist in some of the v1 hierarchies only, and manifests carry all that an API server and a
kubelet add. Containers start a process each second, as in tests/kubernetes/bench_node.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from koordlet.api.encoding import crdgen
from koordlet.system.host import Host
from tests.koordlet.process.cluster import NODE, TOKEN, Api, Kubelet
from tests.koordlet.process.scene import SLO
from tests.ports import free_port
from tests.scale.figures import ROOT
from tests.scale.pageclient import PageClient

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")
SERVICES = 24
"""systemd's services, which have groups where systemd accounts for them."""
SERVICE_CONTROLLERS = ("cpu", "cpuacct", "memory", "")
FINISHED = 5
"""Pods that completed: listed, without cgroups."""
SHELL = ("/bin/sh", "-c", "while sleep 1; do :; done")
PAUSE = ("sleep", "infinity")
CRDS = ("nodeslos", "nodemetrics", "devices", "noderesourcetopologies")
CLONE_NEWNET = 0x40000000
FLAGS = ("--v=2", "--page-authorization=delegated")


class FullNode:
    """The groups are below one group of ours in each hierarchy, and koordlet sees that as the whole tree."""

    def __init__(self, host: Host, pods: int, containers: int, scratch: Path) -> None:
        mounts = host.facts.cgroup_mounts
        self.v2 = mounts.version == 2
        self.roots: dict[str, Path] = {name: mounts.v1[name] for name in CONTROLLERS if name in mounts.v1}
        if mounts.unified is not None:
            self.roots[""] = mounts.unified
        self.scratch = scratch
        self.parent = f"koord-bench-{os.getpid()}"
        self.made: list[Path] = []
        self.children: list[int] = []
        self._namespace: int | None = None
        """Of the last sandbox."""
        self.pods = [_Pod(number, containers) for number in range(pods)]
        self.api, self.kubelet = Api(scratch / "api", free_port()), Kubelet(scratch, keeps_connections=True)
        self.port = free_port()
        self.koordlet: subprocess.Popen[bytes] | None = None
        self._pages: PageClient | None = None

    def open(self) -> None:
        """Make the groups, start the processes and the API server."""
        for directory in ("", "kubepods", "kubepods/burstable", "kubepods/besteffort", "system.slice", "user.slice"):
            self._mkdir(directory)
        for number in range(SERVICES):
            self._mkdir(f"system.slice/unit-{number}.service", SERVICE_CONTROLLERS)
        for pod in self.pods:
            self._mkdir(pod.dir)
            for directory in (pod.sandbox, *pod.containers):
                self._mkdir(directory)
                in_sandbox = directory != pod.sandbox
                self.children.append(self._process(directory, SHELL if in_sandbox else PAUSE, join=in_sandbox))
        self._open_api()
        finished = [_Pod(len(self.pods) + number, 2).manifest("Succeeded") for number in range(FINISHED)]
        self.kubelet.pods = [*(pod.manifest("Running") for pod in self.pods), *finished]

    def start(self, *flags: str, environment: Mapping[str, str] | None = None) -> int:
        """Start koordlet as its DaemonSet does; returns its process id. Its log is in build/."""
        self.scratch.joinpath("token").write_text(TOKEN)
        view = self.scratch / "cgroup"
        mounts = ["mount --make-rprivate /"]
        for name, root in self.roots.items():
            target = view if self.v2 else view / (name or "unified")
            target.mkdir(parents=True, exist_ok=True)
            mounts.append(f"mount --bind {root / self.parent} {target}")
        bpf = self.scratch / "sys_fs/bpf"
        bpf.mkdir(parents=True)
        mounts.append(f"mount -t bpf bpf {bpf}")
        command = [
            sys.executable, "-m", "koordlet", f"--addr=127.0.0.1:{self.port}", f"--node-name={NODE}",
            f"--cgroup-root-dir={view}", f"--sys-fs-root-dir={bpf.parent}", f"--bpf-pin-dir={bpf}/koordlet",
            f"--state-dir={self.scratch}/state", f"--audit-log-dir={self.scratch}/audit",
            f"--runtime-hooks-addr={self.scratch}/koordlet.sock",
            f"--runtime-hooks-config-path={self.scratch}/hookserver.d",
            f"--pod-resources-proxy-path={self.scratch}/pod-resources",
            f"--prediction-checkpoint-filepath={self.scratch}/predictions",
            f"--kubeconfig={self.api.kubeconfig}", f"--kubelet-token-file={self.scratch}/token", *FLAGS, *flags,
        ]  # fmt: skip
        script = " && ".join([*mounts, "exec " + " ".join(command)])
        with (ROOT / "build/bench-koordlet.log").open("w") as log:
            self.koordlet = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", script], cwd=ROOT, stderr=log, stdout=log,
                env={**os.environ, "agent_mode": "hostMode", **(environment or {})},
            )  # fmt: skip
        return self.koordlet.pid

    def get(self, path: str) -> str:
        """A page, read as an administrator. Raises OSError."""
        if self._pages is None:
            config = yaml.safe_load(self.api.kubeconfig.read_text())
            self._pages = PageClient(self.port, config["users"][0]["user"]["token"])
        return self._pages.get(path)

    def wait(self, seconds: float = 120.0) -> None:
        """Until /top has a sample of every container and every probe was opened."""
        count = sum(len(pod.containers) for pod in self.pods)
        end = time.monotonic() + seconds
        while True:
            try:
                top = json.loads(self.get("/top"))
            except OSError:
                top = {"rows": [], "probes": []}
            measured = sum(row.get("cpu") is not None for row in top.get("rows", []))
            if measured >= count and "starting" not in [probe.get("reason") for probe in top["probes"]]:
                return
            if self.koordlet is None or self.koordlet.poll() is not None or time.monotonic() > end:
                raise SystemExit("koordlet ended, or did not show all containers; see build/bench-koordlet.log")
            time.sleep(0.5)

    def close(self) -> None:
        """End all processes and remove all groups."""
        if self.koordlet is not None:
            self.koordlet.terminate()
            try:
                self.koordlet.wait(60)
            except subprocess.TimeoutExpired:
                self.koordlet.kill()
                self.koordlet.wait()
        self.kubelet.close()
        if self.api.process is not None:
            self.api.kill()
        for pid in self.children:
            os.killpg(pid, signal.SIGKILL)
        for pid in self.children:
            os.waitpid(pid, 0)
        for directory in reversed(self.made):
            _remove(directory)

    def _open_api(self) -> None:
        self.api.start()
        _until(self.api.ready)
        for crd in crdgen.documents().values():
            if crd["metadata"]["name"].partition(".")[0] in CRDS:
                self.api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        _until(lambda: self.api.find(SLO.rpartition("/")[0]) is not None)
        self.api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        amounts = {"cpu": str(os.cpu_count()), "memory": "16Gi", "pods": "250"}
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet.port}},
            "capacity": amounts,
            "allocatable": amounts,
        }
        self.api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})
        for kind, path in (("NodeSLO", "nodeslos"), ("NodeMetric", "nodemetrics")):
            document = {
                "apiVersion": "slo.koordinator.sh/v1alpha1",
                "kind": kind,
                "metadata": {"name": NODE},
                "spec": {},
            }
            self.api.call("POST", f"/apis/slo.koordinator.sh/v1alpha1/{path}", document)

    def _mkdir(self, path: str, controllers: Sequence[str] = ()) -> None:
        for name, root in self.roots.items():
            if not self.v2 and controllers and name not in controllers:
                continue
            directory = root / self.parent / path
            directory.mkdir()
            self.made.append(directory)
            if self.v2:
                (directory.parent / "cgroup.subtree_control").write_text("+cpu +memory +cpuset +io")
            elif name == "cpuset":
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (directory / file).write_text((directory.parent / file).read_text())

    def _process(self, directory: str, command: tuple[str, ...], *, join: bool) -> int:
        """Run a command in a group: in the network namespace of its pod's sandbox, or in a new one."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            libc = ctypes.CDLL(None)
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the benchmark
            for root in self.roots.values():
                (root / self.parent / directory / "cgroup.procs").write_text(str(os.getpid()))
            if join and self._namespace is not None:
                libc.setns(self._namespace, CLONE_NEWNET)
            else:
                libc.unshare(CLONE_NEWNET)
            os.write(write, b".")
            os.execvp(command[0], command)
        os.read(read, 1)
        os.close(read)
        os.close(write)
        if not join:
            if self._namespace is not None:
                os.close(self._namespace)
            self._namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        return pid


class _Pod:
    """Every second pod is best effort; the others have requests."""

    def __init__(self, number: int, containers: int) -> None:
        self.uid = str(uuid.uuid4())
        self.name = f"filler-54df746786-{number:05}"
        self.best_effort = number % 2 == 1
        self.dir = f"kubepods/{'besteffort' if self.best_effort else 'burstable'}/pod{self.uid}"
        self.digests = [uuid.uuid4().hex + uuid.uuid4().hex for _ in range(containers)]
        self.containers = [f"{self.dir}/{digest}" for digest in self.digests]
        self.sandbox = f"{self.dir}/{uuid.uuid4().hex}{uuid.uuid4().hex}"

    def manifest(self, phase: str) -> dict[str, Any]:
        """As a kubelet's /pods shows it."""
        now = "2026-01-01T00:00:00Z"
        resources = {} if self.best_effort else {"requests": {"cpu": "1m", "memory": "1Mi"}}
        labels = {"app": "filler", "pod-template-hash": "54df746786"}
        if self.best_effort:
            labels["koordinator.sh/qosClass"] = "BE"
        names = [f"c{number}" for number in range(len(self.digests))]
        mount = {"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io"}
        ended = {"terminated": {"exitCode": 0, "finishedAt": now}}
        state = {"running": {"startedAt": now}} if phase == "Running" else ended
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "filler-54df746786", "uid": self.uid}
        toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        return {
            "metadata": {
                "name": self.name, "generateName": "filler-54df746786-", "namespace": "default", "uid": self.uid,
                "resourceVersion": "1234", "creationTimestamp": now, "labels": labels,
                "annotations": {"kubernetes.io/config.seen": now, "kubernetes.io/config.source": "api"},
                "ownerReferences": [owner],
                "managedFields": [
                    {"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsV1": _fields(names)}
                    for manager in ("kube-controller-manager", "koord-scheduler")
                ],
            },
            "spec": {
                "volumes": [{"name": "kube-api-access", "projected": {"sources": [], "defaultMode": 420}}],
                "containers": [
                    {
                        "name": name, "image": "busybox", "command": list(SHELL), "resources": resources,
                        "volumeMounts": [mount], "terminationMessagePath": "/dev/termination-log",
                        "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent",
                    }
                    for name in names
                ],
                "restartPolicy": "Always", "terminationGracePeriodSeconds": 0, "dnsPolicy": "ClusterFirst",
                "serviceAccountName": "default", "nodeName": NODE, "securityContext": {},
                "schedulerName": "koord-scheduler", "priority": 0, "enableServiceLinks": True,
                "tolerations": [
                    {"key": f"node.kubernetes.io/{key}", **toleration} for key in ("not-ready", "unreachable")
                ],
            },
            "status": {
                "phase": phase, "qosClass": "BestEffort" if self.best_effort else "Burstable", "startTime": now,
                "hostIP": "10.88.0.1", "podIP": "10.89.0.2", "podIPs": [{"ip": "10.89.0.2"}],
                "conditions": [
                    {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
                    for kind in conditions
                ],
                "containerStatuses": [
                    {
                        "name": name, "state": state, "lastState": {}, "ready": True, "restartCount": 0,
                        "image": "docker.io/library/busybox:latest", "imageID": f"sha256:{digest}",
                        "containerID": f"containerd://{digest}", "started": True,
                    }
                    for name, digest in zip(names, self.digests, strict=True)
                ],
            },
        }  # fmt: skip


def _fields(names: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {f"f:{key}": {} for key in ("command", "image", "name", "resources")}
    containers = {f'k:{{"name":"{name}"}}': fields for name in names}
    return {"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {"f:containers": containers, "f:dnsPolicy": {}}}


def _until(done: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise SystemExit("the API server did not come up")
        time.sleep(0.1)


def _remove(directory: Path) -> None:
    """A killed process leaves its group a moment after it was reaped."""
    for attempt in range(250):
        try:
            directory.rmdir()
            return
        except OSError:
            if attempt == 249:
                raise
            time.sleep(0.02)
