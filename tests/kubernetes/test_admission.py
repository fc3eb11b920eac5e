"""Pod Security admission: the level that each component needs, and our namespace's label under a stricter default."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.kubernetes.components import POD_SECURITY_DEFAULT, Kubernetes
from tests.kubernetes.installation import NAMESPACE, WORKLOADS, get
from tests.kubernetes.node import ROOT

pytestmark = pytest.mark.kubernetes
LEVELS = {
    "deploy/manager/deployment.yaml": ("restricted", None),
    "deploy/scheduler/deployment.yaml": ("restricted", None),
    "deploy/koordlet/daemonset.yaml": ("privileged", "baseline"),
    "deploy/device-daemon/daemonset.yaml": ("privileged", "baseline"),
}
"""Manifest -> (the strictest level that admits its pods, the next one)."""


@pytest.fixture(scope="module")
def namespaces(installed: Kubernetes) -> None:
    """A namespace for each level, in which the accounts of all components exist."""
    for level in ("privileged", "baseline", "restricted"):
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "audit", "warn")}
        create(installed, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": level, "labels": labels}})
        for workload in WORKLOADS:
            account = workload.partition("/")[2]
            installed.kubectl("-n", level, "create", "serviceaccount", account)


def create(cluster: Kubernetes, document: dict[str, Any]) -> None:
    cluster.kubectl("create", "-f", "-", text=json.dumps(document))


def pod_of(manifest: str) -> dict[str, Any]:
    workload = yaml.safe_load((ROOT / manifest).read_text())
    template: dict[str, Any] = workload["spec"]["template"]
    name = workload["metadata"]["name"]
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": name}}


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(("manifest", "levels"), LEVELS.items(), ids=LEVELS)
def test_the_level_of_each_component(installed: Kubernetes, manifest: str, levels: tuple[str, str | None]) -> None:
    document = json.dumps(pod_of(manifest))
    enough, too_strict = levels
    installed.kubectl("-n", enough, "create", "--dry-run=server", "-f", "-", text=document)
    if too_strict is not None:
        done = installed.kubectl("-n", too_strict, "create", "--dry-run=server", "-f", "-", text=document, check=False)
        assert done.returncode != 0 and "violates PodSecurity" in done.stderr, done.stderr


def test_our_namespace_admits_koordlet_under_a_stricter_default(installed: Kubernetes) -> None:
    """Without the labels the cluster's default would refuse koordlet."""
    labels = get(installed, "namespace", NAMESPACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    document = json.dumps(pod_of("deploy/koordlet/daemonset.yaml"))
    installed.kubectl("create", "namespace", "unlabelled")
    installed.kubectl("-n", "unlabelled", "create", "serviceaccount", "koordlet")
    done = installed.kubectl("-n", "unlabelled", "create", "--dry-run=server", "-f", "-", text=document, check=False)
    assert f'violates PodSecurity "{POD_SECURITY_DEFAULT}:latest"' in done.stderr, done.stderr
