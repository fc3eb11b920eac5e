"""A whole node on this machine: up, kill -9 of each part in turn, up again, down, nothing left.

Drives the real kernel as root and needs its kubepods cgroups to be nobody else's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.ctl import preflight, processes
from control.ctl.demo.workload import Kubectl
from control.ctl.parts import NAMES, Layout
from control.ctl.processes import ProcessId

pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.kubectl]

PINS = Path(f"/sys/fs/bpf/koordctl-test-{os.getpid()}")
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "sleeper", "labels": {"koordinator.sh/qosClass": "BE"}},
    "spec": {
        "priorityClassName": "koord-batch",
        "containers": [{"name": "main", "image": "none", "command": ["sleep", "600"]}],
    },
}


class Node:
    """A node under a temporary state directory, driven by the command line as a user would."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.layout = Layout(state_dir)

    def ctl(self, *argv: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "control.ctl.main", *argv, f"--state-dir={self.state_dir}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == status, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def up(self) -> str:
        ports = ("--port=0", "--kubelet-port=0", "--koordlet-port=0", "--manager-port=0", "--webhook-port=0")
        return self.ctl("up", *ports, f"--bpf-pin-dir={PINS}", "--node-name=e2e")

    def parts(self) -> dict[str, ProcessId]:
        state = json.loads((self.state_dir / "state.json").read_text())
        return {name: ProcessId(**record["process"]) for name, record in state["parts"].items()}

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.layout.admin_kubeconfig, self.state_dir / "cache")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node")
    yield made
    subprocess.run(
        [sys.executable, "-m", "control.ctl.main", "down", "--purge", f"--state-dir={made.state_dir}"], check=True
    )


def eventually(check: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.2)
    return found


def test_a_node_survives_the_death_of_each_part_and_leaves_nothing(node: Node, tmp_path: Path) -> None:
    said = node.up()
    assert all(f"✓ {name}: ready" in said for name in NAMES), said
    assert f"export KUBECONFIG={node.layout.admin_kubeconfig}" in said
    assert "e2e    Ready" in node.kubectl.run("get", "nodes")
    first = node.parts()

    manifest = tmp_path / "pod.yaml"
    pod = {**POD, "spec": {**POD["spec"], "nodeName": "e2e"}}  # type: ignore[dict-item]
    manifest.write_text(yaml.safe_dump(pod))
    node.kubectl.run("wait", "--for=create", "sa/default", "--timeout=20s")
    node.kubectl.run("apply", "-f", str(manifest))
    node.kubectl.run("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=30s")

    said = node.up()
    assert all(f"✓ {name}: runs already" in said for name in NAMES), said
    assert node.parts() == first

    for name in NAMES:
        os.kill(first[name].pid, signal.SIGKILL)
        assert processes.wait_gone(first[name], 10)
        assert f"{name} " in node.ctl("status", status=1)
        said = node.up()
        assert f"✓ {name}: ready" in said, said
        assert all(f"✓ {other}: runs already" in said for other in NAMES if other != name), said
        assert node.parts()[name] != first[name]
    again = node.kubectl.get("pod", "sleeper")
    assert again["status"]["phase"] == "Running"
    assert again["status"]["containerStatuses"][0]["restartCount"] == 0

    top = eventually(
        lambda: [row for row in json.loads(node.ctl("top", "--json"))["rows"] if row.get("pod") == "sleeper"]
    )
    assert top[0]["qos"] == "BE"
    report = json.loads(node.ctl("status", "-o", "json"))
    assert all(part["running"] and part["ready"] for part in report["parts"]), report["parts"]
    assert {c["type"]: c["status"] for c in report["kubernetes"]["conditions"]}["Ready"] == "True"

    alive = node.parts()
    said = node.ctl("down", "--purge")
    assert all(f"{kind}: none" in said for kind in ("processes", "cgroups", "mounts", "pins", "files")), said
    assert not any(processes.alive(process) for process in alive.values())
    assert processes.marked(node.state_dir) == []
    assert not node.state_dir.exists() and not PINS.exists()
    assert not any(preflight.gather(tmp_path, {}).kubepods)


def test_down_cleans_up_after_parts_that_were_all_killed(node: Node, tmp_path: Path) -> None:
    node.up()
    node.kubectl.run("wait", "--for=create", "sa/default", "--timeout=20s")
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(yaml.safe_dump({**POD, "spec": {**POD["spec"], "nodeName": "e2e"}}))  # type: ignore[dict-item]
    node.kubectl.run("apply", "-f", str(manifest))
    node.kubectl.run("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=30s")
    assert PINS.exists(), "koordlet pins its maps here"
    for process in node.parts().values():
        os.kill(process.pid, signal.SIGKILL)
        assert processes.wait_gone(process, 10)
    said = node.ctl("down", "--purge")
    assert "cgroups and their processes" in said and "pinned BPF objects" in said, said
    assert all(f"{kind}: none" in said for kind in ("processes", "cgroups", "mounts", "pins", "files")), said
    assert not any(preflight.gather(tmp_path, {}).kubepods)


def test_a_second_node_is_refused(node: Node, tmp_path: Path) -> None:
    node.up()
    other = Node(tmp_path / "other")
    said = other.ctl("up", "--port=0", status=1)
    assert "cgroup /kubepods exists already" in said
    other.ctl("down", "--purge")
