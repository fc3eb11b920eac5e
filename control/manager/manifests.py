"""The objects that koord-manager is installed with (spec 04 §1.7, §1.9, §1.10). Data; no I/O but for writing deploy/.

    python -m control.manager.manifests --out deploy/manager           write them
    python -m control.manager.manifests --out deploy/manager --check   exit 1 if they differ
    python -m control.manager.manifests --rights --out deploy/manager-rights   the same for its features

`koordctl up` takes them from here, since an installed package has no deploy folder. `RULES` grants each controller and
webhook what it requests and nothing else; a test runs the whole process under them and fails on a refusal as well as
on a verb that no client uses.
"""

from __future__ import annotations

import sys

from control import manifestfiles
from control.component.rights import QUERIES
from control.manager.context import COMPONENT
from control.manager.options import FAILURE_POLICIES, WebhookEnv
from control.manager.rights import FEATURES
from control.manager.webhookserver.registrations import CONFIG, CONFIG_TYPE, SERVICE_PORT
from control.manifestfiles import VIEWER, ManifestFolder, Object, purpose, rule, rules_of
from koordlet.api.names import KOORDINATOR_NAMESPACE
from koordlet.api.priority import BANDS

ACCOUNT = "koord-manager"
DEFAULTS = WebhookEnv()
PSA_MODES = ("enforce", "audit", "warn")
"""Modes of Pod Security admission, each with a label of its own."""

_POLICY = "WEBHOOK_CONFIGURATION_FAILURE_POLICY_"
_MODULE = "control.manager.manifests"


PURPOSES = (
    purpose(
        "caches of controllers and webhooks; a Node is read before its objects are deleted",
        rule("", ["nodes"], ["get", "list", "watch"]),
    ),
    purpose(
        "nodemetric and nodeslo",
        rule("slo.koordinator.sh", ["nodemetrics", "nodeslos"], ["list", "watch", "create", "patch", "delete"]),
    ),
    purpose(
        "noderesource",
        rule("", ["nodes", "nodes/status"], ["patch"]),
        rule("scheduling.koordinator.sh", ["devices"], ["list", "watch"]),
        rule("topology.node.k8s.io", ["noderesourcetopologies"], ["get", "list", "watch", "patch"]),
    ),
    purpose(
        "caches of the webhooks; one object is read when a cache does not have it yet",
        rule("", ["namespaces"], ["get", "list", "watch"]),
        rule("scheduling.k8s.io", ["priorityclasses"], ["get", "list", "watch"]),
        rule("config.koordinator.sh", ["clustercolocationprofiles"], ["list", "watch"]),
    ),
    purpose(
        "quotaprofile, and pods that are counted against quotas",
        rule("scheduling.sigs.k8s.io", ["elasticquotas"], ["get", "list", "watch", "create", "patch"]),
        rule("quota.koordinator.sh", ["elasticquotaprofiles"], ["list", "watch", "patch"]),
    ),
    purpose(
        "pods of quotas, workloads and nodes",
        rule("", ["pods"], ["get", "list", "watch"]),
    ),
    purpose(
        "what is wrong with configuration, profiles, nodes; Events of cluster-scoped objects live in `default`",
        rule("", ["events"], ["create", "patch"]),
    ),
    purpose(
        "the certificate reconciler",
        rule(
            "admissionregistration.k8s.io",
            ["mutatingwebhookconfigurations"],
            ["get", "list", "watch", "patch"],
            [DEFAULTS.mutating_name],
        ),
        rule(
            "admissionregistration.k8s.io",
            ["validatingwebhookconfigurations"],
            ["get", "list", "watch", "patch"],
            [DEFAULTS.validating_name],
        ),
    ),
    purpose(
        "callers of the metrics pages",
        *manifestfiles.REVIEW_RULES,
    ),
    QUERIES,
)
RULES: list[Object] = rules_of(PURPOSES)
"""The ClusterRole; `rights.FEATURES` has those of features whose gates are off by default."""

