"""User actions with unmodified kubectl and the official clients, on any cluster."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes import client, config, watch

from koordlet.api.registry import CUSTOM
from tests.e2e.conftest import Cluster
from tests.repository.examples import blocks, documents

pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.kubectl, pytest.mark.runtime]
Eventually = Callable[..., Any]


def pod(cluster: Cluster, name: str, command: str, **spec: Any) -> dict[str, Any]:
    command_line = ["sh", "-c", command]
    container = {"name": "main", "image": cluster.image, "imagePullPolicy": "IfNotPresent", "command": command_line}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, "koordinator.sh/qosClass": "BE"}},
        "spec": {
            "nodeName": node(cluster),
            "priorityClassName": "koord-batch",  # admission rejects BE without it
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            **spec,
        },
    }


def node(cluster: Cluster) -> str:
    nodes = cluster.get("nodes")["items"]
    ready = [
        n["metadata"]["name"]
        for n in nodes
        if any(c["type"] == "Ready" and c["status"] == "True" for c in n["status"]["conditions"])
    ]
    assert ready, "no node is Ready"
    result: str = ready[0]
    return result


def test_nodes_are_ready_and_report_their_resources(cluster: Cluster) -> None:
    listed = cluster.run("get", "nodes", "-o", "wide").stdout
    assert "Ready" in listed
    capacity = cluster.get("node", node(cluster))["status"]["capacity"]
    assert int(capacity["cpu"]) >= 1
    assert "Allocatable" in cluster.run("describe", "node", node(cluster)).stdout


def test_all_kinds_are_served(cluster: Cluster) -> None:
    served = cluster.run("api-resources", "--no-headers").stdout
    for resource in CUSTOM:
        assert resource.plural in served
        assert resource.kind in cluster.run("explain", f"{resource.plural}.{resource.group}").stdout


def test_the_nodes_topology_is_reported(cluster: Cluster, eventually: Eventually) -> None:
    """The CPUs are those of sysfs; the stand-in kubelet aligns and pins nothing."""
    name = node(cluster)
    eventually(lambda: not cluster.run("get", "node-res-topo", name, ok=False).returncode)
    topology = cluster.get("node-res-topo", name)
    assert topology["metadata"]["ownerReferences"][0]["uid"] == cluster.get("node", name)["metadata"]["uid"]
    assert topology["zones"][0]["name"] == "node-0"
    annotations = {key: json.loads(text) for key, text in topology["metadata"]["annotations"].items()}
    capacity = cluster.get("node", name)["status"]["capacity"]["cpu"]
    assert len(annotations["node.koordinator.sh/cpu-topology"]["detail"]) == int(capacity)
    assert "policy" in annotations["kubelet.koordinator.sh/cpu-manager-policy"], (
        "koordlet read the kubelet's configuration"
    )


SAMPLES: dict[str, dict[str, Any]] = {
    "Reservation": {"spec": {"template": {"spec": {"containers": []}}, "owners": [{"labelSelector": {}}], "ttl": "1h"}},
    "Device": {"spec": {"devices": [{"type": "gpu", "minor": 0, "health": True}]}},
    "ClusterColocationProfile": {"spec": {"qosClass": "BE", "priorityClassName": "koord-batch"}},
    "PodMigrationJob": {"spec": {"podRef": {"namespace": "x", "name": "y"}, "ttl": "5m"}},
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_custom_resources_can_be_created_changed_and_deleted(cluster: Cluster, kind: str) -> None:
    resource = next(r for r in CUSTOM if r.kind == kind)
    name = f"{cluster.namespace}-{kind.lower()}"
    resource_name = f"{resource.plural}.{resource.group}"
    body = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name}, **SAMPLES[kind]}
    try:
        cluster.apply(body)
        stored = cluster.get(resource_name, name)["spec"]
        assert stored.items() >= {k: v for k, v in body["spec"].items() if not isinstance(v, (dict, list))}.items()
        cluster.run("label", resource_name, name, "touched=yes")
        cluster.run("annotate", resource_name, name, "koordinator.sh/note=e2e")
        cluster.run("patch", resource_name, name, "--type=merge", "-p", '{"metadata":{"labels":{"touched":"twice"}}}')
        assert cluster.get(resource_name, name)["metadata"]["labels"]["touched"] == "twice"
        cluster.run("apply", "--server-side", "-f", "-", text=json.dumps(body))
        assert name in cluster.run("get", resource_name, "-o", "name").stdout
    finally:
        cluster.run("delete", resource_name, name, "--ignore-not-found", "--wait", "--timeout=120s")


BAD = {
    "wrong type": ("NodeSLO", {"spec": {"cpuBurstStrategy": {"cpuBurstPercent": "many"}}}, "spec.cpuBurstStrategy"),
    "enum": ("ClusterColocationProfile", {"spec": {"qosClass": "GOLD"}}, "spec.qosClass"),
    "required": ("PodMigrationJob", {"spec": {"podRef": {"name": 7}}}, "spec.podRef.name"),
}


@pytest.mark.parametrize(("kind", "body", "path"), BAD.values(), ids=BAD)
def test_schema_errors_name_the_field(cluster: Cluster, kind: str, body: dict[str, Any], path: str) -> None:
    resource = next(r for r in CUSTOM if r.kind == kind)
    document = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": "bad"}, **body}
    refused = cluster.run("create", "--validate=false", "-f", "-", text=json.dumps(document), ok=False)
    assert refused.returncode != 0
    assert path in refused.stderr
    assert "invalid" in refused.stderr.lower()


def test_a_pod_runs_logs_and_terminates_gracefully(cluster: Cluster, eventually: Eventually) -> None:
    cluster.apply(pod(cluster, "hello", "echo hello from $HOSTNAME; exec sleep 600"))
    cluster.run("wait", "--for=condition=Ready", "pod/hello", "--timeout=150s")
    eventually(lambda: "hello from hello" in cluster.run("logs", "hello").stdout)  # Ready comes before its first output
    runtime = cluster.get("node", node(cluster))["status"]["nodeInfo"]["containerRuntimeVersion"].partition("://")[0]
    (status,) = cluster.get("pod", "hello")["status"]["containerStatuses"]
    assert status["containerID"].startswith(f"{runtime}://")
    assert "QoS Class:" in cluster.run("describe", "pod", "hello").stdout
    # Kubernetes 1.35 shortened the message from "Started container main".
    eventually(lambda: re.search("Container started|Started container", cluster.run("describe", "pod", "hello").stdout))
    watching = cluster.start("get", "pods", "-w", "--no-headers", "--request-timeout=120s")
    assert watching.stdout is not None
    assert "hello" in watching.stdout.readline(), "it has the list, and watches from its version"
    cluster.run("delete", "pod", "hello", "--wait", "--timeout=120s")
    assert any("Terminating" in line for line in watching.stdout)
    watching.terminate()
    watching.communicate()


def test_a_job_like_pod_succeeds_and_a_failing_one_restarts(cluster: Cluster, eventually: Eventually) -> None:
    cluster.apply(
        pod(cluster, "once", "exit 0", restartPolicy="Never"),
        pod(cluster, "again", "exit 3", restartPolicy="OnFailure"),
    )
    cluster.run("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/once", "--timeout=150s")

    def restarted() -> bool:
        statuses = cluster.get("pod", "again")["status"].get("containerStatuses", [])
        return bool(statuses) and statuses[0]["restartCount"] >= 1

    eventually(restarted, 120)
    cluster.run("delete", "pod", "once", "again", "--wait", "--timeout=120s")


def test_scale_conflicts_and_server_side_apply(cluster: Cluster) -> None:
    cluster.run("create", "deployment", "web", f"--image={cluster.image}", "--replicas=2", "--", "sleep", "600")
    cluster.run("scale", "deployment/web", "--replicas=3")
    assert cluster.get("deployment", "web")["spec"]["replicas"] == 3
    ours = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 5, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
                {"name": cluster.image, "image": cluster.image}]}},
        },
    }  # fmt: skip
    refused = cluster.run("apply", "--server-side", "-f", "-", text=json.dumps(ours), ok=False)
    assert refused.returncode != 0
    assert ".spec.replicas" in refused.stderr
    cluster.run("apply", "--server-side", "--force-conflicts", "-f", "-", text=json.dumps(ours))
    assert cluster.get("deployment", "web")["spec"]["replicas"] == 5
    cluster.run("delete", "deployment", "web", "--wait", "--timeout=120s")


def test_auth_can_i_answers(cluster: Cluster) -> None:
    assert cluster.run("auth", "can-i", "create", "pods").stdout.strip() == "yes"
    nobody = cluster.run("auth", "can-i", "delete", "nodes", "--as=nobody", ok=False)
    assert nobody.stdout.strip() == "no"


def test_the_official_client_watches(cluster: Cluster) -> None:
    core = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig)))
    events: list[tuple[str, str]] = []
    listed = core.list_namespaced_config_map(cluster.namespace).metadata.resource_version

    def look() -> None:
        stream = watch.Watch()
        list_arguments = (core.list_namespaced_config_map, cluster.namespace)
        for event in stream.stream(*list_arguments, resource_version=listed, timeout_seconds=120):
            if event["object"].metadata.name == "watched":
                events.append((event["type"], (event["object"].data or {}).get("k", "")))
                if event["type"] == "DELETED":
                    stream.stop()

    thread = threading.Thread(target=look)
    thread.start()
    cluster.run("create", "configmap", "watched", "--from-literal=k=1")
    cluster.run("patch", "configmap", "watched", "--type=merge", "-p", '{"data":{"k":"2"}}')
    cluster.run("delete", "configmap", "watched")
    thread.join(150)
    core.api_client.close()
    assert events == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]


def test_koordlet_reports_every_node_that_has_a_nodemetric(cluster: Cluster, eventually: Eventually) -> None:
    name = node(cluster)

    def fresh() -> dict[str, Any] | None:
        status = cluster.get("nodemetrics.slo.koordinator.sh", name).get("status", {})
        if "updateTime" not in status:
            return None
        age = datetime.now(UTC) - datetime.fromisoformat(status["updateTime"])
        return status if age.total_seconds() < 180 else None

    usage = eventually(fresh, 120)["nodeMetric"]["nodeUsage"]["resources"]
    assert set(usage) >= {"cpu", "memory"}


SERVICE = "while :; do i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); done; sleep 0.002; done"
BURN = "while :; do :; done"


def test_a_victim_gets_an_event_about_its_interference(cluster: Cluster, eventually: Eventually) -> None:
    """An Event on the pod, and an entry in NodeMetric. Other workloads may use the machine: no culprit is checked."""
    victim = pod(cluster, "victim", f"exec taskset -c 0 sh -c '{SERVICE}'")
    victim["metadata"]["labels"]["koordinator.sh/qosClass"] = "LS"
    victim["spec"]["priorityClassName"] = "koord-prod"
    burners = [pod(cluster, f"burner-{i}", f"exec taskset -c 0 sh -c '{BURN}'") for i in range(2)]
    cluster.apply(victim, *burners)
    all_three = ("pods", "-l", "app in (victim,burner-0,burner-1)")
    try:
        cluster.run("wait", "--for=condition=Ready", *all_three, "--timeout=150s")
        selector = "--field-selector=involvedObject.name=victim,reason=InterferenceDetected"
        event = eventually(lambda: cluster.get("events", selector)["items"], 120)[0]
        assert event["type"] == "Warning"
        assert event["source"]["component"] == "koordlet"
        assert "waiting for a CPU" in event["message"]
        assert event["involvedObject"]["fieldPath"] == "spec.containers{main}"

        def told() -> Any:
            status = cluster.get("nodemetric", node(cluster)).get("status", {})
            mine = [p for p in status.get("podsMetric", []) if p["name"] == "victim"]
            entries = [verdict for p in mine for verdict in p.get("extensions", {}).get("interference", [])]
            return (status["extensions"]["interference"], entries) if entries else None

        summary, entries = eventually(told, 180)
        assert {"container", "resource", "cause", "state", "culprit", "confidence"} <= set(entries[0])
        assert set(summary) == {"hurtPods", "interfered", "selfInflicted", "worstCulprits"}
    finally:
        cluster.run("delete", *all_three, "--wait", "--timeout=120s")


def test_a_pod_gets_cpus_of_its_own(cluster: Cluster, eventually: Eventually) -> None:
    """The scheduler chooses a CPU, the kernel confines the container to it, and the next pod gets it again."""

    def pinned(name: str) -> dict[str, Any]:
        look = "while :; do grep Cpus_allowed_list /proc/self/status; sleep 1; done"
        body = pod(cluster, name, look, priorityClassName="koord-prod", schedulerName="koord-scheduler")
        body["metadata"]["labels"]["koordinator.sh/qosClass"] = "LSR"
        del body["spec"]["nodeName"]
        amounts = {"cpu": "1", "memory": "64Mi"}
        body["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        return body

    eventually(lambda: not cluster.run("get", "node-res-topo", node(cluster), ok=False).returncode)
    cpusets = []
    for name in ("pinned", "pinned-again"):
        cluster.apply(pinned(name))
        cluster.run("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=150s")
        annotations = cluster.get("pod", name)["metadata"]["annotations"]
        cpuset = json.loads(annotations["scheduling.koordinator.sh/resource-status"])["cpuset"]
        assert cpuset.isdecimal(), "one CPU"
        assert json.loads(annotations["scheduling.koordinator.sh/resource-spec"]) == {
            "preferredCPUBindPolicy": "FullPCPUs"
        }
        eventually(lambda name=name, cpuset=cpuset: _allowed(cluster, name) == cpuset)
        cluster.run("delete", "pod", name, "--wait", "--timeout=120s")
        cpusets.append(cpuset)
    assert cpusets[0] == cpusets[1], "the CPU was released"


def _allowed(cluster: Cluster, name: str) -> str:
    """The CPUs that the container's last line of output names."""
    lines = cluster.run("logs", name).stdout.splitlines()
    return lines[-1].partition(":")[2].strip() if lines else ""


