"""The Helm chart on a real Kubernetes: the kustomize objects, and a life cycle during which no pod is rejected."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.install import chart
from tests.kubernetes.components import ROOT, Kubernetes, wait_for
from tests.kubernetes.installation import NAMESPACE, WORKLOADS

pytestmark = pytest.mark.kubernetes
RELEASE = "koordinator"
KINDS = "crd,clusterrole,clusterrolebinding,priorityclass,mutatingwebhookconfiguration,validatingwebhookconfiguration"


def helm(cluster: Kubernetes, *arguments: str) -> str:
    done = subprocess.run(
        [str(cluster.programs / "helm"), *arguments], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(cluster.folder)},
    )  # fmt: skip
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chart") / "koordinator"
    chart.write(path)
    return path


def by_name(text: str) -> dict[tuple[str, str], Any]:
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml.safe_load_all(text) if obj}


def test_helm_and_kustomize_render_the_same_objects(kubernetes: Kubernetes, folder: Path) -> None:
    rendered = by_name(helm(kubernetes, "template", RELEASE, str(folder), "--set", "crds.keep=false"))
    assert rendered == by_name(kubernetes.kubectl("kustomize", str(ROOT / "deploy")).stdout)
    more = "deviceDaemon.enabled=true,monitoring.enabled=true"
    optional = by_name(helm(kubernetes, "template", RELEASE, str(folder), "--set", more))
    for part in ("device-daemon", "monitoring"):
        expected = by_name(kubernetes.kubectl("kustomize", str(ROOT / "deploy" / part)).stdout)
        assert {name: optional[name] for name in expected} == expected


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
    rendered = by_name(helm(kubernetes, "template", RELEASE, str(folder), "--values", str(file)))
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


class PodLoad:
    """Creates and deletes pods of the default namespace in a thread; keeps every refusal."""

    def __init__(self, cluster: Kubernetes) -> None:
        self._cluster = cluster
        self._stopped = threading.Event()
        self.created = 0
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        spec = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]}
        while not self._stopped.is_set():
            name = f"load-{self.created}-{len(self.failures)}"
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**spec, "nodeName": "none"}}
            done = self._cluster.kubectl("create", "-f", "-", text=json.dumps(pod), check=False)
            if done.returncode:
                self.failures.append(done.stderr)
            else:
                self.created += 1
                self._cluster.kubectl("delete", "pod", name, "--force", "--wait=false", check=False)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@pytest.fixture
def load(kubernetes: Kubernetes) -> Iterator[PodLoad]:
    wait_for(
        lambda: kubernetes.kubectl("get", "serviceaccount", "default", check=False).returncode == 0,
        "the default namespace has its account",
    )
    running = PodLoad(kubernetes)
    yield running
    running.stop()


def test_install_upgrade_rollback_and_uninstall(kubernetes: Kubernetes, folder: Path, load: PodLoad) -> None:
    def rolled_out() -> None:
        for workload in WORKLOADS:
            kubernetes.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=150s")

    def more_pods() -> None:
        before = load.created
        wait_for(lambda: load.created > before + 3, "pods are created")
        assert not load.failures, load.failures[:3]

    def policies() -> set[str]:
        name = "koordinator-mutating-webhook-configuration"
        path = "jsonpath={.webhooks[*].failurePolicy}"
        return set(kubernetes.kubectl("get", "mutatingwebhookconfiguration", name, "-o", path).stdout.split())

    helm(kubernetes, "install", RELEASE, str(folder), "--set", "crds.keep=false")
    rolled_out()
    wait_for(lambda: policies() == {"Ignore"}, "webhooks are registered")
    more_pods()
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
    wait_for(lambda: "Fail" in policies(), "the upgraded manager has registered its webhooks")
    more_pods()
    helm(kubernetes, "rollback", RELEASE, "1")
    rolled_out()
    wait_for(lambda: policies() == {"Ignore"}, "the old webhooks are back")
    more_pods()
    helm(kubernetes, "uninstall", RELEASE, "--wait")

    def left() -> list[str]:
        names = kubernetes.kubectl("get", KINDS, "-o", "name").stdout.split()
        names += kubernetes.kubectl("get", "namespace", NAMESPACE, "-o", "name", "--ignore-not-found").stdout.split()
        return [name for name in names if any(part in name for part in ("koord", "scheduling.sigs", "topology.node"))]

    wait_for(lambda: not left(), "nothing of the release is left")
    more_pods()
