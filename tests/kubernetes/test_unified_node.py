"""A second node with kernel 6.1 and cgroup v2, under a real kubelet: what koordlet measures, sets and reports there.

It is a virtual machine with emulated CPUs, so no test compares times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from control.ctl.demo import colocation
from koordlet.api.encoding.quantity import Quantity
from tests.kubernetes.components import Kubernetes
from tests.kubernetes.guestcluster import GUEST_NODE, GuestNode
from tests.kubernetes.installation import NAMESPACE, get
from tests.kubernetes.processes import wait_for
from tests.kubernetes.test_installation import koordctl
from tests.kubernetes.test_main_job import JOB, PROFILE, apply

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]  # the first test waits for the guest
NODE = GUEST_NODE.name
START_S, CHANGE_S = 600.0, 240.0
CONFIGURED = QOS, THRESHOLDS = "resource-qos-config", "resource-threshold-config"
"""Keys of slo-controller-config."""
LIMIT_CORES = 0.3
"""CPU limit of the service, which uses all of it."""
MEMORY = 64 << 20
"""Memory request of the service in bytes."""
SERVICE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "service", "labels": {"koordinator.sh/qosClass": "LS"}},
    "spec": {
        "nodeName": NODE,
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "burn",
                "image": "busybox",
                "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", "while :; do :; done"],
                "resources": {
                    "requests": {"cpu": "100m", "memory": str(MEMORY)},
                    "limits": {"cpu": str(LIMIT_CORES), "memory": str(2 * MEMORY)},
                },
            }
        ],
    },
}
MEMORY_QOS = {"enable": True, "minLimitPercent": 50, "lowLimitPercent": 100, "throttlingPercent": 80}


@pytest.fixture(scope="module")
def cluster(installed: Kubernetes, guest: GuestNode) -> Iterator[Kubernetes]:
    """The cluster with the second node, on which koordlet is ready."""
    guest.join()
    installed.kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/koordlet", f"--timeout={START_S:.0f}s")
    yield installed
    for key in CONFIGURED:
        configure(installed, key, None)
    installed.kubectl("delete", "job/unified", "pod/service", "--ignore-not-found", "--wait=false")
    guest.leave()


@pytest.fixture(scope="module")
def service(cluster: Kubernetes) -> dict[str, Any]:
    """A latency-sensitive pod that runs there."""
    apply(cluster, SERVICE)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/service", f"--timeout={CHANGE_S:.0f}s")
    pod: dict[str, Any] = get(cluster, "pod", "service")
    return pod


def in_koordlet(cluster: Kubernetes, command: str) -> str:
    """What a shell in koordlet's container on the node prints."""
    (pod,) = get(
        cluster, "pods", "-n", NAMESPACE, "-l", "koord-app=koordlet", f"--field-selector=spec.nodeName={NODE}"
    )["items"]
    return cluster.kubectl("-n", NAMESPACE, "exec", pod["metadata"]["name"], "--", "sh", "-c", command).stdout


def files(cluster: Kubernetes, group: str, *names: str) -> dict[str, str]:
    """Contents of files of a cgroup on the node."""
    command = f'cd /host-cgroup/{group} && for name in {" ".join(names)}; do echo "$name" $(cat "$name"); done'
    lines = in_koordlet(cluster, command).splitlines()
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def wait_for_files(cluster: Kubernetes, group: str, expected: dict[str, str]) -> None:
    wait_for(
        lambda: files(cluster, group, *expected) == expected,
        lambda: f"{group} has {files(cluster, group, *expected)} instead of {expected}",
        CHANGE_S,
    )


def configure(cluster: Kubernetes, key: str, strategy: dict[str, Any] | None) -> None:
    """Set the cluster's strategy of a key of slo-controller-config, or remove the key."""
    value = None if strategy is None else json.dumps({"clusterStrategy": strategy})
    patch = json.dumps({"data": {key: value}})
    cluster.kubectl("-n", NAMESPACE, "patch", "configmap", "slo-controller-config", "-p", patch)


def pod_metric(cluster: Kubernetes, name: str) -> dict[str, Any]:
    """The pod's entry in the NodeMetric; empty when there is none."""
    status = get(cluster, "nodemetric", NODE).get("status", {})
    return next((pod for pod in status.get("podsMetric", ()) if pod["name"] == name), {})


def test_koordlet_has_its_probes_on_cgroup_v2(cluster: Kubernetes) -> None:
    page = koordctl(cluster, cluster.kubeconfig, "top", "--node", NODE)
    assert {probe["source"] for probe in page["probes"]} == {"bpf"}, page["probes"]
    assert in_koordlet(cluster, "stat -f -c %T /host-cgroup").strip() == "cgroup2fs"


