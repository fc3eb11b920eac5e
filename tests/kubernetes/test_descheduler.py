"""koord-descheduler on a real Kubernetes, from deploy/descheduler with the rights that it needs.

Pods leave a second node by ReservationFirst migrations, requested by a plugin and by a drain, within a
PodDisruptionBudget. The second node is the stand-in kubelet, whose pods are processes of this machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.ctl.node.parts import SECOND_CGROUP_ROOT
from tests.kubernetes.components import NODE, Kubernetes
from tests.kubernetes.installation import NAMESPACE, get
from tests.kubernetes.node import ROOT
from tests.kubernetes.processes import wait_for

pytestmark = pytest.mark.kubernetes
SECOND = "node-d"
RIGHTS = ("eviction", "migration", "drain")
POOL = "example.com/pool"
LIMIT_S = 120.0
PLUGINS = {
    "deschedule": {"enabled": [{"name": "RemovePodsViolatingNodeAffinity"}]},
    "evict": {"enabled": [{"name": "MigrationController"}]},
    "filter": {"enabled": [{"name": "MigrationController"}]},
}
ARGUMENTS = [
    {
        "name": "RemovePodsViolatingNodeAffinity",
        "args": {
            "nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"],
            "namespaces": {"include": ["default"]},
        },
    },
    {"name": "MigrationController", "args": {"objectLimiters": {"workload": {"duration": "1s", "maxMigrating": 5}}}},
]


def shipped() -> str:
    """deploy/descheduler with the gate of drains and a configuration that moves pods, and its rights."""
    names = ("rbac", "descheduler-config", "deployment", "protection")
    files = [ROOT / "deploy/descheduler" / f"{name}.yaml" for name in names]
    files += [ROOT / "deploy/descheduler-rights" / f"{name}.yaml" for name in RIGHTS]
    objects = [obj for file in files for obj in yaml.safe_load_all(file.read_text()) if obj]
    for obj in objects:
        if obj["kind"] == "ConfigMap":
            (key,) = obj["data"]
            configuration = yaml.safe_load(obj["data"][key])
            profile = {"name": "koord-descheduler", "plugins": PLUGINS, "pluginConfig": ARGUMENTS}
            configuration |= {"deschedulingInterval": "2s", "profiles": [profile]}
            obj["data"][key] = yaml.safe_dump(configuration)
        if obj["kind"] == "Deployment":
            (container,) = obj["spec"]["template"]["spec"]["containers"]
            at = container["args"].index("--feature-gates=")
            container["args"][at] = "--feature-gates=DrainController=true"
    return yaml.safe_dump_all(objects)


@pytest.fixture(scope="module")
def descheduler(installed: Kubernetes) -> Iterator[Kubernetes]:
    text = shipped()
    installed.kubectl("apply", "-f", "-", text=text)
    try:
        installed.kubectl("-n", NAMESPACE, "rollout", "status", "deployment/koord-descheduler", "--timeout=300s")
        yield installed
    finally:
        installed.kubectl("delete", "-f", "-", "--ignore-not-found", text=text)


@pytest.fixture(scope="module")
def second_node(descheduler: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """Both nodes. The second one starts after the descheduler, whose pods need containers. Its operating system keeps
    the pods of DaemonSets away."""
    folder = tmp_path_factory.mktemp("second")
    command = [
        sys.executable, "-m", "control.standalone.kubelet", f"--kubeconfig={descheduler.kubeconfig}",
        f"--node-name={SECOND}", f"--root-dir={folder / 'kubelet'}", f"--cgroup-root={SECOND_CGROUP_ROOT}", "--port=0",
        "--node-labels=kubernetes.io/os=none", "--cleanup-on-exit",
    ]  # fmt: skip
    with (folder / "kubelet.log").open("wb") as log:
        kubelet = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        wait_for(lambda: node_ready(descheduler, kubelet, folder), f"{SECOND} is Ready", LIMIT_S)
        yield descheduler
    finally:
        descheduler.kubectl("delete", "deployments,pdb", "-l", "test=descheduler", "--ignore-not-found", "--wait")
        descheduler.kubectl("wait", "pods", "-l", "test=descheduler", "--for=delete", "--timeout=60s")
        kubelet.terminate()
        kubelet.wait(60.0)
        descheduler.kubectl("delete", "node", SECOND, "--ignore-not-found")
        descheduler.kubectl("label", "node", NODE, f"{POOL}-")


def node_ready(cluster: Kubernetes, kubelet: subprocess.Popen[bytes], folder: Path) -> bool:
    assert kubelet.poll() is None, (folder / "kubelet.log").read_text()
    query = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return cluster.kubectl("get", "node", SECOND, "-o", query, check=False).stdout == "True"


def deployment(name: str, replicas: int) -> dict[str, Any]:
    """Its pods run on nodes of their pool only."""
    labels = {"app": name, "test": "descheduler"}
    terms = [{"matchExpressions": [{"key": POOL, "operator": "In", "values": ["yes"]}]}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "schedulerName": "koord-scheduler",
                    "terminationGracePeriodSeconds": 0,
                    "affinity": {
                        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
                    },
                    "containers": [
                        {
                            "name": "main",
                            "image": "busybox",
                            "imagePullPolicy": "IfNotPresent",
                            "command": ["sh", "-c", "exec sleep 3600"],
                        }
                    ],
                },
            },
        },
    }


def budget(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default", "labels": {"test": "descheduler"}},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": name}}},
    }


def run_on_second_node(cluster: Kubernetes, name: str, replicas: int) -> set[str]:
    """Only the second node is in the pool; returns the UIDs of the pods on it."""
    cluster.kubectl("label", "node", SECOND, f"{POOL}=yes", "--overwrite")
    cluster.kubectl("label", "node", NODE, f"{POOL}-")
    cluster.kubectl("apply", "-f", "-", text=json.dumps(deployment(name, replicas)))
    cluster.kubectl("apply", "-f", "-", text=json.dumps(budget(name)))
    cluster.kubectl("rollout", "status", f"deployment/{name}", "--timeout=120s")
    pods = get(cluster, "pods", "-l", f"app={name}")["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {SECOND}
    return {pod["metadata"]["uid"] for pod in pods}


def moved(cluster: Kubernetes, name: str, replicas: int) -> bool:
    """Whether all pods are ready on the first node."""
    pods = get(cluster, "pods", "-l", f"app={name}")["items"]
    ready = [
        pod["spec"].get("nodeName") == NODE
        and {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}.get("Ready") == "True"
        for pod in pods
    ]
    return len(ready) == replicas and all(ready)


def jobs_of(cluster: Kubernetes, uids: set[str]) -> list[dict[str, Any]]:
    jobs = get(cluster, "podmigrationjobs")["items"]
    return [job for job in jobs if job["spec"]["podRef"].get("uid") in uids]


def all_succeeded(cluster: Kubernetes, uids: set[str]) -> bool:
    phases = [job.get("status", {}).get("phase") for job in jobs_of(cluster, uids)]
    assert "Failed" not in phases, jobs_of(cluster, uids)
    return len(phases) == len(uids) and set(phases) == {"Succeeded"}


def check_jobs(cluster: Kubernetes, uids: set[str]) -> None:
    """Every pod moved by one job, which reserved the place first."""
    for job in jobs_of(cluster, uids):
        status = job["status"]
        done = [each["type"] for each in status["conditions"] if each["status"] == "True"]
        assert {"ReservationScheduled", "Eviction", "ReservationBound", "BoundPodReady"} <= set(done), status
        assert status["nodeName"] == NODE
        assert status["podRef"]["uid"] not in uids


def test_a_plugin_moves_pods_and_reserves_their_places_first(second_node: Kubernetes) -> None:
    uids = run_on_second_node(second_node, "migrated", 3)
    second_node.kubectl("label", "node", NODE, f"{POOL}=yes")
    second_node.kubectl("label", "node", SECOND, f"{POOL}-")
    wait_for(lambda: moved(second_node, "migrated", 3), "all pods moved", LIMIT_S)
    wait_for(lambda: all_succeeded(second_node, uids), "all jobs succeeded", LIMIT_S)
    check_jobs(second_node, uids)
    (job, *_) = jobs_of(second_node, uids)
    assert job["metadata"]["annotations"]["koordinator.sh/evict-trigger"] == "RemovePodsViolatingNodeAffinity"
    second_node.kubectl("delete", "deployment", "migrated")


def test_a_drain_waits_for_confirmation_and_empties_the_node(second_node: Kubernetes) -> None:
    uids = run_on_second_node(second_node, "drained", 2)
    second_node.kubectl("label", "node", NODE, f"{POOL}=yes")
    drain = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "DrainNode",
        "metadata": {"name": SECOND},
        "spec": {
            "nodeName": SECOND,
            "cordonPolicy": {"mode": "Taint"},
            "migrationPolicy": {"mode": "MigrateDirectly"},
        },
    }
    second_node.kubectl("apply", "-f", "-", text=json.dumps(drain))

    def entries() -> list[dict[str, Any]]:
        moves: list[dict[str, Any]] = get(second_node, "drainnode", SECOND).get("status", {}).get("podMigrations", [])
        return moves

    wait_for(lambda: [entry["phase"] for entry in entries()] == ["Available"] * 2, "places are reserved", LIMIT_S)
    assert {entry["targetNode"] for entry in entries()} == {NODE}
    assert {pod["metadata"]["uid"] for pod in get(second_node, "pods", "-l", "app=drained")["items"]} == uids
    second_node.kubectl(
        "patch", "drainnode", SECOND, "--type=merge", "-p", json.dumps({"spec": {"confirmState": "Confirmed"}})
    )
    phase = ("get", "drainnode", SECOND, "-o", "jsonpath={.status.phase}")
    wait_for(lambda: second_node.kubectl(*phase).stdout == "Complete", "the drain is complete", LIMIT_S)
    assert moved(second_node, "drained", 2)
    check_jobs(second_node, uids)
    (taint,) = get(second_node, "node", SECOND)["spec"]["taints"]
    assert (taint["key"], taint["effect"]) == ("drain.descheduler.koordinator.sh/drain-node", "NoSchedule")
    second_node.kubectl("delete", "drainnode", SECOND)
    query = ("get", "node", SECOND, "-o", "jsonpath={.spec.taints}")
    wait_for(lambda: second_node.kubectl(*query).stdout == "", "the node is schedulable again", LIMIT_S)


def test_the_descheduler_was_refused_no_request(second_node: Kubernetes) -> None:
    command = ("-n", NAMESPACE, "logs", "deployment/koord-descheduler", "--all-pods=true", "--tail=-1")
    refused = [line for line in second_node.kubectl(*command).stdout.splitlines() if "orbidden" in line]
    assert not refused, refused[:5]
