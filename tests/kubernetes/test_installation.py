"""This checkout on a real Kubernetes, from the shipped manifests: every component works with its own rights."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kubernetes.components import NODE, ROOT, Kubernetes, wait_for

pytestmark = pytest.mark.kubernetes
NAMESPACE = "koordinator-system"
CONFIG = {"colocation-config": json.dumps({"enable": True, "cpuReclaimThresholdPercent": 300})}
"""Overcommits three times the CPUs, so that a BestEffort pod fits on a machine whose other work counts as use."""
WORKLOADS = ("deployment/koord-manager", "deployment/koord-scheduler", "daemonset/koordlet")


@pytest.fixture(scope="session")
def installed(kubernetes: Kubernetes) -> Kubernetes:
    """CRDs, manager, scheduler and koordlet are applied as docs/kubernetes.md says, and rolled out."""
    kubernetes.kubectl("apply", "--server-side", "-k", str(ROOT / "deploy/crds"))
    kubernetes.kubectl("apply", "-f", str(ROOT / "deploy/manager/namespace.yaml"))
    kubernetes.kubectl("create", "-f", str(ROOT / "deploy/manager/config.yaml"))
    kubernetes.kubectl(
        "-n", NAMESPACE, "patch", "configmap", "slo-controller-config", "-p", json.dumps({"data": CONFIG})
    )
    for part in ("manager", "scheduler", "koordlet"):
        kubernetes.kubectl("apply", "-k", str(ROOT / "deploy" / part))
    for workload in WORKLOADS:
        kubernetes.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=150s")
    return kubernetes


def get(cluster: Kubernetes, *arguments: str) -> Any:
    return json.loads(cluster.kubectl("get", *arguments, "-o", "json").stdout)


def test_every_component_is_ready_and_was_not_restarted(installed: Kubernetes) -> None:
    pods = get(installed, "pods", "-n", NAMESPACE)["items"]
    assert len(pods) >= len(WORKLOADS)
    restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}
    assert set(restarts.values()) == {0}, restarts


def test_koordlet_reports_the_node(installed: Kubernetes) -> None:
    def reported() -> bool:
        status = get(installed, "nodemetric", NODE).get("status", {})
        return "nodeMetric" in status

    wait_for(reported, "NodeMetric has a status", 180.0)


def test_overcommitted_resources_appear_on_the_node(installed: Kubernetes) -> None:
    def offered() -> bool:
        allocatable = get(installed, "node", NODE)["status"]["allocatable"]
        return int(allocatable.get("kubernetes.io/batch-cpu", 0)) > 0

    wait_for(offered, "the node offers batch-cpu", 240.0)
