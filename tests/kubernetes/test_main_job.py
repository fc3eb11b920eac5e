"""The main job on a real Kubernetes: overcommitted capacity goes to a BestEffort pod, enforced by its cgroups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from control.ctl.demo import colocation
from control.ctl.demo.judge import DemoResult
from tests.kubernetes.components import NODE, Kubernetes
from tests.kubernetes.installation import NAMESPACE, WORKLOADS, get
from tests.kubernetes.processes import wait_for

pytestmark = pytest.mark.kubernetes
CGROUPS = Path("/sys/fs/cgroup")
BATCH_WEIGHTS = ("204", "8")
"""200m of batch CPU as cpu.shares (cgroup v1) and as cpu.weight (v2)."""
PROFILE = {
    "apiVersion": "config.koordinator.sh/v1alpha1",
    "kind": "ClusterColocationProfile",
    "metadata": {"name": "batch"},
    "spec": {
        "selector": {"matchLabels": {"koordinator.sh/enable-colocation": "true"}},
        "schedulerName": "koord-scheduler",
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "koordinatorPriority": 1000,
    },
}
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "report", "namespace": "default"},
    "spec": {
        "template": {
            "metadata": {"labels": {"app": "report", "koordinator.sh/enable-colocation": "true"}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "count",
                        "image": "busybox",
                        "imagePullPolicy": "IfNotPresent",
                        "command": [
                            "sh",
                            "-c",
                            "cat /sys/fs/cgroup/cpu/cpu.shares /sys/fs/cgroup/cpu.weight 2>/dev/null; sleep 600",
                        ],
                        "resources": {
                            "requests": {"cpu": "200m", "memory": "64Mi"},
                            "limits": {"cpu": "1", "memory": "64Mi"},
                        },
                    }
                ],
            },
        }
    },
}


@pytest.fixture(scope="module")
def job_pod(installed: Kubernetes) -> dict[str, Any]:
    """The running pod of a Job that the profile moved to batch resources."""
    apply(installed, PROFILE)
    wait_for(lambda: offers(installed), "the node offers batch resources", 180.0)
    apply(installed, JOB)
    wait_for(lambda: bool(get(installed, "pods", "-l", "app=report")["items"]), "the Job has a pod")
    installed.kubectl("wait", "--for=condition=Ready", "pod", "-l", "app=report", "--timeout=240s")
    pod: dict[str, Any] = get(installed, "pods", "-l", "app=report")["items"][0]
    return pod


def weight_at_the_first_instruction(cluster: Kubernetes) -> str:
    """What the container of the Job's pod read as its first instruction: cgroup v1's shares or v2's weight."""
    return cluster.kubectl("logs", "-l", "app=report").stdout.partition("\n")[0]


def apply(cluster: Kubernetes, document: dict[str, Any]) -> None:
    cluster.kubectl("apply", "-f", "-", text=json.dumps(document))


def offers(cluster: Kubernetes) -> bool:
    return colocation.offers_batch_resources(get(cluster, "node", NODE)).ok


def test_the_profile_makes_the_pod_best_effort(job_pod: dict[str, Any]) -> None:
    result = colocation.admitted(job_pod)
    assert result.ok, result


def test_koord_scheduler_places_the_pod(job_pod: dict[str, Any]) -> None:
    result = colocation.scheduled(job_pod, NODE)
    assert result.ok, result


def test_the_cgroups_have_the_batch_resources(job_pod: dict[str, Any]) -> None:
    directory = f"kubepods/besteffort/pod{job_pod['metadata']['uid']}"

    def placed() -> DemoResult:
        return colocation.placed(job_pod, CGROUPS / "cpu" / directory, CGROUPS / "memory" / directory)

    wait_for(lambda: placed().ok, lambda: str(placed()), 120.0)


def test_the_first_instruction_has_the_batch_weight(installed: Kubernetes, job_pod: dict[str, Any]) -> None:
    """koord-runtime-proxy lets koordlet set the values before the container starts."""
    assert job_pod["status"]["phase"] == "Running"
    wait_for(lambda: weight_at_the_first_instruction(installed) in BATCH_WEIGHTS, "the log shows the weight", 120.0)


def test_a_pod_is_evicted_through_the_api(installed: Kubernetes, job_pod: dict[str, Any]) -> None:
    name = job_pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    path = f"/api/v1/namespaces/default/pods/{name}/eviction"
    installed.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    wait_for(lambda: name not in installed.kubectl("get", "pods", "-o", "name").stdout, f"{name} is gone", 180.0)
    installed.kubectl("delete", "job", "report", "--wait=false")


def test_no_component_was_refused_a_request(installed: Kubernetes, job_pod: dict[str, Any]) -> None:
    """Each component has the rights that it needs: no log line reports a refusal."""
    for workload in WORKLOADS:
        log = installed.kubectl("-n", NAMESPACE, "logs", workload, "--all-pods=true", "--tail=-1").stdout
        refused = [line for line in log.splitlines() if "Forbidden" in line or "forbidden" in line]
        assert not refused, refused[:5]
