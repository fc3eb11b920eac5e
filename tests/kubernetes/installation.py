"""Installing the shipped manifests with kubectl."""

from __future__ import annotations

import json
from typing import Any

from tests.kubernetes.components import ROOT, Kubernetes

NAMESPACE = "koordinator-system"
WORKLOADS = ("deployment/koord-manager", "deployment/koord-scheduler", "daemonset/koordlet")
COLOCATION = {"enable": True, "cpuReclaimThresholdPercent": 300}
"""Overcommits three times the CPUs, so that a BestEffort pod fits on a machine whose other work counts as use."""


def install(cluster: Kubernetes) -> None:
    """Apply deploy/, set the configuration, and wait until the workloads are rolled out."""
    cluster.kubectl("apply", "-k", str(ROOT / "deploy"))
    patch = json.dumps({"data": {"colocation-config": json.dumps(COLOCATION)}})
    cluster.kubectl("-n", NAMESPACE, "patch", "configmap", "slo-controller-config", "-p", patch)
    for workload in WORKLOADS:
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=150s")


def get(cluster: Kubernetes, *arguments: str) -> Any:
    """`kubectl get -o json`, decoded."""
    return json.loads(cluster.kubectl("get", *arguments, "-o", "json").stdout)
