"""The Helm chart on a real Kubernetes: the kustomize objects, and a life cycle during which no pod is rejected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.install import chart
from tests.kubernetes.components import Kubernetes
from tests.kubernetes.installation import NAMESPACE, WORKLOADS
from tests.kubernetes.node import ROOT
from tests.kubernetes.podload import PodLoad, left_in_cluster, pod_load, webhook_policies
from tests.kubernetes.processes import wait_for

pytestmark = pytest.mark.kubernetes
RELEASE = "koordinator"


def helm(cluster: Kubernetes, *arguments: str) -> str:
    program = Path(sys.executable).parent / "helm"
    done = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(cluster.folder)},
    )  # fmt: skip
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}{done.stdout}"
    return done.stdout


def template(cluster: Kubernetes, *arguments: str) -> str:
    version = os.environ["KOORD_KUBERNETES"]
    return helm(cluster, "template", RELEASE, *arguments, "--kube-version", f"{version}.0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chart") / "koordinator"
    chart.write(path)
    return path


def by_name(text: str) -> dict[tuple[str, str], Any]:
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml.safe_load_all(text) if obj}


def test_helm_and_kustomize_render_the_same_objects(kubernetes: Kubernetes, folder: Path) -> None:
    rendered = by_name(template(kubernetes, str(folder), "--set", "crds.keep=false"))
    assert rendered == by_name(kubernetes.kubectl("kustomize", str(ROOT / "deploy")).stdout)
    more = "deviceDaemon.enabled=true,monitoring.enabled=true"
    optional = by_name(template(kubernetes, str(folder), "--set", more))
    for part in ("device-daemon", "monitoring"):
        expected = by_name(kubernetes.kubectl("kustomize", str(ROOT / "deploy" / part)).stdout)
        assert {name: optional[name] for name in expected} == expected


def test_privileged_is_the_same_in_both(kubernetes: Kubernetes, folder: Path) -> None:
    name = ("DaemonSet", "koordlet")
    rendered = by_name(template(kubernetes, str(folder), "--set", "koordlet.privileged=true"))[name]
    overlay = by_name(kubernetes.kubectl("kustomize", str(ROOT / "deploy/koordlet-privileged")).stdout)[name]
    for document in (rendered, overlay):
        (container,) = document["spec"]["template"]["spec"]["containers"]
        container["volumeMounts"].sort(key=lambda mount: mount["name"])
    assert rendered == overlay
    rendered["metadata"]["namespace"] = "default"
    kubernetes.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(rendered))


def test_the_values_change_the_objects(kubernetes: Kubernetes, folder: Path) -> None:
    affinity: dict[str, Any] = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    values = {
        "imageRepositoryHost": "registry.test/team",
        "manager": {"replicas": 3, "nodeSelector": {"pool": "infra"}, "tolerations": [{"operator": "Exists"}]},
        "koordlet": {"features": "BECPUEvict=true", "nodeAffinity": affinity},
        "webhookConfiguration": {"failurePolicy": {"pods": "Fail"}},
        "sloControllerConfig": {"colocation-config": '{"enable": false}'},
        "crds": {"managed": False},
    }  # fmt: skip
    file = folder.parent / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    rendered = by_name(template(kubernetes, str(folder), "--values", str(file)))
    manager, koordlet = rendered["Deployment", "koord-manager"], rendered["DaemonSet", "koordlet"]
    pod = manager["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (manager["spec"]["replicas"], pod["nodeSelector"]) == (3, {"pool": "infra"})
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert container["image"].startswith("registry.test/team/koordinator-py/control-plane:")
    assert {"name": "WEBHOOK_CONFIGURATION_FAILURE_POLICY_PODS", "value": "Fail"} in container["env"]
    assert "--feature-gates=BECPUEvict=true" in koordlet["spec"]["template"]["spec"]["containers"][0]["args"]
    assert list(koordlet["spec"]["template"]["spec"]["affinity"]) == ["nodeAffinity"]
    assert rendered["ConfigMap", "slo-controller-config"]["data"]["colocation-config"] == '{"enable": false}'
    assert not any(kind == "CustomResourceDefinition" for kind, _ in rendered)


@pytest.fixture
def load(kubernetes: Kubernetes) -> Iterator[PodLoad]:
    with pod_load(kubernetes) as running:
        yield running


def test_install_upgrade_rollback_and_uninstall(kubernetes: Kubernetes, folder: Path, load: PodLoad) -> None:
    def rolled_out() -> None:
        for workload in WORKLOADS:
            kubernetes.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=150s")

    helm(kubernetes, "install", RELEASE, str(folder), "--set", "crds.keep=false")
    rolled_out()
    wait_for(lambda: webhook_policies(kubernetes) == {"Ignore"}, "webhooks are registered")
    load.more()
    helm(
        kubernetes,
        "upgrade",
        RELEASE,
        str(folder),
        "--reuse-values",
        "--set",
        "webhookConfiguration.failurePolicy.pods=Fail",
    )
    rolled_out()
    wait_for(lambda: "Fail" in webhook_policies(kubernetes), "the upgraded manager has registered its webhooks")
    load.more()
    helm(kubernetes, "rollback", RELEASE, "1")
    rolled_out()
    wait_for(lambda: webhook_policies(kubernetes) == {"Ignore"}, "the old webhooks are back")
    load.more()
    helm(kubernetes, "uninstall", RELEASE, "--wait")

    wait_for(lambda: not left_in_cluster(kubernetes), "nothing of the release is left")
    load.more()
