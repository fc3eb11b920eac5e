"""The initial roles and bindings: discovery and self reviews for all users, admin/edit/view, nodes.

`objects()` returns (key, object) pairs. At each start the server creates those that are missing and doesn't change
existing ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from control.standalone.auth.rbac import CLUSTER_BINDINGS, CLUSTER_ROLES, GROUP, SUPERUSERS

Json = dict[str, Any]

READ = ["get", "list", "watch"]
WRITE = ["create", "delete", "deletecollection", "patch", "update"]
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
"""The user as which the API server calls kubelets. It has the rights of kubelets' endpoints and no others."""
_KUBELET_API = "system:kubelet-api-admin"
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_TO = "rbac.authorization.k8s.io/aggregate-to-"


def rule(verbs: Iterable[str], resources: str, groups: Iterable[str] = ("",)) -> Json:
    return {"verbs": list(verbs), "apiGroups": list(groups), "resources": resources.split()}


def urls(*paths: str) -> Json:
    return {"verbs": ["get"], "nonResourceURLs": list(paths)}


_NAMESPACED = {
    "": "bindings configmaps endpoints events limitranges persistentvolumeclaims pods pods/log pods/status "
    "replicationcontrollers replicationcontrollers/scale resourcequotas serviceaccounts services",
    "apps": "controllerrevisions daemonsets deployments deployments/scale replicasets replicasets/scale statefulsets "
    "statefulsets/scale",
    "autoscaling": "horizontalpodautoscalers",
    "batch": "cronjobs jobs",
    "discovery.k8s.io": "endpointslices",
    "networking.k8s.io": "ingresses networkpolicies",
    "policy": "poddisruptionbudgets",
}
_VIEW = [*(rule(READ, names, [group]) for group, names in _NAMESPACED.items()), rule(READ, "namespaces")]
_EDIT = [
    rule([*READ, *WRITE], "secrets"),
    rule(["create"], "pods/eviction pods/exec pods/attach pods/portforward pods/proxy"),
    rule(["impersonate"], "serviceaccounts"),
    rule(["create"], "serviceaccounts/token"),
    *(rule(WRITE, names, [group]) for group, names in _NAMESPACED.items()),
    rule([*READ, *WRITE], "leases", ["coordination.k8s.io"]),
]
_ADMIN = [
    rule([*READ, *WRITE], "roles rolebindings", [GROUP]),
    rule(["create"], "localsubjectaccessreviews", ["authorization.k8s.io"]),
]
_NODE = [
    rule(["create"], "tokenreviews", ["authentication.k8s.io"]),
    rule(["create"], "subjectaccessreviews localsubjectaccessreviews", ["authorization.k8s.io"]),
    rule([*READ, "create", "update", "patch", "delete"], "nodes"),
    rule(["update", "patch"], "nodes/status pods/status"),
    rule([*READ, "create", "delete", "update", "patch"], "pods"),
    rule(["create"], "pods/eviction serviceaccounts/token"),
    rule(["create", "update", "patch"], "events", ["", "events.k8s.io"]),
    rule(READ, "configmaps secrets services serviceaccounts persistentvolumeclaims persistentvolumes"),
    rule([*READ, "create", "update", "patch", "delete"], "leases", ["coordination.k8s.io"]),
    rule([*READ, "create", "update", "patch", "delete"], "csinodes", ["storage.k8s.io"]),
    rule(READ, "csidrivers volumeattachments", ["storage.k8s.io"]),
    rule(READ, "runtimeclasses", ["node.k8s.io"]),
]
_KUBELETS = [
    rule(
        ["get", "create", "update", "patch", "delete"],
        "nodes/proxy nodes/pods nodes/configz nodes/healthz nodes/stats nodes/metrics nodes/log",
    )
]
_BASIC = [
    rule(["create"], "selfsubjectaccessreviews selfsubjectrulesreviews", ["authorization.k8s.io"]),
    rule(["create"], "selfsubjectreviews", ["authentication.k8s.io"]),
]
_DISCOVERY = urls(
    *("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*"),
    *("/readyz", "/version", "/version/"),
)
_PUBLIC = urls("/healthz", "/livez", "/readyz", "/version", "/version/")


def _role(name: str, rules: list[Json], aggregate_to: str = "", aggregates: str = "") -> tuple[str, Json]:
    labels = {**_LABELS, _TO + aggregate_to: "true"} if aggregate_to else dict(_LABELS)
    obj: Json = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels},
        "rules": rules,
    }
    if aggregates:
        obj["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {_TO + aggregates: "true"}}]}
    return CLUSTER_ROLES, obj


def _binding(name: str, role: str, *subjects: str, kind: str = "Group") -> tuple[str, Json]:
    obj: Json = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": dict(_LABELS)},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": GROUP, "kind": kind, "name": subject} for subject in subjects],
    }
    return CLUSTER_BINDINGS, obj


def objects() -> list[tuple[str, Json]]:
    """New copies of the initial roles and bindings, each with the key of its kind."""
    everything = [rule(["*"], "*", ["*"]), {"verbs": ["*"], "nonResourceURLs": ["*"]}]
    authenticated, unauthenticated = "system:authenticated", "system:unauthenticated"
    return [
        _role("cluster-admin", everything),
        _role("admin", [], aggregates="admin"),
        _role("edit", [], "admin", aggregates="edit"),
        _role("view", [], "edit", aggregates="view"),
        _role("system:aggregate-to-admin", _ADMIN, "admin"),
        _role("system:aggregate-to-edit", _EDIT, "edit"),
        _role("system:aggregate-to-view", _VIEW, "view"),
        _role("system:basic-user", _BASIC),
        _role("system:discovery", [_DISCOVERY]),
        _role("system:public-info-viewer", [_PUBLIC]),
        _role("system:node", _NODE),
        _role(_KUBELET_API, _KUBELETS),
        _binding("cluster-admin", "cluster-admin", SUPERUSERS),
        _binding("system:basic-user", "system:basic-user", authenticated),
        _binding("system:discovery", "system:discovery", authenticated),
        _binding("system:public-info-viewer", "system:public-info-viewer", authenticated, unauthenticated),
        _binding("system:node", "system:node", "system:nodes"),
        _binding(_KUBELET_API, _KUBELET_API, KUBELET_CLIENT, kind="User"),
    ]
