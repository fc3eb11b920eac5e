# ruff: noqa: E501
"""Calls of the official Python client, in order, for the differential test of what it returns and raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.apidiff.cases.objects import config_map, pod, template, workload

NS = "client"


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A method of an API class of the package `kubernetes`. `{name}` in a text is the resource version of the result of
    the call of that name."""

    api: str
    method: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


def core(method: str, *args: Any, name: str = "", **options: Any) -> ClientCall:
    return ClientCall("CoreV1Api", method, args, options, name)


def apps(method: str, *args: Any, **options: Any) -> ClientCall:
    return ClientCall("AppsV1Api", method, args, options)


def meta(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


JOB = {"metadata": meta("j"), "spec": {"template": {"spec": {**template()["spec"], "restartPolicy": "Never"}}}}
ROLE = {"metadata": meta("r"), "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}
BINDING: dict[str, Any] = {
    "metadata": meta("b"),
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
    "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": NS}],
}
LEASE = {"metadata": meta("l"), "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}
BUDGET = {"metadata": meta("p"), "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}
REVIEW = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": NS}}}
TOKEN_REVIEW = {"spec": {"token": "tenant-token"}}
WIDGETS = ("example.com", "v1", NS, "gadgets")
CRD = {
    "metadata": meta("gadgets.example.com"),
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 1}}},
                            "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
                        },
                    }
                },
            }
        ],
    },
}


