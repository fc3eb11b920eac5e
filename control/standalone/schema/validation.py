"""Validation of built-in kinds beyond their schema: one function per kind, in a table.

`validate(key, obj, old)` calls the kind's function; kinds without one are only checked against their schema. The
registry validates the metadata (names, labels, annotations) of every kind. The functions are pure and yield
`FieldError`s with Kubernetes' wording.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.schema import fielderrors as fe
from control.standalone.schema.configkeys import config_key_problem
from control.standalone.schema.crd import check_crd
from control.standalone.schema.validation_apiservice import validate_api_service
from control.standalone.schema.validation_pod import pod_spec, quantities, validate_pod
from control.standalone.schema.validation_probes import NON_NEGATIVE
from control.standalone.schema.validation_selectors import label_selector, taints
from control.standalone.schema.validation_service import validate_service
from control.standalone.schema.validation_workloads import (
    immutable,
    int_or_percent,
    not_over_all,
    template_metadata,
    validate_cron_job,
    validate_job,
    validate_workload,
)

Json = Mapping[str, Any]

MAX_DATA_BYTES = 1024 * 1024
MAX_USER_PRIORITY = 1_000_000_000
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_RBAC = "rbac.authorization.k8s.io"


def validate(key: str, obj: Json, old: Json | None) -> list[FieldError]:
    """All errors of an object of the kind `key`; `old` is the stored object of an update."""
    function = _BY_KEY.get(key)
    return list(function(obj, old)) if function is not None else []


def _data(obj: Json, *fields: str) -> Iterator[FieldError]:
    size = 0
    for field in fields:
        for key, value in (obj.get(field) or {}).items():
            if why := config_key_problem(key):
                yield fe.invalid(f"{field}[{key}]", key, why)
            if field == "data" and key in (obj.get("binaryData") or {}):
                yield fe.invalid(f"{field}[{key}]", key, "duplicate of key present in binaryData")
            if field == "binaryData" or obj.get("kind") == "Secret":
                try:
                    size += len(base64.b64decode(value, validate=True))
                except (binascii.Error, ValueError):
                    yield fe.invalid(f"{field}[{key}]", value, "illegal base64 data")
            else:
                size += len(value.encode())
    if size > MAX_DATA_BYTES:
        yield fe.too_long("data" if obj.get("kind") == "Secret" else "[]", MAX_DATA_BYTES)


def _config_map(obj: Json, old: Json | None) -> Iterator[FieldError]:
    yield from _data(obj, "data", "binaryData")


_SECRET_KEYS = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}

_TOKEN_SECRET, _TOKEN_ACCOUNT = "kubernetes.io/service-account-token", "kubernetes.io/service-account.name"


def _is_json(encoded: str) -> bool:
    try:
        return isinstance(json.loads(base64.b64decode(encoded)), dict)
    except ValueError:  # binascii.Error is one, too
        return False


def _secret(obj: Json, old: Json | None) -> Iterator[FieldError]:
    yield from _data(obj, "data")
    for key in _SECRET_KEYS.get(str(obj.get("type")), ()):
        if key not in (obj.get("data") or {}):
            yield fe.required(f"data[{key}]")
    if obj.get("type") == _TOKEN_SECRET and not ((obj.get("metadata") or {}).get("annotations") or {}).get(
        _TOKEN_ACCOUNT
    ):
        yield fe.required(f"metadata.annotations[{_TOKEN_ACCOUNT}]")
    for name, key in ((name, keys[0]) for name, keys in _SECRET_KEYS.items() if keys[0].startswith(".docker")):
        if obj.get("type") == name and key in (obj.get("data") or {}) and not _is_json(obj["data"][key]):
            yield fe.invalid(f"data[{key}]", "<secret contents redacted>", "not a JSON object")
    if old is not None and obj.get("type") != old.get("type"):
        yield immutable("type", obj.get("type"))


def _node(obj: Json, old: Json | None) -> Iterator[FieldError]:
    yield from taints((obj.get("spec") or {}).get("taints"), "metadata.taints")
    status = obj.get("status") or {}
    capacity, allocatable = status.get("capacity"), status.get("allocatable")
    yield from quantities(capacity, "status.capacity")
    if allocatable != capacity:
        yield from quantities(allocatable, "status.allocatable")
    if old is not None:
        before = (old.get("spec") or {}).get("providerID")
        if before and before != (obj.get("spec") or {}).get("providerID"):
            yield fe.forbidden("spec.providerID", 'node updates may not change providerID except from "" to valid')


def _lease(obj: Json, old: Json | None) -> Iterator[FieldError]:
    spec = obj.get("spec") or {}
    if (seconds := spec.get("leaseDurationSeconds")) is not None and seconds <= 0:
        yield fe.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    if (transitions := spec.get("leaseTransitions")) is not None and transitions < 0:
        yield fe.invalid("spec.leaseTransitions", transitions, NON_NEGATIVE)


def _pdb(obj: Json, old: Json | None) -> Iterator[FieldError]:
    spec = obj.get("spec") or {}
    low, high = spec.get("minAvailable"), spec.get("maxUnavailable")
    if low is not None and high is not None:
        shown = {
            "MinAvailable": low, "Selector": spec.get("selector"), "MaxUnavailable": high,
            "UnhealthyPodEvictionPolicy": spec.get("unhealthyPodEvictionPolicy"),
        }  # fmt: skip
        yield fe.invalid("spec", shown, "minAvailable and maxUnavailable cannot be both set")
    for value, field in ((low, "minAvailable"), (high, "maxUnavailable")):
        yield from int_or_percent(value, f"spec.{field}")
        yield from not_over_all(value, f"spec.{field}")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy not in (None, "IfHealthyBudget", "AlwaysAllow"):
        yield fe.not_supported("spec.unhealthyPodEvictionPolicy", policy, ("AlwaysAllow", "IfHealthyBudget"))
    yield from label_selector(spec.get("selector"), "spec.selector")


def _priority_class(obj: Json, old: Json | None) -> Iterator[FieldError]:
    name = str((obj.get("metadata") or {}).get("name", ""))
    value = obj.get("value", 0)
    if name.startswith("system-"):
        if name not in SYSTEM_PRIORITIES:
            message = (
                "priority class names with 'system-' prefix are reserved for system use only. "
                f"error: {name} is not a known system priority class"
            )
            yield fe.forbidden("metadata.name", message)
    elif value > MAX_USER_PRIORITY:
        message = f"maximum allowed value of a user defined priority is {MAX_USER_PRIORITY}"
        yield fe.forbidden("value", message)
    policy = obj.get("preemptionPolicy")
    if policy not in (None, "Never", "PreemptLowerPriority"):
        yield fe.not_supported("preemptionPolicy", policy, ("Never", "PreemptLowerPriority"))


def _role(obj: Json, old: Json | None) -> Iterator[FieldError]:
    for at, rule in enumerate(obj.get("rules") or ()):
        path = f"rules[{at}]"
        if not rule.get("verbs"):
            yield fe.required(f"{path}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            if obj.get("kind") == "Role":
                yield fe.invalid(f"{path}.nonResourceURLs", rule["nonResourceURLs"], "namespaced rules cannot apply to non-resource URLs")  # fmt: skip # noqa: E501
            if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                yield fe.invalid(f"{path}.nonResourceURLs", rule["nonResourceURLs"], "rules cannot apply to both regular resources and non-resource URLs")  # fmt: skip # noqa: E501
            continue
        if not rule.get("apiGroups"):
            yield fe.required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            yield fe.required(f"{path}.resources", "resource rules must supply at least one resource")


def _role_binding(obj: Json, old: Json | None) -> Iterator[FieldError]:
    ref = obj.get("roleRef") or {}
    kinds = ("ClusterRole",) if obj.get("kind") == "ClusterRoleBinding" else ("Role", "ClusterRole")
    if ref.get("apiGroup") != _RBAC:
        yield fe.not_supported("roleRef.apiGroup", ref.get("apiGroup", ""), (_RBAC,))
    if ref.get("kind") not in kinds:
        yield fe.not_supported("roleRef.kind", ref.get("kind", ""), kinds)
    if not ref.get("name"):
        yield fe.required("roleRef.name")
    for at, subject in enumerate(obj.get("subjects") or ()):
        path = f"subjects[{at}]"
        if not subject.get("name"):
            yield fe.required(f"{path}.name")
        kind = subject.get("kind")
        if kind not in ("ServiceAccount", "User", "Group"):
            yield fe.not_supported(f"{path}.kind", kind or "", ("ServiceAccount", "User", "Group"))
        elif kind == "ServiceAccount" and not subject.get("namespace") and obj.get("kind") == "ClusterRoleBinding":
            yield fe.required(f"{path}.namespace")


def _webhooks(obj: Json, old: Json | None) -> Iterator[FieldError]:
    for at, webhook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{at}]"
        name = str(webhook.get("name") or "")
        if not name:
            yield fe.required(f"{path}.name")
        elif name.count(".") < 2:
            yield fe.invalid(f"{path}.name", name, "should be a domain with at least three segments separated by dots")
        for field, supported in (
            ("failurePolicy", ("Fail", "Ignore")),
            ("matchPolicy", ("Equivalent", "Exact")),
            ("sideEffects", ("None", "NoneOnDryRun")),
        ):
            if webhook.get(field, "" if field == "sideEffects" else None) not in (None, *supported):
                yield fe.not_supported(f"{path}.{field}", webhook.get(field, ""), supported)
        seconds = webhook.get("timeoutSeconds")
        if seconds is not None and not 1 <= seconds <= 30:
            yield fe.invalid(f"{path}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds")
        config = webhook.get("clientConfig") or {}
        if bool(config.get("url")) == bool(config.get("service")):
            yield fe.required(f"{path}.clientConfig", "exactly one of url or service is required")
        elif config.get("url") and not str(config["url"]).startswith("https://"):
            yield fe.invalid(f"{path}.clientConfig.url", config["url"], "'https' is the only allowed URL scheme")
        if not webhook.get("admissionReviewVersions"):
            yield fe.required(f"{path}.admissionReviewVersions", "must specify one of v1, v1beta1")
        elif "v1" not in webhook["admissionReviewVersions"]:
            yield fe.invalid(f"{path}.admissionReviewVersions", webhook["admissionReviewVersions"], "must include at least one of v1, v1beta1")  # fmt: skip # noqa: E501


def _crd(obj: Json, old: Json | None) -> Iterator[FieldError]:
    yield from check_crd(obj)
    if old is not None:
        before, after = old.get("spec") or {}, obj.get("spec") or {}
        for field, old_value, new_value in (
            ("spec.scope", before.get("scope"), after.get("scope")),
            ("spec.group", before.get("group"), after.get("group")),
            ("spec.names.kind", (before.get("names") or {}).get("kind"), (after.get("names") or {}).get("kind")),
        ):
            if old_value != new_value:
                yield immutable(field, new_value)


def _present(*paths: str) -> Callable[[Json, Json | None], Iterator[FieldError]]:
    """Requires fields that the kind is useless without; `path: detail` adds a detail to the message."""

    def check(obj: Json, old: Json | None) -> Iterator[FieldError]:
        for entry in paths:
            path, _, detail = entry.partition(": ")
            value: Any = obj
            for part in path.split("."):
                value = (value or {}).get(part)
            if not value:
                yield fe.required(path, detail)

    return check


def _pod_template(obj: Json, old: Json | None) -> Iterator[FieldError]:
    yield from template_metadata((obj.get("template") or {}).get("metadata") or {}, "template")
    yield from pod_spec((obj.get("template") or {}).get("spec") or {}, "template.spec")


def _quota(obj: Json, old: Json | None) -> Iterator[FieldError]:
    for name, amount in ((obj.get("spec") or {}).get("hard") or {}).items():
        yield from quantities({name: amount}, "spec.hard")


_ADM = "admissionregistration.k8s.io"
_BY_KEY: dict[str, Callable[[Json, Json | None], Iterator[FieldError]]] = {
    "/pods": validate_pod,
    "/configmaps": _config_map,
    "/secrets": _secret,
    "/podtemplates": _pod_template,
    "/replicationcontrollers": _present("spec.selector", "spec.template"),
    "apps/controllerrevisions": _present("data: data is mandatory"),
    "discovery.k8s.io/endpointslices": _present("addressType"),
    "networking.k8s.io/ingressclasses": _present("spec.controller"),
    "storage.k8s.io/storageclasses": _present("provisioner"),
    "/nodes": _node,
    "/services": validate_service,
    "/resourcequotas": _quota,
    "coordination.k8s.io/leases": _lease,
    "policy/poddisruptionbudgets": _pdb,
    "scheduling.k8s.io/priorityclasses": _priority_class,
    f"{_RBAC}/roles": _role,
    f"{_RBAC}/clusterroles": _role,
    f"{_RBAC}/rolebindings": _role_binding,
    f"{_RBAC}/clusterrolebindings": _role_binding,
    "apps/deployments": validate_workload,
    "apps/replicasets": validate_workload,
    "apps/daemonsets": validate_workload,
    "apps/statefulsets": validate_workload,
    "batch/jobs": validate_job,
    "batch/cronjobs": validate_cron_job,
    f"{_ADM}/mutatingwebhookconfigurations": _webhooks,
    f"{_ADM}/validatingwebhookconfigurations": _webhooks,
    "apiextensions.k8s.io/customresourcedefinitions": _crd,
    "apiregistration.k8s.io/apiservices": validate_api_service,
}