def test_a_pod_gets_gpus_that_are_close_to_each_other(cluster: Cluster, eventually: Eventually) -> None:
    """An emulated machine: 8 GPUs and 4 NICs on 4 NUMA nodes. The scheduler chooses, the manager publishes the amounts,
    the container sees its GPUs in its environment, and the next pod gets them again."""
    name = node(cluster)
    whole = {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "80Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }

    def place(numa: int) -> dict[str, Any]:
        return {"socketID": -1, "nodeID": numa, "pcieID": f"pci-{numa}", "busID": f"0000:{numa}0:00.0"}

    gpus = [
        {"type": "gpu", "minor": m, "id": f"GPU-{m}", "health": True, "resources": whole, "topology": place(m // 2)}
        for m in range(8)
    ]
    nics = [
        {
            "type": "rdma", "minor": m, "id": f"0000:{m}1:00.0", "health": True,
            "resources": {"koordinator.sh/rdma": "100"}, "topology": place(m),
        }
        for m in range(4)
    ]  # fmt: skip
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": name}}

    def training(number: int, requests: dict[str, str]) -> dict[str, Any]:
        look = "while :; do echo GPUs: $NVIDIA_VISIBLE_DEVICES; sleep 1; done"
        body = pod(cluster, f"training-{number}", look, priorityClassName="koord-prod", schedulerName="koord-scheduler")
        body["metadata"]["labels"] = {"app": "training", "koordinator.sh/qosClass": "LS"}
        joint = {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
        body["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-joint-allocate": json.dumps(joint)}
        del body["spec"]["nodeName"]
        amounts = {"cpu": "50m", "memory": "32Mi", **requests}
        body["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        return body

    def devices(number: int) -> dict[str, list[int]]:
        annotations = cluster.get("pod", f"training-{number}")["metadata"]["annotations"]
        allocated = json.loads(annotations["scheduling.koordinator.sh/device-allocated"])
        return {kind: [device["minor"] for device in listed] for kind, listed in allocated.items()}

    def devices_in(number: int) -> list[int]:
        lines = cluster.run("logs", f"training-{number}").stdout.splitlines()
        minors = lines[-1].partition(":")[2].strip() if lines else ""
        return [int(minor) for minor in minors.split(",") if minor]

    def published() -> bool:
        allocatable = cluster.get("node", name)["status"]["allocatable"]
        return (allocatable.get("koordinator.sh/gpu"), allocatable.get("koordinator.sh/rdma")) == ("800", "400")

    pair = {"koordinator.sh/gpu": "200", "koordinator.sh/rdma": "10"}
    try:
        cluster.apply({**kind, "spec": {"devices": [*gpus, *nics]}})
        eventually(published, 120)
        cluster.apply(training(0, {"koordinator.sh/gpu": "50", "koordinator.sh/rdma": "10"}))
        cluster.run("wait", "--for=condition=Ready", "pod/training-0", "--timeout=150s")
        cluster.apply(training(1, pair))
        cluster.run("wait", "--for=condition=Ready", "pod/training-1", "--timeout=150s")
        assert devices(0) == {"gpu": [0], "rdma": [0]}
        assert devices(1) == {"gpu": [2, 3], "rdma": [1]}
        eventually(lambda: (devices_in(0), devices_in(1)) == ([0], [2, 3]))
        cluster.run("delete", "pod", "training-1", "--wait", "--timeout=120s")
        cluster.apply(training(2, pair))
        cluster.run("wait", "--for=condition=Ready", "pod/training-2", "--timeout=150s")
        assert devices(2) == {"gpu": [2, 3], "rdma": [1]}, "the devices were released"
        eventually(lambda: devices_in(2) == [2, 3])
    finally:
        cluster.run("delete", "pods", "-l", "app=training", "--wait", "--timeout=120s")
        cluster.run("delete", "devices.scheduling.koordinator.sh", name, "--ignore-not-found")


def test_a_profile_makes_pods_best_effort_and_invalid_pods_are_rejected(
    cluster: Cluster, eventually: Eventually
) -> None:
    """The effect of koord-manager's webhooks in kubectl. No pod runs: the node may have no overcommitted resources."""
    profile = {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": cluster.namespace},
        "spec": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
            "selector": {"matchLabels": {"colocate": "yes"}},
            "qosClass": "BE",
            "priorityClassName": "koord-batch",
        },
    }
    plain = pod(cluster, "colocated", "true", priorityClassName="")
    plain["metadata"]["labels"] = {"colocate": "yes"}
    plain["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m", "memory": "64Mi"}}

    def tried(obj: dict[str, Any]) -> dict[str, Any]:
        output = cluster.run("create", "--dry-run=server", "-o", "json", "-f", "-", text=json.dumps(obj)).stdout
        admitted: dict[str, Any] = json.loads(output)
        return admitted

    try:
        cluster.apply(profile)
        eventually(lambda: tried(plain)["metadata"]["labels"].get("koordinator.sh/qosClass") == "BE")
        spec = tried(plain)["spec"]
        assert (spec["priorityClassName"], spec["priority"]) == ("koord-batch", 5000)
        batch_resources = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}
        assert spec["containers"][0]["resources"]["requests"] == batch_resources
    finally:
        cluster.run("delete", "clustercolocationprofile", cluster.namespace, "--ignore-not-found")
    wrong = pod(cluster, "wrong", "true", priorityClassName="koord-prod")
    refused = cluster.run("create", "-f", "-", text=json.dumps(wrong), ok=False)
    assert refused.returncode != 0
    assert "koordinator.sh/qosClass=BE and priorityClass=koord-prod cannot be used in combination" in refused.stderr


IS_REAL = "KUBECONFIG" in os.environ
"""Whether the cluster is a real Kubernetes: the embedded API server does not serve resource claims."""
DOCUMENTED = [
    (str(block), document)
    for block in blocks()
    for document in documents(block)
    if document["kind"] != "Kustomization"  # a file of kubectl, not an object
    and (IS_REAL or not document["apiVersion"].startswith("resource.k8s.io/"))
]
NAMESPACES = sorted(
    {namespace for _, document in DOCUMENTED if (namespace := document["metadata"].get("namespace"))}
    - {"koordinator-system"}
)


@pytest.fixture(scope="module")
def namespaces(cluster: Cluster) -> Iterator[None]:
    for namespace in NAMESPACES:
        cluster.run("create", "namespace", namespace)
    yield
    cluster.run("delete", "namespace", "--wait=false", *NAMESPACES)


@pytest.mark.parametrize(("place", "document"), DOCUMENTED, ids=[f"{at}-{item['kind']}" for at, item in DOCUMENTED])
def test_an_object_of_the_documentation_is_accepted(
    cluster: Cluster, namespaces: None, place: str, document: dict[str, Any]
) -> None:
    """By API server and webhooks. Not by the suites of tests/kubernetes."""
    namespace = document["metadata"].get("namespace", cluster.namespace)
    done = cluster.run(
        "apply", "--namespace", namespace, "--dry-run=server", "--validate=strict", "-f", "-", text=json.dumps(document)
    )
    assert "(server dry run)" in done.stdout, place
