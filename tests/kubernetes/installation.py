"""Installing the shipped manifests with kubectl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kubernetes.components import Kubernetes
from tests.kubernetes.node import ROOT

NAMESPACE = "koordinator-system"
WORKLOADS = ("deployment/koord-manager", "deployment/koord-scheduler", "daemonset/koordlet")
COLOCATION = {"enable": True, "cpuReclaimThresholdPercent": 300, "metricReportIntervalSeconds": 30}
"""Overcommits three times the CPUs, so that a BestEffort pod fits on a machine whose other work counts as use."""


NO_GATES, GATES = "- --feature-gates=\n", "- --feature-gates=GPUEnvInject=true,CgroupReconcile=true\n"
"""koordlet's flag as shipped, and with the gates that tests need."""


def install(cluster: Kubernetes) -> None:
    """Apply deploy/, set the configuration, and wait until the workloads are rolled out."""
    manifests = cluster.kubectl("kustomize", str(ROOT / "deploy")).stdout.split("\n---\n")
    (koordlet,) = (at for at, text in enumerate(manifests) if "\nkind: DaemonSet\n" in text)
    assert manifests[koordlet].count(NO_GATES) == 1
    manifests[koordlet] = manifests[koordlet].replace(NO_GATES, GATES)
    cluster.kubectl("apply", "-f", "-", text="\n---\n".join(manifests))
    patch = json.dumps({"data": {"colocation-config": json.dumps(COLOCATION)}})
    cluster.kubectl("-n", NAMESPACE, "patch", "configmap", "slo-controller-config", "-p", patch)
    for workload in WORKLOADS:
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=300s")


def get(cluster: Kubernetes, *arguments: str) -> Any:
    """`kubectl get -o json`, decoded."""
    return json.loads(cluster.kubectl("get", *arguments, "-o", "json").stdout)


def koordlet_log() -> str:
    """koordlet's log as the container runtime wrote it; kubectl logs needs the kubelet."""
    files = Path("/var/log/pods").glob(f"{NAMESPACE}_koordlet-*/koordlet/*.log")
    return "".join(file.read_text(errors="replace") for file in sorted(files))