def gadget(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": meta(name), "spec": spec}


def custom(method: str, *args: Any, name: str = "", **options: Any) -> ClientCall:
    return ClientCall("CustomObjectsApi", method, (*WIDGETS, *args), options, name)


CALLS = [
    core("read_namespace", NS),
    core("create_namespaced_config_map", NS, config_map("a", k="v"), name="map"),
    core("create_namespaced_config_map", NS, config_map("a", k="v")),
    core("read_namespaced_config_map", "a", NS),
    core("read_namespaced_config_map", "none", NS),
    core("patch_namespaced_config_map", "a", NS, {"data": {"k": None, "l": "w"}}, name="patched"),
    core("replace_namespaced_config_map", "a", NS, {**config_map("a", m="x"), "metadata": {"name": "a", "resourceVersion": "{map}"}}),
    core("replace_namespaced_config_map", "a", NS, {**config_map("a", m="x"), "metadata": {"name": "a", "resourceVersion": "{patched}"}}),
    core("list_namespaced_config_map", NS, label_selector="x=y"),
    core("list_namespaced_config_map", NS, field_selector="metadata.name=a"),
    core("list_namespaced_config_map", NS, field_selector="data.k=v"),
    core("list_namespaced_config_map", NS, limit=1),
    core("delete_namespaced_config_map", "a", NS),
    core("delete_namespaced_config_map", "a", NS),
    core("create_namespaced_secret", NS, {"metadata": meta("s"), "stringData": {"a": "b"}}),
    core("read_namespaced_secret", "s", NS),
    core("create_namespaced_pod", NS, pod("p"), name="pod"),
    core("create_namespaced_pod", NS, pod("dry"), dry_run="All"),
    core("create_namespaced_pod", NS, {"metadata": meta("none"), "spec": {"containers": []}}),
    core("create_namespaced_pod", NS, {**pod("x"), "spec": {"containers": [{"name": "c"}], "wrong": 1}}, field_validation="Strict"),
    core("read_namespaced_pod", "p", NS),
    core("read_namespaced_pod_status", "p", NS),
    core("patch_namespaced_pod", "p", NS, {"metadata": {"labels": {"b": "c"}}}),
    core("patch_namespaced_pod", "p", NS, {"spec": {"nodeName": "n"}}),
    core("patch_namespaced_pod_status", "p", NS, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
    core("list_namespaced_pod", NS, label_selector="app in (a,b),!c"),
    core("list_namespaced_pod", NS, field_selector="spec.nodeName=,status.phase=Pending"),
    core("list_namespaced_pod", NS, label_selector="a in"),
    core("list_pod_for_all_namespaces", field_selector=f"metadata.namespace={NS}"),
    core("create_namespaced_pod_binding", "p", NS, {"metadata": meta("p"), "target": {"kind": "Node", "name": "nowhere"}}),
    core("create_namespaced_pod_eviction", "p", NS, {"metadata": meta("p")}, dry_run="All"),
    core("read_namespaced_pod_log", "none", NS),
    core("create_namespaced_service", NS, {"metadata": meta("s"), "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}),
    core("read_namespaced_service", "s", NS),
    core("create_namespaced_service", NS, {"metadata": meta("t"), "spec": {"ports": [{"port": 0}]}}),
    core("create_namespaced_service_account", NS, {"metadata": meta("a")}),
    core("create_namespaced_service_account_token", "a", NS, {"spec": {"audiences": ["x"], "expirationSeconds": 600}}),
    core("create_node", {"metadata": meta("client-node"), "status": {"allocatable": {"cpu": "1"}, "capacity": {"cpu": "1"}}}),
    core("patch_node_status", "client-node", {"status": {"allocatable": {"memory": "1Gi"}}}),
    core("patch_node", "client-node", {"spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]}}),
    core("read_node", "client-node"),
    core("delete_node", "client-node"),
    core("create_namespaced_resource_quota", NS, {"metadata": meta("q"), "spec": {"hard": {"pods": "10"}}}),
    core("create_namespaced_limit_range", NS, {"metadata": meta("l"), "spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}}),
    core("delete_namespaced_limit_range", "l", NS),
    core("create_namespaced_event", NS, {"metadata": meta("e"), "involvedObject": {"kind": "Pod", "name": "p", "namespace": NS}, "reason": "R"}),
    apps("create_namespaced_deployment", NS, workload("Deployment", "d", replicas=2)),
    apps("read_namespaced_deployment", "d", NS),
    apps("read_namespaced_deployment_scale", "d", NS),
    apps("patch_namespaced_deployment_scale", "d", NS, {"spec": {"replicas": 3}}),
    apps("patch_namespaced_deployment", "d", NS, {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:2"}]}}}}),
    apps("patch_namespaced_deployment", "d", NS, {"spec": {"selector": {"matchLabels": {"app": "other"}}}}),
    apps("patch_namespaced_deployment_status", "d", NS, {"status": {"replicas": 1}}),
    apps("list_namespaced_deployment", NS),
    apps("create_namespaced_daemon_set", NS, workload("DaemonSet", "ds")),
    apps("create_namespaced_stateful_set", NS, workload("StatefulSet", "ss", serviceName="s")),
    apps("create_namespaced_replica_set", NS, workload("ReplicaSet", "rs", replicas=0)),
    apps("delete_namespaced_deployment", "d", NS, propagation_policy="Orphan"),
    ClientCall("BatchV1Api", "create_namespaced_job", (NS, JOB)),
    ClientCall("BatchV1Api", "patch_namespaced_job", ("j", NS, {"spec": {"suspend": True}})),
    ClientCall("RbacAuthorizationV1Api", "create_namespaced_role", (NS, ROLE)),
    ClientCall("RbacAuthorizationV1Api", "create_namespaced_role_binding", (NS, BINDING)),
    ClientCall("RbacAuthorizationV1Api", "patch_namespaced_role_binding", ("b", NS, {"roleRef": {**BINDING["roleRef"], "name": "x"}})),
    ClientCall("CoordinationV1Api", "create_namespaced_lease", (NS, LEASE)),
    ClientCall("CoordinationV1Api", "patch_namespaced_lease", ("l", NS, {"spec": {"holderIdentity": "you"}})),
    ClientCall("PolicyV1Api", "create_namespaced_pod_disruption_budget", (NS, BUDGET)),
    ClientCall("PolicyV1Api", "read_namespaced_pod_disruption_budget_status", ("p", NS)),
    ClientCall("SchedulingV1Api", "create_priority_class", ({"metadata": meta("client-high"), "value": 1000},)),
    ClientCall("SchedulingV1Api", "patch_priority_class", ("client-high", {"value": 2000})),
    ClientCall("StorageV1Api", "create_storage_class", ({"metadata": meta("client-disk"), "provisioner": "none"},)),
    ClientCall("AuthorizationV1Api", "create_self_subject_access_review", (REVIEW,)),
    ClientCall("AuthorizationV1Api", "create_subject_access_review", ({"spec": {**REVIEW["spec"], "user": "tenant"}},)),
    ClientCall("AuthenticationV1Api", "create_token_review", (TOKEN_REVIEW,)),
    ClientCall("ApiextensionsV1Api", "create_custom_resource_definition", (CRD,)),
    custom("create_namespaced_custom_object", gadget("g"), name="gadget"),
    custom("create_namespaced_custom_object", gadget("wrong", size="large")),
    custom("get_namespaced_custom_object", "g"),
    custom("patch_namespaced_custom_object", "g", {"spec": {"size": 2}}),
    custom("patch_namespaced_custom_object_status", "g", {"status": {"ready": True}}),
    custom("replace_namespaced_custom_object", "g", {**gadget("g", size=3), "metadata": {"name": "g", "resourceVersion": "{gadget}"}}),
    custom("list_namespaced_custom_object", limit=5),
    custom("delete_namespaced_custom_object", "g"),
    custom("get_namespaced_custom_object", "g"),
    core("delete_namespaced_pod", "p", NS, grace_period_seconds=0),
    core("delete_collection_namespaced_config_map", NS),
]  # fmt: skip
"""After the definition of Gadgets the test waits until they are served."""
