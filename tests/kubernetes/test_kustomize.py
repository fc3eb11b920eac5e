"""Installation, upgrade, rollback and uninstallation with kustomize (docs/install.md); no pod is rejected meanwhile."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from control import manifestfiles
from tests.kubernetes.components import CONTAINERD, NODE, ROOT, Kubernetes, wait_for
from tests.kubernetes.installation import NAMESPACE, WORKLOADS, get
from tests.kubernetes.podload import PodLoad, left_in_cluster, pod_load, webhook_policies

pytestmark = pytest.mark.kubernetes
NEXT = "next"
IMAGES = (manifestfiles.CONTROL_PLANE_IMAGE, manifestfiles.NODE_IMAGE)
OWN = '{"enable": true, "metricReportIntervalSeconds": 30, "cpuReclaimThresholdPercent": 71}'
"""A user's configuration, which an upgrade must keep."""


@pytest.fixture
def load(kubernetes: Kubernetes) -> Iterator[PodLoad]:
    with pod_load(kubernetes) as running:
        yield running


@pytest.fixture
def next_version(tmp_path: Path) -> Path:
    """An overlay of deploy/base whose images have another tag, which the node has."""
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(ROOT / "deploy/base", tmp_path)],
        "images": [{"name": image.rpartition(":")[0], "newTag": NEXT} for image in IMAGES],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    for image in IMAGES:
        tag = f"{image.rpartition(':')[0]}:{NEXT}"
        command = ["ctr", "--address", str(CONTAINERD), "--namespace", "k8s.io", "images", "tag", "--force", image, tag]
        subprocess.run(command, check=True, capture_output=True)
    return tmp_path


def rolled_out(cluster: Kubernetes) -> set[str]:
    """Wait for the workloads; the tags of the images that the pods run."""
    for workload in WORKLOADS:
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=150s")
    pods = [pod for pod in get(cluster, "pods", "-n", NAMESPACE)["items"] if "deletionTimestamp" not in pod["metadata"]]
    return {container["image"].rpartition(":")[2] for pod in pods for container in pod["spec"]["containers"]}


def configuration(cluster: Kubernetes) -> str:
    return str(get(cluster, "configmap", "slo-controller-config", "-n", NAMESPACE)["data"]["colocation-config"])


def test_install_upgrade_rollback_and_uninstall(kubernetes: Kubernetes, load: PodLoad, next_version: Path) -> None:
    shipped = IMAGES[0].rpartition(":")[2]
    kubernetes.kubectl("apply", "-k", str(ROOT / "deploy"))
    assert rolled_out(kubernetes) == {shipped}
    wait_for(lambda: webhook_policies(kubernetes) == {"Ignore"}, "webhooks are registered")
    load.more()
    patch = yaml.safe_dump({"data": {"colocation-config": OWN}})
    kubernetes.kubectl("-n", NAMESPACE, "patch", "configmap", "slo-controller-config", "-p", patch)

    kubernetes.kubectl("apply", "-k", str(ROOT / "deploy/crds"))
    kubernetes.kubectl("apply", "-k", str(next_version))
    assert rolled_out(kubernetes) == {NEXT}
    wait_for(lambda: webhook_policies(kubernetes) == {"Ignore"}, "the webhooks stay registered")
    wait_for(lambda: "nodeMetric" in get(kubernetes, "nodemetric", NODE).get("status", {}), "koordlet reports", 180.0)
    assert configuration(kubernetes) == OWN
    load.more()

    kubernetes.kubectl("apply", "-k", str(ROOT / "deploy/base"))
    assert rolled_out(kubernetes) == {shipped}
    assert configuration(kubernetes) == OWN
    load.more()

    kubernetes.kubectl("delete", "-k", str(ROOT / "deploy"), "--ignore-not-found", "--timeout=240s")
    wait_for(lambda: not left_in_cluster(kubernetes), lambda: f"left: {left_in_cluster(kubernetes)}")
    load.more()
