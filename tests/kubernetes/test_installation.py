"""This checkout on a real Kubernetes, from the shipped manifests: every component starts and reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.components import NODE, ROOT, Kubernetes, wait_for
from tests.kubernetes.installation import NAMESPACE, WORKLOADS, get

pytestmark = pytest.mark.kubernetes


def test_every_component_is_ready_and_was_not_restarted(installed: Kubernetes) -> None:
    pods = get(installed, "pods", "-n", NAMESPACE)["items"]
    assert len(pods) >= len(WORKLOADS)
    restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}
    assert set(restarts.values()) == {0}, restarts


def test_koordlet_reports_the_node(installed: Kubernetes) -> None:
    def reported() -> bool:
        return "nodeMetric" in get(installed, "nodemetric", NODE).get("status", {})

    wait_for(reported, "NodeMetric has a status", 180.0)


def koordctl(kubernetes: Kubernetes, kubeconfig: Path, *arguments: str) -> Any:
    """The JSON that `koordctl` prints."""
    state = str(kubernetes.folder / "no-state")
    command = [sys.executable, "-m", "control.ctl.main", *arguments, "-o", "json"]
    command += [f"--kubeconfig={kubeconfig}", f"--state-dir={state}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
    return json.loads(done.stdout)


@pytest.mark.parametrize("user", ["administrator", "user with the view roles"])
def test_koordctl_needs_only_a_kubeconfig(installed: Kubernetes, tmp_path: Path, user: str) -> None:
    kubeconfig = installed.kubeconfig if user == "administrator" else viewer(installed, tmp_path)
    assert [row["node"] for row in koordctl(installed, kubeconfig, "top")] == [NODE]
    assert koordctl(installed, kubeconfig, "top", "--node", NODE)["node"] == NODE
    assert "koordinator-default-quota" in koordctl(installed, kubeconfig, "quota")
    assert {row["namespace"] for row in koordctl(installed, kubeconfig, "top", "-n", NAMESPACE)["rows"]} == {NAMESPACE}


def viewer(kubernetes: Kubernetes, folder: Path) -> Path:
    """The kubeconfig of an account that has both roles of deploy/manager/view.yaml and nothing else."""
    kubernetes.kubectl("create", "serviceaccount", "reader")
    cluster_role = ("clusterrolebinding", "reader", "--clusterrole=koordinator-view")
    kubernetes.kubectl("create", *cluster_role, "--serviceaccount=default:reader")
    role = ("rolebinding", "reader", "--role=koordinator-view")
    kubernetes.kubectl("-n", NAMESPACE, "create", *role, "--serviceaccount=default:reader")
    config = yaml.safe_load(kubernetes.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": kubernetes.kubectl("create", "token", "reader").stdout.strip()}
    path = folder / "reader.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
