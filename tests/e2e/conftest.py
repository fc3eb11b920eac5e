"""One cluster for the tests of a module: the one in KUBECONFIG, else one that `koordctl up` starts here, with
pods in containerd behind the runtime proxy.

The tests in this directory must not depend on the kind of cluster. On another cluster they create one
namespace and remove it; CRDs are applied and stay. E2E_IMAGE is an image with a shell (default busybox).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


@dataclass
class Cluster:
    """kubectl on a cluster, in the tests' namespace."""

    kubeconfig: Path
    namespace: str = field(default_factory=lambda: f"koord-e2e-{uuid.uuid4().hex[:8]}")
    image: str = os.environ.get("E2E_IMAGE", "busybox")

    @property
    def env(self) -> dict[str, str]:
        """Environment of every command, which selects this cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def run(self, *args: str, text: str | None = None, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """kubectl with `args`; with `ok` a failure fails the test and shows kubectl's output."""
        done = subprocess.run(
            [str(BIN / "kubectl"), "--namespace", self.namespace, *args],
            input=text, capture_output=True, text=True, env=self.env, timeout=180, check=False,
        )  # fmt: skip
        assert not ok or done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr}{done.stdout}"
        return done

    def get(self, *args: str) -> Any:
        """`kubectl get … -o json`, decoded."""
        return json.loads(self.run("get", *args, "-o", "json").stdout)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects."""
        self.run("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def start(self, *args: str) -> subprocess.Popen[str]:
        """kubectl in the background."""
        command = [str(BIN / "kubectl"), "--namespace", self.namespace, *args]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.env)


@pytest.fixture(scope="module")  # removed before the demo starts its own node
def cluster() -> Iterator[Cluster]:
    """The cluster, with this project's CRDs and a namespace."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if kubeconfig:
        existing = Cluster(Path(kubeconfig))
        try:
            prepare(existing)
            yield existing
        finally:
            existing.run("delete", "namespace", existing.namespace, "--wait=false", ok=False)
        return
    with tempfile.TemporaryDirectory(
        prefix="koorde2e-"
    ) as folder:  # a short path, because containerd's sockets are below it
        state = Path(folder) / "state"
        existing = Cluster(state / "apiserver/admin.kubeconfig")
        try:
            up(state)
            prepare(existing)
            runtimes = {
                node["status"]["nodeInfo"]["containerRuntimeVersion"] for node in existing.get("nodes")["items"]
            }
            assert all(runtime.startswith("containerd://") for runtime in runtimes), runtimes
            yield existing
        finally:
            down = koordctl("down", f"--state-dir={state}", "--purge")
            assert down.returncode == 0, f"koordctl down did not remove everything: {down.stdout}{down.stderr}"


def koordctl(*args: str) -> subprocess.CompletedProcess[str]:
    """Minutes, because a virtual machine may pause; otherwise it takes seconds."""
    return subprocess.run([str(BIN / "koordctl"), *args], capture_output=True, text=True, timeout=300, check=False)


def up(state: Path) -> None:
    """A node whose pods are containers."""
    ports = ("", "kubelet-", "koordlet-", "manager-", "webhook-", "scheduler-", "runtimeproxy-")
    done = koordctl(
        "up", f"--state-dir={state}", "--report-interval=3", "--aggregate-duration=60", "--runtime=containerd",
        f"--bpf-pin-dir=/sys/fs/bpf/koord-e2e-{os.getpid()}", *(f"--{name}port=0" for name in ports),
    )  # fmt: skip
    assert done.returncode == 0, f"koordctl up: {done.stdout}{done.stderr}"


def prepare(cluster: Cluster) -> None:
    cluster.run("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "deploy/crds"))
    cluster.run("create", "namespace", cluster.namespace)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """`eventually(fn, seconds)`: the first true result of `fn`; else the AssertionError of the last attempt."""

    def wait(fn: Callable[[], Any], seconds: float = 60.0) -> Any:
        end = time.monotonic() + seconds
        while True:
            try:
                result = fn()
                assert result
                return result
            except AssertionError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    return wait
