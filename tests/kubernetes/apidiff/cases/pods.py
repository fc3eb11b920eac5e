# ruff: noqa: E501
"""Pods: defaults, validation, subresources."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.apidiff.cases.objects import CONTAINER, config_map, core, group, namespace, pod, workload
from tests.kubernetes.apidiff.exchange import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, TABLE, Call
from tests.kubernetes.apidiff.servers import TENANT

NS = namespace("pods")
PODS = core(NS, "pods")
DEPLOYMENTS = group("apps/v1", NS, "deployments")


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{**CONTAINER, **fields}]}


INVALID: dict[str, dict[str, Any]] = {
    "no containers": {"containers": []},
    "no image": {"containers": [{"name": "c"}]},
    "no container name": {"containers": [{"image": "i"}]},
    "bad container name": container(name="A"),
    "the same name twice": {"containers": [CONTAINER, CONTAINER]},
    "bad restart policy": {"restartPolicy": "Sometimes"},
    "bad DNS policy": {"dnsPolicy": "Some"},
    "bad pull policy": container(imagePullPolicy="Some"),
    "bad quantity": container(resources={"requests": {"cpu": "x"}}),
    "negative quantity": container(resources={"requests": {"cpu": "-1"}}),
    "request over limit": container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
    "extended resource unequal": container(resources={"requests": {"a.io/b": "1"}, "limits": {"a.io/b": "2"}}),
    "extended request only": container(resources={"requests": {"a.io/b": "1"}}),
    "fractional extended resource": container(resources={"limits": {"a.io/b": "500m"}}),
    "unknown resource": container(resources={"limits": {"gpu": "1"}}),
    "fractional batch cpu": container(resources={"limits": {"kubernetes.io/batch-cpu": "1500m"}}),
    "bad port": container(ports=[{"containerPort": 0}]),
    "bad port name": container(ports=[{"containerPort": 1, "name": "A_very_long_name_of_port"}]),
    "bad env name": container(env=[{"name": "a=b", "value": "c"}]),
    "two sources": container(env=[{"name": "A", "value": "c", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]),
    "bad field path": container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]),
    "mount without volume": container(volumeMounts=[{"name": "v", "mountPath": "/x"}]),
    "two volumes of a name": {"volumes": [{"name": "v"}, {"name": "v"}]},
    "two volume sources": {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]},
    "bad host path type": {"volumes": [{"name": "v", "hostPath": {"path": "/", "type": "X"}}]},
    "bad toleration": {"tolerations": [{"key": "a", "operator": "Bad"}]},
    "toleration with value": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
    "bad node selector": {"nodeSelector": {"a b": "c"}},
    "bad affinity operator": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Bad"}]}]}}}},
    "affinity without topology": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {}}]}}},
    "bad spread": {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "X"}]},
    "negative grace period": {"terminationGracePeriodSeconds": -1},
    "zero deadline": {"activeDeadlineSeconds": 0},
    "missing priority class": {"priorityClassName": "nothing"},
    "priority by number": {"priority": 7},
    "missing service account": {"serviceAccountName": "nothing"},
    "bad node name": {"nodeName": "A_b"},
    "bad host name": {"hostname": "A_b"},
    "bad probe": container(livenessProbe={"periodSeconds": -1}),
    "empty probe": container(livenessProbe={}),
    "two handlers": container(livenessProbe={"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}),
    "liveness threshold": container(livenessProbe={"exec": {"command": ["a"]}, "successThreshold": 2}),
    "empty hook": container(lifecycle={"preStop": {}}),
    "scheduling gate twice": {"schedulingGates": [{"name": "a.io/a"}, {"name": "a.io/a"}]},
    "gate with a node": {"schedulingGates": [{"name": "a.io/a"}], "nodeName": "n"},
    "bad overhead": {"overhead": {"cpu": "1"}},
    "missing runtime class": {"runtimeClassName": "nothing"},
    "bad security context": {"securityContext": {"runAsUser": -1}},
    "sysctl": {"securityContext": {"sysctls": [{"name": "A B", "value": "1"}]}},
    "ephemeral at creation": {"ephemeralContainers": [{"name": "e", "image": "i"}]},
    "wrong type": {"containers": "x"},
    "wrong inner type": container(command="x"),
}  # fmt: skip
VALID: dict[str, dict[str, Any]] = {
    "limits only": container(resources={"limits": {"cpu": "1", "memory": "1Gi"}}),
    "canonical quantities": container(resources={"requests": {"cpu": "1000m", "memory": "1024Ki"}}),
    "batch resources": container(resources={"limits": {"kubernetes.io/batch-cpu": "1k",
                                                       "kubernetes.io/batch-memory": "1Gi"}}),
    "probes": container(livenessProbe={"httpGet": {"port": 80}}, readinessProbe={"exec": {"command": ["a"]}},
                        startupProbe={"tcpSocket": {"port": "a"}}, ports=[{"containerPort": 80, "name": "a"}]),
    "grpc probe": container(livenessProbe={"grpc": {"port": 80}}),
    "hooks": container(lifecycle={"preStop": {"httpGet": {"port": 80}}, "postStart": {"sleep": {"seconds": 1}}}),
    "host network": {"hostNetwork": True, **container(ports=[{"containerPort": 80}])},
    "volumes": {"volumes": [{"name": "a"}, {"name": "b", "configMap": {"name": "c"}}, {"name": "d", "secret": {
        "secretName": "e"}}, {"name": "f", "hostPath": {"path": "/"}}, {"name": "g", "downwardAPI": {"items": [
            {"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]}}, {"name": "h", "projected": {"sources": [
                {"serviceAccountToken": {"path": "t"}}, {"downwardAPI": {"items": [
                    {"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}, {"name": "i", "image": {
                        "reference": "r"}}, {"name": "j", "ephemeral": {"volumeClaimTemplate": {"spec": {
                            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}}}}},
                    {"name": "k", "iscsi": {"targetPortal": "1.1.1.1", "iqn": "iqn.2001-04.com.example:a", "lun": 0}}]},
    "init and sidecar": {"initContainers": [{"name": "i", "image": "i:latest"},
                                             {"name": "s", "image": "i@sha256:" + "0" * 64, "restartPolicy": "Always"}]},
    "spread": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
                                              "labelSelector": {"matchLabels": {"app": "a"}}}]},
    "affinity": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}]}}},
    "environment": container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                                  {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                                  {"name": "C"}], envFrom=[{"configMapRef": {"name": "x"}}]),
    "tolerations": {"tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoExecute",
                                                             "tolerationSeconds": 5}]},
    "system class": {"priorityClassName": "system-node-critical"},
    "gates": {"schedulingGates": [{"name": "a.io/a"}]},
    "no token": {"automountServiceAccountToken": False},
    "claims": {"resourceClaims": [{"name": "a", "resourceClaimName": "b"}]},
    "zero values": {"hostNetwork": False, "hostPID": False, "nodeName": "", "tolerations": [], "nodeSelector": {},
                    "terminationGracePeriodSeconds": 0, **container(command=[], stdin=False, workingDir="")},
    "nulls": {"nodeSelector": None, "affinity": None, "restartPolicy": None, **container(command=None, env=None)},
    "security context": {"securityContext": {"runAsUser": 5, "fsGroup": 6, "seccompProfile": {
        "type": "RuntimeDefault"}}, **container(securityContext={"privileged": True, "capabilities": {
            "drop": ["ALL"]}, "procMount": "Default"})},
}  # fmt: skip
BINDING = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": NS}}
SCALE = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d", "namespace": NS},
         "spec": {"replicas": 3}}  # fmt: skip
STATUS = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.9",
                     "podIPs": [{"ip": "10.0.0.9"}], "hostIP": "10.0.0.1"}}  # fmt: skip
CALLS = [
    *(Call(f"invalid: {name}", "POST", PODS, pod("bad", **spec)) for name, spec in INVALID.items()),
    *(Call(f"valid: {name}", "POST", PODS, pod(name.replace(" ", "-"), **spec)) for name, spec in VALID.items()),
    Call("create", "POST", PODS, pod("p")),
    Call("bind to nothing", "POST", PODS + "/p/binding", {**BINDING, "target": {}}),
    Call("bind to a pod", "POST", PODS + "/p/binding", {**BINDING, "target": {"kind": "Pod", "name": "x"}}),
    Call("bind missing", "POST", PODS + "/missing/binding", {**BINDING, "metadata": {"name": "missing"}}),
    Call("bind another name", "POST", PODS + "/p/binding", {**BINDING, "metadata": {"name": "q"}}),
    Call("bind with another uid", "POST", PODS + "/p/binding", {**BINDING, "metadata": {"name": "p", "uid": "x"}}),
    Call("bind dry", "POST", PODS + "/p/binding?dryRun=All", BINDING),
    Call("bind", "POST", PODS + "/p/binding",
         {**BINDING, "metadata": {"name": "p", "annotations": {"a": "b"}, "labels": {"l": "m"}}}),
    Call("bind again", "POST", PODS + "/p/binding", BINDING),
    Call("bind gated", "POST", PODS + "/gates/binding", {**BINDING, "metadata": {"name": "gates"}}),
    Call("bind by collection", "POST", core(NS, "bindings"), {**BINDING, "metadata": {"name": "spread"}}),
    Call("get bound", "GET", PODS + "/p"),
    Call("status", "PATCH", PODS + "/p/status", STATUS, STRATEGIC_PATCH),
    Call("status with spec", "PATCH", PODS + "/p/status", {"spec": {"nodeName": "n2"}}, MERGE_PATCH),
    Call("status with labels", "PATCH", PODS + "/p/status", {"metadata": {"labels": {"s": "t"}}}, MERGE_PATCH),
    Call("status by put", "PUT", PODS + "/p/status", {**pod("p"), **STATUS}),
    Call("status in the main resource", "PATCH", PODS + "/p", {"status": {"phase": "Failed"}}, MERGE_PATCH),
    Call("get status", "GET", PODS + "/p/status"),
    Call("post status", "POST", PODS + "/p/status", pod("p")),
    Call("delete status", "DELETE", PODS + "/p/status"),
    Call("table", "GET", PODS + "/p", headers={"Accept": TABLE}),
    Call("change the image", "PATCH", PODS + "/p", [{"op": "replace", "path": "/spec/containers/0/image", "value": "x"}],
         JSON_PATCH),
    Call("change the node", "PATCH", PODS + "/p", {"spec": {"nodeName": "other"}}, MERGE_PATCH),
    Call("change the grace period", "PATCH", PODS + "/p", {"spec": {"terminationGracePeriodSeconds": 3}}, MERGE_PATCH),
    Call("set a deadline", "PATCH", PODS + "/p", {"spec": {"activeDeadlineSeconds": 30}}, MERGE_PATCH),
    Call("ephemeral container", "PATCH", PODS + "/p/ephemeralcontainers",
         {"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}}, STRATEGIC_PATCH),
    Call("ephemeral container of a taken name", "PATCH", PODS + "/p/ephemeralcontainers",
         {"spec": {"ephemeralContainers": [{"name": "c", "image": "i"}]}}, STRATEGIC_PATCH),
    Call("resize", "PATCH", PODS + "/p/resize", {"spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}, STRATEGIC_PATCH),
    Call("get resize", "GET", PODS + "/p/resize"),
    Call("log of an absent node", "GET", PODS + "/p/log"),
    Call("log of an unbound pod", "GET", PODS + "/probes/log"),
    Call("log of a missing pod", "GET", PODS + "/missing/log"),
    *(Call(f"{name} {where}", "POST", f"{PODS}/{pod_name}/{name}")
      for name in ("exec", "attach", "portforward")
      for where, pod_name in (("at an absent node", "p"), ("of an unbound pod", "probes"), ("of a missing pod", "no"))),
    Call("exec by get", "GET", PODS + "/probes/exec?command=ls"),
    Call("exec by put", "PUT", PODS + "/probes/exec", {}),
    Call("exec by patch", "PATCH", PODS + "/probes/exec", {}, MERGE_PATCH),
    Call("exec by delete", "DELETE", PODS + "/probes/exec"),
    Call("exec of an unknown container", "POST", PODS + "/probes/exec?container=x"),
    Call("create with an init container", "POST", PODS, pod("two", initContainers=[{**CONTAINER, "name": "i"}],
         containers=[CONTAINER, {**CONTAINER, "name": "d"}])),
    Call("exec without a container", "POST", PODS + "/two/exec"),
    Call("attach without a container", "GET", PODS + "/two/attach"),
    Call("port-forward to no port", "POST", PODS + "/probes/portforward?ports=x"),
    Call("exec without a right", "POST", PODS + "/probes/exec", token=TENANT),
    Call("exec by get without a right", "GET", PODS + "/probes/exec", token=TENANT),
    Call("evict dry", "POST", PODS + "/p/eviction?dryRun=All", EVICTION),
    Call("evict missing", "POST", PODS + "/missing/eviction", {**EVICTION, "metadata": {"name": "missing"}}),
    Call("evict another name", "POST", PODS + "/p/eviction", {**EVICTION, "metadata": {"name": "q"}}),
    Call("budget", "POST", group("policy/v1", NS, "poddisruptionbudgets"), {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}),
    Call("evict against the budget", "POST", PODS + "/p/eviction", EVICTION),
    Call("drop the budget", "DELETE", group("policy/v1", NS, "poddisruptionbudgets", "b")),
    Call("evict", "POST", PODS + "/p/eviction", EVICTION),
    Call("get evicted", "GET", PODS + "/p"),
    Call("table of evicted", "GET", PODS + "/p", headers={"Accept": TABLE}),
    Call("bind evicted", "POST", PODS + "/p/binding", BINDING),
    Call("delete at once", "DELETE", PODS + "/p", {"gracePeriodSeconds": 0}),
    Call("delete pending", "DELETE", PODS + "/probes"),
    Call("delete with a negative grace", "DELETE", PODS + "/hooks", {"gracePeriodSeconds": -1}),
    Call("create a deployment", "POST", DEPLOYMENTS, workload("Deployment", "d")),
    Call("get scale", "GET", DEPLOYMENTS + "/d/scale"),
    Call("put scale", "PUT", DEPLOYMENTS + "/d/scale", SCALE),
    Call("put scale of a stale version", "PUT", DEPLOYMENTS + "/d/scale",
         {**SCALE, "metadata": {**SCALE["metadata"], "resourceVersion": "1"}}),  # type: ignore[dict-item]
    Call("patch scale", "PATCH", DEPLOYMENTS + "/d/scale", {"spec": {"replicas": 2}}, MERGE_PATCH),
    Call("patch scale negative", "PATCH", DEPLOYMENTS + "/d/scale", {"spec": {"replicas": -2}}, MERGE_PATCH),
    Call("patch scale strategically", "PATCH", DEPLOYMENTS + "/d/scale", {"spec": {"replicas": 1}}, STRATEGIC_PATCH),
    Call("scale of missing", "GET", DEPLOYMENTS + "/missing/scale"),
    Call("get scaled", "GET", DEPLOYMENTS + "/d"),
    Call("deployment without selector", "POST", DEPLOYMENTS,
         {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "e"}, "spec": {}}),
    Call("deployment with another selector", "POST", DEPLOYMENTS,
         workload("Deployment", "e", selector={"matchLabels": {"app": "b"}})),
    Call("change the selector", "PATCH", DEPLOYMENTS + "/d", {"spec": {"selector": {"matchLabels": {"app": "b"}}}},
         MERGE_PATCH),
    Call("negative replicas", "PATCH", DEPLOYMENTS + "/d", {"spec": {"replicas": -1}}, MERGE_PATCH),
    Call("bad rolling update", "PATCH", DEPLOYMENTS + "/d",
         {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}}, MERGE_PATCH),
    Call("finalize a pod", "PUT", PODS + "/hooks/finalize", pod("hooks")),
    Call("config map status", "GET", core(NS, "configmaps", "x/status")),
    Call("create a config map", "POST", core(NS, "configmaps"), config_map("x")),
    Call("status of a kind without", "GET", core(NS, "configmaps", "x/status")),
]  # fmt: skip
