"""A whole node on this machine: up, kill -9 of each part in turn, up again, down, nothing left. Runs on the real kernel
as root and needs the kubepods cgroups for itself."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from control import processid
from control.ctl.demo.workload import Kubectl
from control.ctl.main import main
from control.ctl.node import preflight, processes
from control.ctl.node.parts import PARTS, Layout
from control.processid import ProcessId
from control.standalone.kubelet.cgroups.directories import CgroupTree
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.kubectl]

NAMES = tuple(part.name for part in PARTS if not part.second)
PINS = Path(f"/sys/fs/bpf/koordctl-test-{os.getpid()}")
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "sleeper", "labels": {"koordinator.sh/qosClass": "BE"}},
    "spec": {
        "priorityClassName": "koord-batch",
        "containers": [{"name": "main", "image": "localhost/process:none", "command": ["sleep", "600"]}],
    },
}


class Node:
    """A node in a temporary state directory, controlled by the command line."""

    def __init__(self, state_dir: Path, runtime: str) -> None:
        self.state_dir, self.runtime = state_dir, runtime
        self.layout = Layout(state_dir)

    def ctl(self, *argv: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "control.ctl.main", *argv, f"--state-dir={self.state_dir}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == status, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def ask(self, *argv: str, status: int = 0) -> str:
        """As `ctl`, but in this process: for commands that start nothing an interpreter costs most of the time."""
        output = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(output):
            patch.setattr(sys, "argv", ["koordctl", *argv, f"--state-dir={self.state_dir}"])
            try:
                ended: Any = main()
            except SystemExit as error:
                ended = error.code
        assert ended == status, f"{argv}: {ended}\n{output.getvalue()}"
        return output.getvalue()

    def up(self, pins: Path = PINS) -> str:
        ports = (
            "--port=0",
            "--kubelet-port=0",
            "--koordlet-port=0",
            "--manager-port=0",
            "--webhook-port=0",
            "--scheduler-port=0",
            "--runtimeproxy-port=0",
            f"--runtime={self.runtime}",
        )
        return self.ctl("up", *ports, f"--bpf-pin-dir={pins}", "--node-name=e2e")

    def parts(self) -> dict[str, ProcessId]:
        state = json.loads((self.state_dir / "state.json").read_text())
        return {name: ProcessId(**record["process"]) for name, record in state["parts"].items()}

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.layout.admin_kubeconfig, self.state_dir / "cache")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """With containers in its own containerd behind the runtime proxy: it has all parts."""
    node = Node(tmp_path / "node", "containerd")
    yield node
    node.ask("down", "--purge")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "other", "containerd")
    yield node
    node.ask("down", "--purge")


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Node]:
    """With pods as plain processes."""
    node = Node(tmp_path / "plain", "process")
    yield node
    node.ask("down", "--purge")


def test_a_node_survives_the_death_of_each_part_and_leaves_nothing(node: Node, other: Node, tmp_path: Path) -> None:
    output = node.up()
    assert all(f"✓ {name}: ready" in output for name in NAMES), output
    assert f"export KUBECONFIG={node.layout.admin_kubeconfig}" in output
    assert "e2e    Ready" in node.kubectl.run("get", "nodes")
    first = node.parts()

    run_a_pod(node, tmp_path)

    output = node.up()
    assert all(f"✓ {name}: already runs" in output for name in NAMES), output
    assert node.parts() == first
    output = other.ask("up", "--port=0", status=1)
    assert f"cgroup /kubepods exists already: it belongs to the node of {node.state_dir}" in output
    assert f"koordctl down --state-dir {node.state_dir}" in output

    for name in NAMES:
        os.kill(first[name].pid, signal.SIGKILL)
        assert processes.wait_gone(first[name], 30)
        assert f"{name} " in node.ask("status", status=1)
        if name == "kubelet":
            output = other.ask("up", "--port=0", status=1)
            assert f"the node of {node.state_dir}" in output, "its other parts run, and `up` would heal it"
        output = node.up()
        assert f"✓ {name}: ready" in output, output
        assert all(f"✓ {living}: already runs" in output for living in NAMES if living != name), output
        assert node.parts()[name] != first[name]
    again = node.kubectl.get("pod", "sleeper")
    assert again["status"]["phase"] == "Running"
    assert again["status"]["containerStatuses"][0]["restartCount"] == 0

    top = wait_until(
        lambda: [row for row in json.loads(node.ask("top", "--json"))["rows"] if row.get("pod") == "sleeper"]
    )
    assert top[0]["qos"] == "BE"
    report = json.loads(node.ask("status", "-o", "json"))
    assert all(part["running"] and part["ready"] for part in report["parts"]), report["parts"]
    assert {c["type"]: c["status"] for c in report["kubernetes"]["conditions"]}["Ready"] == "True"

    alive = node.parts()
    output = node.ask("down", "--purge")
    assert all(f"{kind}: none" in output for kind in ("processes", "cgroups", "mounts", "pins", "files")), output
    assert not any(processid.alive(process) for process in alive.values())
    assert processes.marked(node.state_dir) == []
    assert not node.state_dir.exists() and not PINS.exists()
    assert not any(preflight.collect_facts(tmp_path, {}).kubepods)


def test_down_cleans_up_after_parts_that_were_all_killed(plain: Node, tmp_path: Path) -> None:
    plain.up()
    run_a_pod(plain, tmp_path)
    assert PINS.exists(), "koordlet pins its maps here"
    for process in plain.parts().values():
        os.kill(process.pid, signal.SIGKILL)
        assert processes.wait_gone(process, 30)
    output = plain.ctl("down", "--purge")
    assert "cgroups and their processes" in output and "pinned BPF objects" in output, output
    assert all(f"{kind}: none" in output for kind in ("processes", "cgroups", "mounts", "pins", "files")), output
    assert not any(preflight.collect_facts(tmp_path, {}).kubepods)


def run_a_pod(node: Node, folder: Path) -> None:
    node.kubectl.run("wait", "--for=create", "sa/default", "--timeout=60s")
    manifest = folder / "pod.yaml"
    manifest.write_text(yaml.safe_dump({**POD, "spec": {**POD["spec"], "nodeName": "e2e"}}))  # type: ignore[dict-item]
    node.kubectl.run("apply", "-f", str(manifest))
    node.kubectl.run("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=60s")
    if node.runtime == "containerd":  # plain processes have no streams
        output = node.kubectl.run("exec", "sleeper", "--", "cat", "/proc/1/cmdline")
        assert "sleep" in output, "through the runtime proxy"


def test_the_next_node_cleans_up_after_a_killed_one(node: Node, other: Node, tmp_path: Path) -> None:
    other.up()
    run_a_pod(other, tmp_path)
    assert PINS.exists(), "koordlet pins its maps here"
    for process in processes.marked(other.state_dir):  # shims, too: their containers remain
        os.kill(process.id.pid, signal.SIGKILL)
        assert processes.wait_gone(process.id, 30)
    aside = other.state_dir.rename(tmp_path / "aside")  # the marks are sufficient
    output = node.up(pins=PINS.with_name(f"{PINS.name}-next"))
    line = f"cleaned up after the node of {other.state_dir}, which was killed: cgroups and their processes"
    assert line in output and "pinned BPF objects" in output, output
    assert not PINS.exists()
    run_a_pod(node, tmp_path)
    # If the dead node starts again, it must not take the living node's cgroups for its own.
    aside.rename(other.state_dir)
    other.ask("down", "--purge")
    assert "sleeper" in node.kubectl.run("get", "pods", "--field-selector=status.phase=Running")
    output = node.ask("down", "--purge")
    assert all(f"{kind}: none" in output for kind in ("processes", "cgroups", "mounts", "pins", "files")), output
    assert not any(preflight.collect_facts(tmp_path, {}).kubepods)


def test_unmarked_cgroups_are_treated_as_a_real_kubelets(other: Node) -> None:
    tree = CgroupTree.discover(preflight.CGROUP_MOUNT)
    assert not tree.exists("kubepods")
    tree.create("kubepods/burstable")
    try:
        output = other.ask("up", "--port=0", status=1)
        assert "cgroup /kubepods exists already: a kubelet runs or has run on this machine" in output
        assert tree.exists("kubepods/burstable")
    finally:
        tree.remove("kubepods")