def test_a_best_effort_job_gets_its_batch_resources(cluster: Kubernetes) -> None:
    apply(cluster, PROFILE)
    wait_for(lambda: colocation.offers_batch_resources(get(cluster, "node", NODE)).ok, "the node offers them", CHANGE_S)
    job: dict[str, Any] = json.loads(json.dumps(JOB))
    job["metadata"]["name"] = "unified"
    job["spec"]["template"]["metadata"]["labels"]["app"] = "unified"
    job["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": NODE}
    apply(cluster, job)
    wait_for(lambda: bool(get(cluster, "pods", "-l", "app=unified")["items"]), "the Job has a pod")
    cluster.kubectl("wait", "--for=condition=Ready", "pod", "-l", "app=unified", f"--timeout={CHANGE_S:.0f}s")
    (pod,) = get(cluster, "pods", "-l", "app=unified")["items"]
    assert colocation.scheduled(pod, NODE).ok
    group = f"kubepods/besteffort/pod{pod['metadata']['uid']}"
    expected = {"cpu.weight": "8", "cpu.max": "100000 100000", "memory.max": str(64 << 20)}
    wait_for_files(cluster, group, expected)
    log = cluster.kubectl("logs", "-l", "app=unified").stdout
    assert log.splitlines()[0] == "8", "the weight when the container started"


def test_memory_quality_holds_beside_the_kubelet(cluster: Kubernetes, service: dict[str, Any]) -> None:
    """memory.min, low and high exist on cgroup v2 only."""
    configure(cluster, QOS, {"lsClass": {"memoryQOS": MEMORY_QOS}})
    group = f"kubepods/burstable/pod{service['metadata']['uid']}"
    expected = {"memory.min": str(MEMORY // 2), "memory.low": str(MEMORY)}
    wait_for_files(cluster, group, expected)


def test_best_effort_is_suppressed_while_services_need_the_cpus(cluster: Kubernetes, service: dict[str, Any]) -> None:
    configure(cluster, THRESHOLDS, {"enable": True, "cpuSuppressThresholdPercent": 20, "cpuSuppressPolicy": "cfsQuota"})

    def quota() -> str:
        return files(cluster, "kubepods/besteffort", "cpu.max")["cpu.max"].split()[0]

    wait_for(lambda: quota() != "max", "best effort has a quota", CHANGE_S)
    configure(cluster, THRESHOLDS, None)
    wait_for(lambda: quota() == "max", "the quota is gone", CHANGE_S)


def test_the_node_metric_has_what_the_kernel_counts(cluster: Kubernetes, service: dict[str, Any]) -> None:
    """The pod runs as much as the emulated CPUs and its limit allow: what the kernel counted since it started."""
    started = datetime.fromisoformat(service["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
    group = f"kubepods/burstable/pod{service['metadata']['uid']}"

    def reported() -> float:
        usage = pod_metric(cluster, "service").get("podUsage", {}).get("resources", {})
        return float(Quantity(str(usage.get("cpu", "0"))))

    def counted() -> float:
        microseconds = int(files(cluster, group, "cpu.stat")["cpu.stat"].split()[1])
        return microseconds / 1e6 / (datetime.now(UTC) - started).total_seconds()

    wait_for(lambda: reported() > 0, "NodeMetric has the pod", CHANGE_S)
    assert reported() < 1.05 * LIMIT_CORES
    wait_for(
        lambda: abs(reported() / counted() - 1) < 0.3,
        lambda: f"{reported()} cores are reported, {counted()} are counted",
        CHANGE_S,
    )


def test_a_restarted_koordlet_goes_on(cluster: Kubernetes, service: dict[str, Any]) -> None:
    """Nothing that it had set is lost; its report is renewed."""
    group = f"kubepods/burstable/pod{service['metadata']['uid']}"
    before = files(cluster, group, "memory.min", "memory.low", "memory.high")
    updated = get(cluster, "nodemetric", NODE)["status"]["updateTime"]
    pods = get(cluster, "pods", "-n", NAMESPACE, "-l", "koord-app=koordlet", f"--field-selector=spec.nodeName={NODE}")
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", pods["items"][0]["metadata"]["name"])
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/koordlet", f"--timeout={START_S:.0f}s")
    wait_for(lambda: get(cluster, "nodemetric", NODE)["status"]["updateTime"] > updated, "a new report", CHANGE_S)
    assert files(cluster, group, *before) == before
