"""Restarts and faults on a real Kubernetes: no pod creation is refused, nothing is lost, every component recovers."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.components import NODE, Kubernetes
from tests.kubernetes.installation import NAMESPACE, WORKLOADS, get
from tests.kubernetes.processes import wait_for

pytestmark = pytest.mark.kubernetes
RECOVERY_S = 180.0


def pod(name: str) -> dict[str, Any]:
    container = {
        "name": "main", "image": "busybox", "imagePullPolicy": "IfNotPresent", "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "fault"}},
        "spec": {"schedulerName": "koord-scheduler", "terminationGracePeriodSeconds": 0, "containers": [container]},
    }  # fmt: skip


@pytest.fixture(autouse=True)
def no_pods_left(installed: Kubernetes) -> Iterator[None]:
    yield
    installed.kubectl("delete", "pods", "-l", "app=fault", "--force", "--wait=true", "--timeout=240s")


def placed(cluster: Kubernetes, name: str) -> bool:
    """Whether koord-scheduler has placed the pod."""
    query = cluster.kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName}", check=False)
    return query.stdout == NODE


def create_and_place(cluster: Kubernetes, name: str, limit_s: float = RECOVERY_S) -> None:
    """Create a pod, which must not be refused, and wait until it is placed."""
    cluster.kubectl("create", "-f", "-", text=json.dumps(pod(name)))
    wait_for(lambda: placed(cluster, name), f"{name} is placed", limit_s)


def report_time(cluster: Kubernetes) -> str:
    """Time of koordlet's last report; empty before the first."""
    time: str = get(cluster, "nodemetric", NODE).get("status", {}).get("updateTime", "")
    return time


def lease_holder(cluster: Kubernetes, lease: str) -> str:
    holder: str = get(cluster, "lease", lease, "-n", NAMESPACE)["spec"]["holderIdentity"]
    return holder


class Creator:
    """Creates pods one after the other in the background, and keeps what the API server refused."""

    def __init__(self, cluster: Kubernetes) -> None:
        self._cluster = cluster
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.created: list[str] = []
        self.refused: list[str] = []

    def __enter__(self) -> Creator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        for number in range(100):
            name = f"continuous-{number}"
            done = self._cluster.kubectl("create", "-f", "-", text=json.dumps(pod(name)), check=False)
            if done.returncode:
                self.refused.append(done.stderr)
            else:
                self.created.append(name)
            if self._end.wait(1.0):
                return


def test_a_rolling_restart_refuses_no_pod_and_loses_none(installed: Kubernetes) -> None:
    with Creator(installed) as creator:
        for workload in WORKLOADS:
            installed.kubectl("-n", NAMESPACE, "rollout", "restart", workload)
        for workload in WORKLOADS:
            installed.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=300s")
    assert not creator.refused and len(creator.created) >= 10
    for name in creator.created:
        wait_for(lambda name=name: placed(installed, name), f"{name} is placed", RECOVERY_S)  # type: ignore[misc]


@pytest.mark.parametrize("lease", ["koord-scheduler", "koordinator-manager"])
def test_another_replica_leads_after_the_leader_is_gone(installed: Kubernetes, lease: str) -> None:
    former = lease_holder(installed, lease)
    leader = next(
        p for p in get(installed, "pods", "-n", NAMESPACE)["items"] if former.startswith(p["metadata"]["name"])
    )
    installed.kubectl("-n", NAMESPACE, "delete", "pod", leader["metadata"]["name"], "--force", "--wait=false")
    wait_for(lambda: lease_holder(installed, lease) not in ("", former), f"{lease} has another holder", RECOVERY_S)
    create_and_place(installed, f"after-{lease}")


@pytest.mark.parametrize("component", ["kube-apiserver", "kubelet", "koord-runtime-proxy", "containerd"])
def test_everything_recovers_from_a_kill(installed: Kubernetes, component: str) -> None:
    """SIGKILL of a component of the cluster, and its restart."""
    installed.kill(component)
    installed.start_component(component)
    create_and_place(installed, f"after-{component}")
    installed.kubectl("wait", "--for=condition=Ready", f"pod/after-{component}", "--timeout=240s")
    before = report_time(installed)
    wait_for(lambda: report_time(installed) != before, "koordlet reports again", 180.0)


@pytest.mark.parametrize(
    ("command", "workload"), [*zip(("koord-manager", "koord-scheduler", "koordlet"), WORKLOADS, strict=True)]
)
def test_killed_processes_come_back(installed: Kubernetes, command: str, workload: str) -> None:
    """SIGKILL of all processes of one component at once: the kubelet restarts its containers."""
    before = report_time(installed)
    processes = processes_of(command)
    assert processes
    for process in processes:
        os.kill(process, signal.SIGKILL)
    wait_for(lambda: not set(processes) & set(processes_of(command)), f"{command} is gone")
    create_and_place(installed, f"after-{command}")
    installed.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=300s")
    if command == "koordlet":
        wait_for(lambda: report_time(installed) != before, "koordlet reports again", 180.0)


def processes_of(command: str) -> list[int]:
    """Ids of the processes that run this console script in a container."""
    script = f"/usr/local/bin/{command}".encode()
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # the process ended
            continue
        if script in words:
            processes.append(int(path.parent.name))
    return processes
