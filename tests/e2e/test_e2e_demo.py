"""`make demo ONCE=1` with pods in containerd exits with 0: every step has its expected result, nothing remains."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from control.ctl.demo.stage import PIN_DIR
from control.ctl.demo.workload import cores
from control.ctl.node.parts import SECOND_CGROUP_ROOT

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.kubectl, pytest.mark.runtime, pytest.mark.timing]


def cgroup_dirs() -> set[str]:
    patterns = ("kubepods*", "*/kubepods*", SECOND_CGROUP_ROOT, f"*/{SECOND_CGROUP_ROOT}")
    return {str(path) for pattern in patterns for path in Path("/sys/fs/cgroup").glob(pattern)}


def mounts() -> set[str]:
    """Without the mounts of other tests' runtimes."""
    return {line for line in Path("/proc/self/mounts").read_text().splitlines() if "/tmp/koord-" not in line}


def processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that contain the text."""
    command_lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command_lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in command_lines if str(folder) in line]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, because containerd's sockets are below it."""
    with tempfile.TemporaryDirectory(prefix="koorddemo-") as directory:
        yield Path(directory) / "demo"


def test_the_demo_succeeds_and_leaves_nothing_behind(folder: Path) -> None:
    mounted = mounts()
    before = cgroup_dirs()
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    done = subprocess.run(
        [sys.executable, "-m", "control.ctl.demo", "--once", "--runtime=containerd", "--dir", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    output = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, output
    moved = ("koordctl migrations --all", "Succeeded", "before the move")
    for shown in (
        *(moved if len(set(cores())) == 2 else ("This machine has one core",)),
        "pods are containers of their own containerd, behind koord-runtime-proxy",
        "containerd://",
        "kubectl get nodemetric",
        "koordctl top --once",
        "koordctl explain pod web",
        "report is BE, priority 5000, requests kubernetes.io/batch-cpu 200, kubernetes.io/batch-memory 64Mi",
        "demo       web",
        "a report with the usage of rush",
        "koordctl node",
        "\ncalculation\n",
        "Commands to try",
    ):
        assert shown in output, output
    assert not folder.exists()
    assert processes_of(folder) == []
    assert cgroup_dirs() == before
    assert mounts() == mounted
    assert not Path(PIN_DIR).exists()
