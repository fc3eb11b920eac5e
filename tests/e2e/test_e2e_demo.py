"""`make demo ONCE=1` ends with 0: every step showed what it should, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.kubectl]


def cgroup_dirs() -> set[str]:
    return {str(path) for path in Path("/sys/fs/cgroup").glob("*/kubepods*")} | {
        str(path) for path in Path("/sys/fs/cgroup").glob("kubepods*")
    }


def test_the_demo_shows_what_it_should_and_leaves_nothing(tmp_path: Path):
    mounts, pins = Path("/proc/self/mounts").read_text(), set(Path("/sys/fs/bpf").iterdir())
    before = cgroup_dirs()
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "control.ctl.demo", "--once", "--runtime=process", "--dir", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    for shown in (
        "kubectl get nodemetric",
        "koordctl top --once",
        "koordctl explain pod web",
        "report is BE, priority 5000, requests kubernetes.io/batch-cpu 200, kubernetes.io/batch-memory 64Mi",
        "demo       web",
        "a report that tells what rush uses",
        "koordctl node",
        "how it was worked out",
        "Look further",
    ):
        assert shown in said, said
    assert not folder.exists()
    assert cgroup_dirs() == before
    assert Path("/proc/self/mounts").read_text() == mounts
    assert set(Path("/sys/fs/bpf").iterdir()) == pins
