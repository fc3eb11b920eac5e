"""The end-to-end suite on the embedded cluster: every component is a container of the images (deploy/embedded)."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.node import ROOT
from tests.kubernetes.test_suites import SUITES

pytestmark = pytest.mark.kubernetes
NAMESPACE = "koordinator-system"
NO_GATES, GPU_GATE = "--feature-gates=", "--feature-gates=GPUEnvInject=true"
"""koordlet's flag as shipped, and with the gate that the suite needs."""


def gate_patch() -> str:
    daemon_set = yaml.safe_load((ROOT / "deploy/koordlet/daemonset.yaml").read_text())
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    where = f"/spec/template/spec/containers/0/args/{container['args'].index(NO_GATES)}"
    return json.dumps(
        [{"op": "test", "path": where, "value": NO_GATES}, {"op": "replace", "path": where, "value": GPU_GATE}]
    )


@pytest.mark.usefixtures("clean_node")
def test_the_end_to_end_suite_passes(image_archive: Path) -> None:
    kubectl = [str(Path(sys.executable).parent / "kubectl"), "-n", NAMESPACE]
    steps = (
        [*kubectl, "patch", "daemonset", "koordlet", "--type=json", "-p", gate_patch()],
        [*kubectl, "rollout", "status", "daemonset/koordlet", "--timeout=240s"],
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES["end to end"]],
    )
    command = [sys.executable, "-m", "scripts.install.demo", "--once", "--images", str(image_archive)]
    command += ["--then", " && ".join(map(shlex.join, steps))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout[-12000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
