"""The default RBAC roles and bindings, as a stock cluster has them for what this server covers.

Data: `default_roles` yields (resource key, object). Rules follow what the roles are known to allow: `view` reads
all but secrets and RBAC, `edit` writes workloads, `admin` adds roles within a namespace, `system:node` and the
control-plane components get what they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_RBAC = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"

_CORE_VIEW = [
    "configmaps", "endpoints", "events", "limitranges", "namespaces", "namespaces/status",
    "persistentvolumeclaims", "persistentvolumeclaims/status", "pods", "pods/log", "pods/status",
    "replicationcontrollers", "replicationcontrollers/scale", "replicationcontrollers/status", "resourcequotas",
    "resourcequotas/status", "serviceaccounts", "services", "services/status",
]  # fmt: skip
_CORE_EDIT = [
    "configmaps", "endpoints", "events", "persistentvolumeclaims", "pods", "pods/attach", "pods/eviction",
    "pods/exec", "pods/portforward", "pods/proxy", "replicationcontrollers", "replicationcontrollers/scale",
    "secrets", "serviceaccounts", "services", "services/proxy",
]  # fmt: skip
_APPS = [
    "controllerrevisions", "daemonsets", "deployments", "deployments/scale", "replicasets", "replicasets/scale",
    "statefulsets", "statefulsets/scale",
]  # fmt: skip
_APPS_STATUS = [f"{n}/status" for n in ("daemonsets", "deployments", "replicasets", "statefulsets")]


def _rule(groups: str | list[str], resources: list[str], verbs: list[str], names: list[str] | None = None) -> Json:
    rule: Json = {
        "apiGroups": [groups] if isinstance(groups, str) else groups,
        "resources": resources,
        "verbs": verbs,
    }
    if names:
        rule["resourceNames"] = names
    return rule


_VIEW = [
    _rule("", _CORE_VIEW, _READ),
    _rule("apps", [*_APPS, *_APPS_STATUS], _READ),
    _rule("autoscaling", ["horizontalpodautoscalers", "horizontalpodautoscalers/status"], _READ),
    _rule("batch", ["cronjobs", "cronjobs/status", "jobs", "jobs/status"], _READ),
    _rule("policy", ["poddisruptionbudgets", "poddisruptionbudgets/status"], _READ),
    _rule("networking.k8s.io", ["ingresses", "ingresses/status", "networkpolicies"], _READ),
    _rule("discovery.k8s.io", ["endpointslices"], _READ),
]
_EDIT = [
    _rule("", ["secrets", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "services/proxy"], _READ),
    _rule("", ["serviceaccounts"], ["impersonate"]),
    _rule("", _CORE_EDIT, _WRITE),
    _rule("", ["serviceaccounts/token"], ["create"]),
    _rule("apps", [n for n in _APPS if n != "controllerrevisions"], _WRITE),
    _rule("autoscaling", ["horizontalpodautoscalers"], _WRITE),
    _rule("batch", ["cronjobs", "jobs"], _WRITE),
    _rule("policy", ["poddisruptionbudgets"], _WRITE),
    _rule("networking.k8s.io", ["ingresses", "networkpolicies"], _WRITE),
    _rule("coordination.k8s.io", ["leases"], [*_READ, *_WRITE]),
]
_ADMIN = [
    _rule("authorization.k8s.io", ["localsubjectaccessreviews"], ["create"]),
    _rule(_RBAC, ["rolebindings", "roles"], [*_READ, *_WRITE]),
]
_EVENTS = _rule(["", "events.k8s.io"], ["events"], ["create", "patch", "update"])
_REVIEWS = [
    _rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
    _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
]
_NODE = [
    *_REVIEWS,
    _rule("authorization.k8s.io", ["localsubjectaccessreviews"], ["create"]),
    _rule("", ["services", "namespaces", "configmaps", "secrets", "persistentvolumes"], _READ),
    _rule("", ["persistentvolumeclaims"], ["get"]),
    _rule("", ["nodes"], ["create", *_READ]),
    _rule("", ["nodes", "nodes/status"], ["patch", "update", "delete"]),
    _rule("", ["pods"], ["create", "delete", *_READ]),
    _rule("", ["pods/status"], ["patch", "update"]),
    _rule("", ["pods/eviction", "serviceaccounts/token"], ["create"]),
    _rule("coordination.k8s.io", ["leases"], ["create", "delete", "get", "patch", "update"]),
    _rule(["node.k8s.io"], ["runtimeclasses"], _READ),
    _rule("storage.k8s.io", ["csinodes"], ["create", "delete", "get", "patch", "update"]),
    _rule("storage.k8s.io", ["csidrivers", "volumeattachments"], _READ),
    _EVENTS,
]
_SCHEDULER = [
    _EVENTS,
    *_REVIEWS,
    _rule("coordination.k8s.io", ["leases"], [*_READ, "create", "patch", "update"]),
    _rule("", ["nodes", "namespaces", "persistentvolumeclaims", "persistentvolumes", "services",
               "replicationcontrollers"], _READ),
    _rule("", ["pods"], ["delete", "patch", *_READ]),
    _rule("", ["bindings", "pods/binding"], ["create"]),
    _rule("", ["pods/status"], ["patch", "update"]),
    _rule("apps", ["replicasets", "statefulsets"], _READ),
    _rule("policy", ["poddisruptionbudgets"], _READ),
    _rule("storage.k8s.io", ["*"], _READ),
]  # fmt: skip
_CONTROLLERS = [_rule(["*"], ["*"], _READ), _EVENTS, *_REVIEWS, _rule("", ["secrets", "serviceaccounts"], ["*"])]
_DISCOVERY = ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz",
              "/version", "/version/"]  # fmt: skip
_PUBLIC = ["/healthz", "/livez", "/readyz", "/version", "/version/"]


def default_roles() -> Iterator[tuple[str, Json]]:
    """(resource key, object) of every default role and binding."""
    roles: dict[str, list[Json]] = {
        "cluster-admin": [
            _rule("*", ["*"], ["*"]),
            {"nonResourceURLs": ["*"], "verbs": ["*"]},
        ],
        "view": _VIEW,
        "edit": [*_EDIT, *_VIEW],
        "admin": [*_ADMIN, *_EDIT, *_VIEW],
        "system:discovery": [{"nonResourceURLs": _DISCOVERY, "verbs": ["get"]}],
        "system:public-info-viewer": [{"nonResourceURLs": _PUBLIC, "verbs": ["get"]}],
        "system:monitoring": [{"nonResourceURLs": [*_PUBLIC, "/metrics"], "verbs": ["get"]}],
        "system:basic-user": [
            _rule("authorization.k8s.io", ["selfsubjectaccessreviews", "selfsubjectrulesreviews"], ["create"]),
            _rule("authentication.k8s.io", ["selfsubjectreviews"], ["create"]),
        ],
        "system:auth-delegator": _REVIEWS,
        "system:node": _NODE,
        "system:kubelet-api-admin": [
            _rule("", ["nodes"], ["proxy", *_READ]),
            _rule("", ["nodes/log", "nodes/metrics", "nodes/proxy", "nodes/stats"], ["*"]),
        ],
        "system:kube-scheduler": _SCHEDULER,
        "system:kube-controller-manager": _CONTROLLERS,
        "system:service-account-issuer-discovery": [
            {"nonResourceURLs": ["/.well-known/openid-configuration", "/openid/v1/jwks"], "verbs": ["get"]}
        ],
    }
    for name, rules in roles.items():
        yield f"{_RBAC}/clusterroles", _role(name, rules)
    bindings = {
        "cluster-admin": ("cluster-admin", ["system:masters"], []),
        "system:discovery": ("system:discovery", ["system:authenticated"], []),
        "system:basic-user": ("system:basic-user", ["system:authenticated"], []),
        "system:public-info-viewer": (
            "system:public-info-viewer",
            ["system:authenticated", "system:unauthenticated"],
            [],
        ),
        "system:monitoring": ("system:monitoring", ["system:monitoring"], []),
        "system:nodes": ("system:node", ["system:nodes"], []),
        "system:kube-scheduler": ("system:kube-scheduler", [], ["system:kube-scheduler"]),
        "system:kube-controller-manager": (
            "system:kube-controller-manager",
            [],
            ["system:kube-controller-manager"],
        ),
    }
    for name, (role, groups, users) in bindings.items():
        yield f"{_RBAC}/clusterrolebindings", _binding(name, role, groups, users)


def _role(name: str, rules: list[Json]) -> Json:
    labels = dict(_LABELS)
    if name in ("view", "edit"):
        # A ClusterRole with this label adds its rules, as CRD authors expect of stock clusters.
        labels[_AGGREGATE + ("edit" if name == "view" else "admin")] = "true"
    role: Json = {"metadata": {"name": name, "labels": labels}, "rules": rules}
    if name in ("view", "edit", "admin"):
        role["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {_AGGREGATE + name: "true"}}]}
    return role


def _binding(name: str, role: str, groups: list[str], users: list[str]) -> Json:
    subjects = [{"kind": "Group", "apiGroup": _RBAC, "name": g} for g in groups]
    subjects += [{"kind": "User", "apiGroup": _RBAC, "name": u} for u in users]
    ref = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role}
    return {"metadata": {"name": name, "labels": dict(_LABELS)}, "roleRef": ref, "subjects": subjects}
