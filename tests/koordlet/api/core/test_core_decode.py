"""Realistic objects are decoded into the trimmed core kinds."""

import json
from typing import Any

import pytest

from koordlet.api import registry
from koordlet.api.core import Node, Pod, Secret, is_ready
from koordlet.api.encoding import wire
from koordlet.api.encoding.quantity import Quantity

POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {
        "name": "web-0",
        "namespace": "prod",
        "uid": "b0b3e6a2-5c7f-4a2e-9a53-0c3d0e5b6a11",
        "resourceVersion": "812",
        "creationTimestamp": "2026-07-01T08:00:00Z",
        "labels": {"koordinator.sh/qosClass": "LS"},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "u", "controller": True}
        ],
        "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "busybox",
                "command": ["sh", "-c"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": 1}},
                "ports": [{"containerPort": 80, "hostIP": "10.0.0.1"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "livenessProbe": {"exec": {"command": ["true"]}},
            }
        ],
        "initContainers": [{"name": "side", "restartPolicy": "Always"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}}],
        "nodeName": "n1",
        "hostPID": True,
        "priority": 9500,
        "tolerations": [{"operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
                }
            }
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "schedulingGates": [{"name": "g"}],
        "overhead": {"memory": "64Mi"},
    },
    "status": {
        "phase": "Running",
        "qosClass": "Burstable",
        "podIP": "10.1.0.2",
        "podIPs": [{"ip": "10.1.0.2"}],
        "hostIP": "10.0.0.1",
        "startTime": "2026-07-01T08:00:01Z",
        "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None}],
        "containerStatuses": [
            {
                "name": "main",
                "containerID": "containerd://abc",
                "imageID": "sha256:1",
                "ready": True,
                "started": True,
                "restartCount": 2,
                "state": {"running": {"startedAt": "2026-07-01T08:00:02Z"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "containerID": "containerd://x"}},
            }
        ],
    },
}


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lenient reader goes through dicts; the hot path must not need it."""

    def refuse(*args: object, **kwargs: Any) -> None:
        raise AssertionError("fell back to the lenient reader")

    monkeypatch.setattr(wire, "decode", refuse)


def test_pod(no_fallback: None) -> None:
    pod = wire.json_decoder(Pod).decode(json.dumps(POD).encode())
    main = pod.spec.containers[0]
    assert pod.metadata.key == "prod/web-0"
    assert main.resources.requests["cpu"] == Quantity("500m")
    assert main.resources.limits["cpu"] == Quantity("1")
    assert [variable.value for variable in main.env] == ["1", ""]
    assert main.ports[0].host_ip == "10.0.0.1"
    assert pod.spec.init_containers[0].is_sidecar
    assert (pod.spec.host_pid, pod.spec.host_network, pod.spec.priority) == (True, False, 9500)
    status = pod.status.container_statuses[0]
    assert (status.container_id, status.image_id, status.restart_count) == ("containerd://abc", "sha256:1", 2)
    assert status.state.running.started_at.unix == 1782892802
    assert status.last_state.terminated.container_id == "containerd://x"
    assert pod.status.condition("Ready").status == "True"
    assert pod.status.condition("Initialized") is None
    assert pod.status.pod_ips[0].ip == pod.status.pod_ip == "10.1.0.2"


def test_decoded_objects_are_encoded_unchanged() -> None:
    """Encoding drops what we do not read, and nothing else."""
    dropped = wire.encode(wire.decode(json.dumps(POD).encode(), Pod))
    again = json.loads(dropped)
    assert "managedFields" not in again["metadata"]
    assert "livenessProbe" not in again["spec"]["containers"][0]
    assert again["spec"]["topologySpreadConstraints"] == POD["spec"]["topologySpreadConstraints"]  # type: ignore[index]
    assert again["spec"]["affinity"] == POD["spec"]["affinity"]  # type: ignore[index]
    assert again["metadata"]["ownerReferences"] == POD["metadata"]["ownerReferences"]  # type: ignore[index]
    assert again["status"]["containerStatuses"][0]["lastState"] == {
        "terminated": {"exitCode": 137, "reason": "OOMKilled", "containerID": "containerd://x"}
    }


def test_node(no_fallback: None) -> None:
    node = wire.json_decoder(Node).decode(
        json.dumps({
            "metadata": {"name": "n1"},
            "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "2", "memory": "24Gi", "kubernetes.io/batch-cpu": "1500"},
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-07-01T08:00:00Z"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "nodeInfo": {"machineID": "m", "kernelVersion": "6.18"},
                "images": [{"names": ["a"]}],
            },
        }).encode()
    )  # fmt: skip
    assert is_ready(node)
    assert node.status.daemon_endpoints.kubelet_endpoint.port == 10250
    assert node.status.node_info.machine_id == "m"
    assert node.spec.taints[0].effect == "NoSchedule"
    assert str(node.status.allocatable["kubernetes.io/batch-cpu"]) == "1500"


def test_a_node_without_conditions_is_not_ready() -> None:
    assert not is_ready(Node())


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0].name"),
        ({"spec": {"containers": {}}}, "spec.containers"),
        ({"spec": {"priority": "high"}}, "spec.priority"),
        ({"spec": {"overhead": {"cpu": "1 core"}}}, "spec.overhead[cpu]"),
        ({"metadata": {"labels": {"a": 1}}}, "metadata.labels[a]"),
        ({"metadata": {"creationTimestamp": "yesterday"}}, "metadata.creationTimestamp"),
        ({"status": {"containerStatuses": [{"name": "c", "restartCount": 1.5}]}},
         "status.containerStatuses[0].restartCount"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_malformed_pods_name_the_field(damage: dict[str, Any], path: str) -> None:
    with pytest.raises(wire.WireError) as caught:
        wire.json_decoder(Pod).decode(json.dumps(damage).encode(), where="pod prod/web-0")
    assert caught.value.path == path
    assert str(caught.value).startswith("pod prod/web-0: ")


@pytest.mark.parametrize("resource", [*registry.BUILTIN, *registry.CUSTOM], ids=lambda r: f"{r.kind}-{r.version}")
def test_unknown_fields_are_ignored(resource: registry.ApiResource) -> None:
    decoder = wire.json_decoder(resource.type)
    required = {
        "Reservation": {"spec": {"template": {}, "owners": []}},
        "PodMigrationJob": {"spec": {"podRef": {}}},
        "DrainNode": {"spec": {"nodeName": "n1"}},
        "DrainNodeGroup": {"spec": {"nodeSelector": {}}},
        "ClusterNetworkTopology": {"spec": {"networkTopologySpec": []}},
        "ElasticQuotaProfile": {"spec": {"quotaName": "q", "nodeSelector": {}}},
        "NodeResourceTopology": {"zones": []},
        "Recommendation": {"spec": {"target": {"type": "workload"}}},
        "PriorityClass": {"value": 1},
    }.get(resource.kind, {})
    thing = decoder.decode(
        json.dumps({**required, "metadata": {"name": "x", "later": [1]}, "of-tomorrow": {"a": None}}).encode()  # type: ignore[dict-item]
    )
    assert (thing.kind, thing.api_version, thing.metadata.name) == (resource.kind, resource.api_version, "x")
    assert json.loads(wire.encode(thing))["kind"] == resource.kind


def test_secrets_stay_out_of_logs() -> None:
    secret: Secret = wire.convert(
        {"metadata": {"name": "s", "namespace": "n"}, "data": {"password": "aHVudGVy"}}, Secret
    )
    assert repr(secret) == str(secret) == "Secret(n/s)"