PAGES = ("/top", "/interference", "/enforcement", "/events", "/apis/v1/explain/*", "/apis/v1/plugins/*")
PAGE_RULES: list[Object] = [{"nonResourceURLs": list(PAGES), "verbs": ["get"]}]
"""The ClusterRole of the account, and of people who read pages directly: nothing of the API."""
VIEW_PAGES = f"{VIEWER}-pages"
VIEW_RULES: list[Object] = [
    rule("", ["nodes", "pods"], ["get", "list"]),
    rule("slo.koordinator.sh", ["nodemetrics"], ["get", "list"]),
]
"""The ClusterRole that is bound to users of `kubectl koord`."""
VIEW_NAMESPACE_RULES: list[Object] = [
    rule("", ["pods"], ["get", "list"]),
    rule("", ["pods/proxy"], ["get"]),
    rule("", ["serviceaccounts/token"], ["create"], [VIEWER]),
    rule("coordination.k8s.io", ["leases"], ["get"]),
]
"""The Role in Koordinator's namespace for the same users. deploy/koordlet-policy limits `pods/proxy` to the pages."""
PORT_FORWARD = "koordinator-portforward"
PORT_FORWARD_RULES: list[Object] = [rule("", ["pods/portforward"], ["get", "create"])]
"""A Role for clusters whose API server does not reach the ports of pods. Powerful: koordlet's pods use the network of
their nodes, so it reaches every port of the nodes' loopback addresses."""

NAMESPACE_PURPOSES = (
    purpose(
        "the configuration",
        rule("", ["configmaps"], ["get", "list", "watch"]),
    ),
    purpose(
        "leader election",
        rule("coordination.k8s.io", ["leases"], ["create"]),
        rule("coordination.k8s.io", ["leases"], ["get", "patch"], [COMPONENT]),
    ),
    purpose(
        "the certificates of the webhook server",
        rule("", ["secrets"], ["create"]),
        rule("", ["secrets"], ["get", "list", "watch", "patch"], [DEFAULTS.secret_name]),
    ),
    purpose(
        "webhooks are registered when their Service has a ready endpoint",
        rule("discovery.k8s.io", ["endpointslices"], ["list"]),
    ),
)
NAMESPACE_RULES: list[Object] = rules_of(NAMESPACE_PURPOSES)
"""The Role in the manager's own namespace."""


def _meta(name: str, *, namespaced: bool = True, labels: dict[str, str] | None = None) -> Object:
    meta: Object = {"name": name}
    if namespaced:
        meta["namespace"] = KOORDINATOR_NAMESPACE
    return {**meta, "labels": labels} if labels else meta


def namespace() -> list[Object]:
    """The namespace of all namespaced objects; the pod webhooks exempt it by its name.

    koordlet and koord-device-daemon are privileged, so Pod Security admission must allow that here, whatever the
    cluster's default is. Manager and scheduler conform to the level `restricted`.
    """
    labels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in PSA_MODES}
    meta = _meta(KOORDINATOR_NAMESPACE, namespaced=False, labels=labels)
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": meta}]


def priority_classes() -> list[Object]:
    """koord-prod, koord-mid, koord-batch, koord-free."""
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": _meta(name, namespaced=False),
            "value": band.low,
            "preemptionPolicy": "PreemptLowerPriority",
            "description": f"Koordinator's class {name}: priorities {band.low} to {band.high}.",
        }
        for name, band in BANDS.items()
    ]


def rbac() -> list[Object]:
    """Account, roles and their bindings."""
    return manifestfiles.rbac(ACCOUNT, RULES, NAMESPACE_RULES)


def config(data: dict[str, str] | None = None) -> list[Object]:
    """slo-controller-config; with the label by which its webhook finds it."""
    content = data or {
        "colocation-config": '{"enable": true}',
        "resource-threshold-config": '{"clusterStrategy": {"enable": true}}',
    }
    meta = _meta(CONFIG, labels={CONFIG_TYPE: CONFIG})
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": content}]


def webhooks() -> list[Object]:
    """The two configurations, empty: the manager registers its webhooks when it answers. They are installed so that it
    needs no right to create any, and so that an uninstallation removes them."""
    group = "admissionregistration.k8s.io/v1"
    kinds = {
        "MutatingWebhookConfiguration": DEFAULTS.mutating_name,
        "ValidatingWebhookConfiguration": DEFAULTS.validating_name,
    }
    return [
        {"apiVersion": group, "kind": kind, "metadata": _meta(name, namespaced=False)} for kind, name in kinds.items()
    ]


