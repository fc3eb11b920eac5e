"""One small object of each built-in kind: the fields that the server fills in, and its table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kubernetes.apidiff.cases.objects import namespace, pod, template, workload
from tests.kubernetes.apidiff.exchange import TABLE, Call

NS = namespace("kinds")
Json = dict[str, Any]
RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
HOOK = {
    "name": "a.b.io",
    "clientConfig": {"url": "https://127.0.0.1:1/"},
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
    "failurePolicy": "Ignore",
    "rules": [{"apiGroups": ["none.io"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}],
}

# (apiVersion, resource, kind, body without identity); cluster-scoped ones are marked by a leading slash.
OBJECTS: tuple[tuple[str, str, str, Json], ...] = (
    ("v1", "configmaps", "ConfigMap", {"binaryData": {"a": "AAEC"}}),
    ("v1", "endpoints", "Endpoints", {"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]}),
    ("v1", "events", "Event", {"involvedObject": {"kind": "Pod", "name": "p", "namespace": NS}, "reason": "R",
                               "message": "m", "type": "Normal", "source": {"component": "c"}, "count": 1}),
    ("v1", "limitranges", "LimitRange", {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}}),
    ("v1", "/nodes", "Node", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
                              "status": {"capacity": {"cpu": "4", "memory": "8Gi"}}}),
    ("v1", "persistentvolumeclaims", "PersistentVolumeClaim",
     {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
    ("v1", "/persistentvolumes", "PersistentVolume",
     {"spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}}),
    ("v1", "podtemplates", "PodTemplate", {"template": template()}),
    ("v1", "replicationcontrollers", "ReplicationController",
     {"spec": {"selector": {"app": "a"}, "template": template()}}),
    ("v1", "resourcequotas", "ResourceQuota", {"spec": {"hard": {"secrets": "10"}}}),
    ("v1", "secrets", "Secret", {"stringData": {"a": "b"}, "data": {"c": "ZA=="}}),
    ("v1", "serviceaccounts", "ServiceAccount", {}),
    ("v1", "services", "Service", {"spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]}}),
    ("v1", "/namespaces", "Namespace", {}),
    ("admissionregistration.k8s.io/v1", "/mutatingwebhookconfigurations", "MutatingWebhookConfiguration",
     {"webhooks": [HOOK]}),
    ("admissionregistration.k8s.io/v1", "/validatingwebhookconfigurations", "ValidatingWebhookConfiguration",
     {"webhooks": [HOOK]}),
    ("apps/v1", "controllerrevisions", "ControllerRevision", {"revision": 1, "data": {"a": 1}}),
    ("apps/v1", "daemonsets", "DaemonSet", {"spec": workload("DaemonSet", "x")["spec"]}),
    ("apps/v1", "deployments", "Deployment", {"spec": workload("Deployment", "x")["spec"]}),
    ("apps/v1", "replicasets", "ReplicaSet", {"spec": workload("ReplicaSet", "x")["spec"]}),
    ("apps/v1", "statefulsets", "StatefulSet", {"spec": workload("StatefulSet", "x", serviceName="s")["spec"]}),
    ("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler",
     {"spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}}}),
    ("batch/v1", "cronjobs", "CronJob",
     {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template(restartPolicy="Never")}}}}),
    ("batch/v1", "jobs", "Job", {"spec": {"template": template(restartPolicy="Never")}}),
    ("coordination.k8s.io/v1", "leases", "Lease", {"spec": {"holderIdentity": "a", "leaseDurationSeconds": 5}}),
    ("discovery.k8s.io/v1", "endpointslices", "EndpointSlice",
     {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]}),
    ("events.k8s.io/v1", "events", "Event",
     {"eventTime": "2024-01-01T00:00:00.000000Z", "reportingController": "c.io/c", "reportingInstance": "c-1",
      "action": "A", "reason": "R", "type": "Normal", "note": "n", "regarding": {"kind": "Pod", "name": "p",
                                                                                 "namespace": NS}}),
    ("networking.k8s.io/v1", "ingresses", "Ingress",
     {"spec": {"rules": [{"host": "a.io", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {
         "service": {"name": "s", "port": {"number": 80}}}}]}}]}}),
    ("networking.k8s.io/v1", "/ingressclasses", "IngressClass", {"spec": {"controller": "a.io/b"}}),
    ("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", {"spec": {"podSelector": {}}}),
    ("node.k8s.io/v1", "/runtimeclasses", "RuntimeClass", {"handler": "h"}),
    ("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget",
     {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}),
    ("rbac.authorization.k8s.io/v1", "/clusterrolebindings", "ClusterRoleBinding",
     {"roleRef": {"kind": "ClusterRole", "name": "view"}, "subjects": [{"kind": "User", "name": "u"}]}),
    ("rbac.authorization.k8s.io/v1", "/clusterroles", "ClusterRole", {"rules": RULES}),
    ("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding",
     {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x"},
      "subjects": [{"kind": "ServiceAccount", "name": "default"}, {"kind": "Group", "name": "g"}]}),
    ("rbac.authorization.k8s.io/v1", "roles", "Role", {"rules": RULES}),
    ("scheduling.k8s.io/v1", "/priorityclasses", "PriorityClass", {"value": 5}),
    ("storage.k8s.io/v1", "/csidrivers", "CSIDriver", {"spec": {}}),
    ("storage.k8s.io/v1", "/csinodes", "CSINode", {"spec": {"drivers": []}}),
    ("storage.k8s.io/v1", "/storageclasses", "StorageClass", {"provisioner": "a.io/b"}),
    ("storage.k8s.io/v1", "/volumeattachments", "VolumeAttachment",
     {"spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}),
    ("v1", "pods", "Pod", pod("x")),
)  # fmt: skip


def path(api_version: str, resource: str) -> str:
    root = "/apis/" if "/" in api_version else "/api/"
    return f"{root}{api_version}{resource}" if resource[0] == "/" else f"{root}{api_version}/namespaces/{NS}/{resource}"


def calls() -> Iterator[Call]:
    for api_version, resource, kind, body in OBJECTS:
        name = f"{kind} {api_version}"
        meta = {**body.get("metadata", {}), "name": "x"}
        if kind == "Namespace":
            meta["name"] = NS + "-x"
        where = path(api_version, resource)
        obj = {**body, "apiVersion": api_version, "kind": kind, "metadata": meta}
        yield Call(f"create {name}", "POST", where, obj)
        yield Call(f"get {name} as a table", "GET", f"{where}/{meta['name']}", headers={"Accept": TABLE})
        yield Call(f"create {name} empty", "POST", where,
                   {"apiVersion": api_version, "kind": kind, "metadata": {"name": "empty"}})  # fmt: skip
        yield Call(f"delete {name} empty", "DELETE", f"{where}/empty")
        yield Call(f"label {name}", "PATCH", f"{where}/{meta['name']}", {"metadata": {"labels": {"l": "1"}}},
                   "application/merge-patch+json")  # fmt: skip
        yield Call(f"delete {name}", "DELETE", f"{where}/{meta['name']}")


def api_service_calls() -> Iterator[Call]:
    """APIServices have the names of their versions."""
    where = path("apiregistration.k8s.io/v1", "/apiservices")
    spec = {"group": "a.io", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}
    bodies = {
        "local": spec,
        "of a Service": {**spec, "service": {"namespace": NS, "name": "s"}, "insecureSkipTLSVerify": True},
        "without a version": {"group": "a.io"},
        "of another name": {**spec, "group": "b.io"},
        "of no group": {**spec, "group": "", "version": "v2"},
        "of bad numbers": {**spec, "groupPriorityMinimum": 20001, "versionPriority": -1},
        "of half a Service": {**spec, "service": {"port": 70000}},
        "local and insecure": {**spec, "insecureSkipTLSVerify": True, "caBundle": "YWJj"},
    }
    for name, fields in bodies.items():
        obj = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.a.io"}}
        yield Call(f"create APIService {name}", "POST", where, {**obj, "spec": fields})
        if name in ("local", "of a Service"):
            yield Call(f"delete APIService {name}", "DELETE", f"{where}/v1.a.io")


CALLS = [*calls(), *api_service_calls()]
