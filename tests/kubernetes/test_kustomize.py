"""Installation, upgrade, rollback and uninstallation with kustomize (docs/install.md); no pod is rejected meanwhile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from control import manifestfiles
from koordlet.app.version import ABBREVIATED
from scripts.install import archive, rootfs
from scripts.install.imagespecs import SPECS
from tests.kubernetes.components import NODE, Kubernetes
from tests.kubernetes.installation import NAMESPACE, WORKLOADS, get
from tests.kubernetes.node import ROOT, import_image
from tests.kubernetes.podload import PodLoad, left_in_cluster, pod_load, webhook_policies
from tests.kubernetes.processes import wait_for

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1200)]  # images are built twice
NEXT, NEXT_COMMIT = "next", "0123456789abcdef0123456789abcdef01234567"
IMAGES = (manifestfiles.CONTROL_PLANE_IMAGE, manifestfiles.NODE_IMAGE)
OWN = '{"enable": true, "metricReportIntervalSeconds": 30, "cpuReclaimThresholdPercent": 71}'
"""A user's configuration, which an upgrade must keep."""


@pytest.fixture
def load(kubernetes: Kubernetes) -> Iterator[PodLoad]:
    with pod_load(kubernetes) as running:
        yield running


@pytest.fixture(scope="module")
def next_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both images again, of another commit and with another tag."""
    path = tmp_path_factory.mktemp("next-images") / "images.tar"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rootfs, "commit", lambda: NEXT_COMMIT)
        archive.write(path, [replace(spec, name=tagged(spec.name)) for spec in SPECS])
    return path


@pytest.fixture
def next_version(kubernetes: Kubernetes, next_images: Path, tmp_path: Path) -> Path:
    """An overlay of deploy/base with the next images, which the node has."""
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(ROOT / "deploy/base", tmp_path)],
        "images": [{"name": image.rpartition(":")[0], "newTag": NEXT} for image in IMAGES],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    import_image(next_images)
    return tmp_path


def tagged(image: str) -> str:
    return f"{image.rpartition(':')[0]}:{NEXT}"


def rolled_out(cluster: Kubernetes) -> list[Any]:
    """Wait for the workloads; their pods."""
    for workload in WORKLOADS:
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=150s")
    pods = get(cluster, "pods", "-n", NAMESPACE)["items"]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def running(cluster: Kubernetes) -> set[tuple[str, str, str]]:
    """Program, tag of the image, and commit by the program itself, of every container of the workloads."""
    versions = set()
    for pod in rolled_out(cluster):
        for container in pod["spec"]["containers"]:
            name, program = pod["metadata"]["name"], container["command"][0]
            shown = cluster.kubectl("-n", NAMESPACE, "exec", name, "-c", container["name"], "--", program, "--version")
            commit = re.search(r"commit (\w+)", shown.stdout)
            assert commit, shown.stdout
            versions.add((program, container["image"].rpartition(":")[2], commit[1]))
    return versions


def expected(tag: str, commit: str) -> set[tuple[str, str, str]]:
    return {(workload.rpartition("/")[2], tag, commit[:ABBREVIATED]) for workload in WORKLOADS}


def restored_series(cluster: Kubernetes) -> int:
    """How many series of its predecessor's metric cache koordlet has read, by its log."""
    log = cluster.kubectl("-n", NAMESPACE, "logs", "daemonset/koordlet", "--tail=-1").stdout
    restored = re.search(r'"Metric cache restored" series="?(\d+)', log)
    return int(restored[1]) if restored else 0


def configuration(cluster: Kubernetes) -> str:
    return str(get(cluster, "configmap", "slo-controller-config", "-n", NAMESPACE)["data"]["colocation-config"])


def test_install_upgrade_rollback_and_uninstall(kubernetes: Kubernetes, next_version: Path, load: PodLoad) -> None:
    shipped = expected(IMAGES[0].rpartition(":")[2], rootfs.commit())
    kubernetes.kubectl("apply", "-k", str(ROOT / "deploy"))
    assert running(kubernetes) == shipped
    wait_for(lambda: webhook_policies(kubernetes) == {"Ignore"}, "webhooks are registered")
    load.more()
    patch = yaml.safe_dump({"data": {"colocation-config": OWN}})
    kubernetes.kubectl("-n", NAMESPACE, "patch", "configmap", "slo-controller-config", "-p", patch)

    kubernetes.kubectl("apply", "-k", str(ROOT / "deploy/crds"))
    kubernetes.kubectl("apply", "-k", str(next_version))
    assert running(kubernetes) == expected(NEXT, NEXT_COMMIT)
    assert restored_series(kubernetes) > 0, "koordlet has not read its predecessor's state"
    wait_for(lambda: webhook_policies(kubernetes) == {"Ignore"}, "the webhooks stay registered")
    wait_for(lambda: "nodeMetric" in get(kubernetes, "nodemetric", NODE).get("status", {}), "koordlet reports", 180.0)
    assert configuration(kubernetes) == OWN
    load.more()

    kubernetes.kubectl("apply", "-k", str(ROOT / "deploy/base"))
    assert running(kubernetes) == shipped
    assert restored_series(kubernetes) > 0, "koordlet has not read its predecessor's state"
    assert configuration(kubernetes) == OWN
    load.more()

    kubernetes.kubectl("delete", "-k", str(ROOT / "deploy"), "--ignore-not-found", "--timeout=240s")
    wait_for(lambda: not left_in_cluster(kubernetes), lambda: f"left: {left_in_cluster(kubernetes)}")
    load.more()