def service() -> list[Object]:
    """What the API server calls."""
    port = {"name": "webhook", "port": SERVICE_PORT, "protocol": "TCP", "targetPort": DEFAULTS.port}
    spec = {"selector": {"koord-app": ACCOUNT}, "ports": [port]}
    return [{"apiVersion": "v1", "kind": "Service", "metadata": _meta(DEFAULTS.service_name), "spec": spec}]


def deployment() -> list[Object]:
    """Two replicas on two hosts if there are two."""
    labels = {"koord-app": ACCOUNT}
    container: Object = {
        "name": "manager",
        "image": manifestfiles.CONTROL_PLANE_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["koord-manager"],
        "args": [
            "--enable-leader-election",
            "--metrics-addr=:8080",
            "--health-probe-addr=:8000",
            "--feature-gates=",
            "--v=2",
        ],
        "env": [
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "WEBHOOK_CERT_DIR", "value": "/var/run/koord-webhook"},
            *({"name": f"{_POLICY}{suffix}", "value": "Ignore"} for suffix in FAILURE_POLICIES),
            {"name": "WEBHOOK_CONFIGURATION_TIMEOUT_SECONDS", "value": str(DEFAULTS.timeout_seconds)},
        ],
        "ports": [
            {"name": "webhook", "containerPort": 9876, "protocol": "TCP"},
            {"name": "metrics", "containerPort": 8080, "protocol": "TCP"},
            {"name": "probes", "containerPort": 8000, "protocol": "TCP"},
        ],
        **manifestfiles.probes({"port": 8000}, "/readyz"),
        # The API server still sends requests for a moment after the pod has left the endpoints.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}},
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"cpu": "1", "memory": "1Gi"},
        },
        "securityContext": manifestfiles.RESTRICTED,
        "volumeMounts": [{"name": "certificates", "mountPath": "/var/run/koord-webhook"}],
    }
    spec = {
        "replicas": 2,
        "minReadySeconds": 3,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "serviceAccountName": ACCOUNT,
                "priorityClassName": "system-cluster-critical",
                "terminationGracePeriodSeconds": 30,
                **manifestfiles.placement(labels),
                "containers": [container],
                "volumes": [{"name": "certificates", "emptyDir": {"medium": "Memory"}}],
            },
        },
    }
    return [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _meta(ACCOUNT, labels=labels), "spec": spec}]


def protection() -> list[Object]:
    """Disruption budget and network policy: webhooks, metrics and probes, but not the profiles of --pprof-addr."""
    return manifestfiles.protection(ACCOUNT, (DEFAULTS.port, 8080, 8000))


def view() -> list[Object]:
    """What `kubectl koord` needs: roles for users, and the account whose short token pods are sent."""
    name, namespace = VIEWER, KOORDINATOR_NAMESPACE
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    version = "rbac.authorization.k8s.io/v1"
    own = {"name": name, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own, "automountServiceAccountToken": False},
        {"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": VIEW_PAGES}, "rules": PAGE_RULES},
        {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": VIEW_PAGES},
            "roleRef": {**role_ref, "name": VIEW_PAGES},
            "subjects": subjects,
        },
        {"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": VIEW_RULES},
        {"apiVersion": version, "kind": "Role", "metadata": own, "rules": VIEW_NAMESPACE_RULES},
        {"apiVersion": version, "kind": "Role", "metadata": {**own, "name": PORT_FORWARD}, "rules": PORT_FORWARD_RULES},
    ]


FILES = {
    "namespace.yaml": namespace,
    "priorityclasses.yaml": priority_classes,
    "rbac.yaml": rbac,
    "view.yaml": view,
    "config.yaml": config,
    "webhooks.yaml": webhooks,
    "service.yaml": service,
    "deployment.yaml": deployment,
    "protection.yaml": protection,
}
FOLDER = ManifestFolder(_MODULE, ACCOUNT, FILES, FEATURES, once=("config.yaml",))
texts, rights_texts = FOLDER.texts, FOLDER.rights_texts


if __name__ == "__main__":
    sys.exit(FOLDER.main())
