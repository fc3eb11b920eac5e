"""The webhooks that the manager registers (spec 04 §1.7). Pure data of the environment.

The installed configurations are empty. Every replica writes these entries into them once the Service has a ready
endpoint, so no object is sent to a server that does not answer yet. All fields that the API server would default are
set, so that a stored list equals the desired one.
"""

from __future__ import annotations

from typing import Any

from control.manager.options import WebhookEnv

Webhook = dict[str, Any]

CONFIG = "slo-controller-config"
CONFIG_TYPE = "koordinator.sh/configmap-type"
SERVICE_PORT = 443
POD_SUBRESOURCES = "pods/status pods/ephemeralcontainers pods/resize"
"""They accept or may accept labels and annotations of the pod."""
MATCH_CONDITIONS = "matchConditions"
"""A field that API servers before Kubernetes 1.27 drop."""
_METADATA_CHANGES = " || ".join(
    f"(has(object.metadata.{field}) ? object.metadata.{field} : {{}}) != "
    f"(has(oldObject.metadata.{field}) ? oldObject.metadata.{field} : {{}})"
    for field in ("labels", "annotations")
)
"""CEL: kubelets write the status of all pods all the time; only requests that change metadata are sent."""
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_SIGS = ("scheduling.sigs.k8s.io", "v1alpha1", "elasticquotas")
_JOBS = ("scheduling.koordinator.sh", "v1alpha1", "podmigrationjobs")
_DRAINS = ("scheduling.koordinator.sh", "v1alpha1", "drainnodes drainnodegroups")
_RESERVATIONS = ("scheduling.koordinator.sh", "v1alpha1", "reservations")


def mutating(env: WebhookEnv) -> list[Webhook]:
    """The entries of the MutatingWebhookConfiguration, in the order in which they are called."""
    spared = _exempt(env)
    update = _label("pod.koordinator.sh/mutating-update", "In", "true")
    quota = "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"
    entries = [
        _webhook(env, "mpod-create", "/mutate-pod", ("", "v1", "pods"), "CREATE", namespaces=spared),
        _webhook(env, "mpod-update", "/mutate-pod", ("", "v1", "pods"), "UPDATE", namespaces=spared, objects=update),
        _webhook(env, "mnode-status", "/mutate-node-status", ("", "v1", "nodes/status"), "CREATE UPDATE"),
        _webhook(env, "melasticquota", quota, _SIGS, "CREATE"),
        _webhook(env, "mreservation-create", "/mutate-reservation", _RESERVATIONS, "CREATE"),
    ]
    return [{**entry, "reinvocationPolicy": "Never"} for entry in entries]


def validating(env: WebhookEnv) -> list[Webhook]:
    """The entries of the ValidatingWebhookConfiguration."""
    spared = _exempt(env)
    config = _label(CONFIG_TYPE, "In", CONFIG)
    quota = "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"
    return [
        _webhook(env, "vpod", "/validate-pod", ("", "v1", "pods"), "CREATE UPDATE", namespaces=spared),
        _webhook(env, "vpodbinding", "/validate-pod-binding", ("", "v1", "pods/binding bindings"), "CREATE",
                 namespaces=spared),
        {
            **_webhook(env, "vpodsubresources", "/validate-pod-keys", ("", "v1", POD_SUBRESOURCES), "UPDATE",
                       namespaces=spared),
            MATCH_CONDITIONS: [{"name": "metadata-changes", "expression": _METADATA_CHANGES}],
        },
        _webhook(env, "vnode", "/validate-node", ("", "v1", "nodes"), "CREATE UPDATE"),
        _webhook(env, "vconfigmap", "/validate-configmap", ("", "v1", "configmaps"), "CREATE UPDATE DELETE",
                 objects=config),
        _webhook(env, "vpodmigrationjob", "/validate-podmigrationjob", _JOBS, "CREATE UPDATE"),
        _webhook(env, "vdrain", "/validate-drain", _DRAINS, "CREATE UPDATE"),
        _webhook(env, "velasticquota", quota, _SIGS, "CREATE UPDATE DELETE"),
    ]  # fmt: skip


def _webhook(
    env: WebhookEnv,
    name: str,
    path: str,
    resource: tuple[str, str, str],
    operations: str,
    *,
    namespaces: Webhook | None = None,
    objects: Webhook | None = None,
) -> Webhook:
    """`resource`: group, version, and one or several resources separated by blanks."""
    group, version, plurals = resource
    service = {"name": env.service_name, "namespace": env.namespace, "path": path, "port": SERVICE_PORT}
    rule = {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": operations.split(),
        "resources": plurals.split(),
        "scope": "*",
    }
    return {
        "name": f"{name}.koordinator.sh",
        "admissionReviewVersions": ["v1", "v1beta1"],
        "clientConfig": {"service": service},
        "failurePolicy": env.failure_policies.get(plurals, "Ignore"),
        "matchPolicy": "Equivalent",
        "namespaceSelector": namespaces or {},
        "objectSelector": objects or {},
        "rules": [rule],
        "sideEffects": "None",
        "timeoutSeconds": env.timeout_seconds,
    }


def _exempt(env: WebhookEnv) -> Webhook:
    """Namespaces whose pods must start without the manager: the cluster's own and the manager's, by name. A label would
    exempt a namespace whose administrator may write it."""
    names = sorted({"kube-system", env.namespace})
    return {"matchExpressions": [{"key": _NAMESPACE_NAME, "operator": "NotIn", "values": names}]}


def _label(key: str, operator: str, *values: str) -> Webhook:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
