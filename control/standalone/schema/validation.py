"""Validation of built-in kinds beyond their schema: one function per kind, in a table.

`validate(key, obj, old)` calls the kind's function; kinds without one are only checked against their schema. The
registry validates the metadata (names, labels, annotations) of every kind. The functions are pure and yield
`FieldError`s with Kubernetes' wording.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.schema import fielderrors as fe
from control.standalone.schema.crd import check_crd
from control.standalone.schema.validation_pod import (
    LABEL,
    LABEL_MESSAGE,
    pod_spec,
    quantities,
    validate_pod,
)
from control.standalone.schema.validation_podparts import NON_NEGATIVE

Json = Mapping[str, Any]

MAX_DATA_BYTES = 1024 * 1024
MAX_USER_PRIORITY = 1_000_000_000
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_PERCENT = re.compile(r"\d+%")
_RBAC = "rbac.authorization.k8s.io"


def validate(key: str, obj: Json, old: Json | None) -> list[FieldError]:
    """All errors of an object of the kind `key`; `old` is the stored object of an update."""
    function = _BY_KEY.get(key)
    return list(function(obj, old)) if function is not None else []


def _immutable(path: str, value: Any) -> FieldError:
    return fe.invalid(path, value, "field is immutable")


def _data(obj: Json, *fields: str) -> Iterator[FieldError]:
    size = 0
    seen: set[str] = set()
    for field in fields:
        for key, value in (obj.get(field) or {}).items():
            if not _CONFIG_KEY.fullmatch(key) or key in (".", ".."):
                message = (
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  "
                    "or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                )
                yield fe.invalid(f"{field}[{key}]", key, message)
            if key in seen:
                yield fe.invalid(f"{field}[{key}]", key, "duplicate of key present in data")
            seen.add(key)
            if field == "binaryData" or obj.get("kind") == "Secret":
                try:
                    size += len(base64.b64decode(value, validate=True))
                except (binascii.Error, ValueError):
                    yield fe.invalid(f"{field}[{key}]", value, "illegal base64 data")
            else:
                size += len(value.encode())
    if size > MAX_DATA_BYTES:
        yield fe.too_long("data" if obj.get("kind") == "Secret" else "", MAX_DATA_BYTES)


def _config_map(obj: Json, old: Json | None) -> Iterator[FieldError]:
    yield from _data(obj, "data", "binaryData")


_SECRET_KEYS = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _secret(obj: Json, old: Json | None) -> Iterator[FieldError]:
    yield from _data(obj, "data")
    for key in _SECRET_KEYS.get(str(obj.get("type")), ()):
        if key not in (obj.get("data") or {}):
            yield fe.required(f"data[{key}]")
    if old is not None and obj.get("type") != old.get("type"):
        yield _immutable("type", obj.get("type"))


def _node(obj: Json, old: Json | None) -> Iterator[FieldError]:
    seen: set[tuple[Any, Any]] = set()
    for at, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        path = f"spec.taints[{at}]"
        if not taint.get("key"):
            yield fe.required(f"{path}.key")
        effect = taint.get("effect")
        if not effect:
            yield fe.required(f"{path}.effect")
        elif effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            yield fe.not_supported(f"{path}.effect", effect, ("NoSchedule", "PreferNoSchedule", "NoExecute"))
        if (taint.get("key"), effect) in seen:
            yield fe.duplicate(path, taint)
        seen.add((taint.get("key"), effect))
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


def _int_or_percent(value: Any, path: str) -> Iterator[FieldError]:
    if isinstance(value, int) and value < 0:
        yield fe.invalid(path, value, NON_NEGATIVE)
    elif isinstance(value, str) and not _PERCENT.fullmatch(value):
        message = (
            "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', "
            "regex used for validation is '[0-9]+%')"
        )
        yield fe.invalid(path, value, message)


def _pdb(obj: Json, old: Json | None) -> Iterator[FieldError]:
    spec = obj.get("spec") or {}
    low, high = spec.get("minAvailable"), spec.get("maxUnavailable")
    if low is not None and high is not None:
        yield fe.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    yield from _int_or_percent(low, "spec.minAvailable")
    yield from _int_or_percent(high, "spec.maxUnavailable")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy not in (None, "IfHealthyBudget", "AlwaysAllow"):
        yield fe.not_supported("spec.unhealthyPodEvictionPolicy", policy, ("AlwaysAllow", "IfHealthyBudget"))
    yield from _selector(spec.get("selector"), "spec.selector")


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
    kinds = ("ClusterRole",) if obj.get("kind") == "ClusterRoleBinding" else ("ClusterRole", "Role")
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
            yield fe.not_supported(f"{path}.kind", kind or "", ("Group", "ServiceAccount", "User"))
        elif kind == "ServiceAccount" and not subject.get("namespace") and obj.get("kind") == "ClusterRoleBinding":
            yield fe.required(f"{path}.namespace")


def _selector(selector: Any, path: str) -> Iterator[FieldError]:
    for at, requirement in enumerate((selector or {}).get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{at}]"
        operator = requirement.get("operator")
        if operator in ("In", "NotIn"):
            if not requirement.get("values"):
                yield fe.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist"):
            if requirement.get("values"):
                message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield fe.forbidden(f"{where}.values", message)
        else:
            yield fe.invalid(f"{where}.operator", operator or "", "not a valid selector operator")


def _workload(obj: Json, old: Json | None) -> Iterator[FieldError]:
    """Deployment, ReplicaSet, DaemonSet, StatefulSet: the selector matches the template, restartPolicy is Always."""
    spec = obj.get("spec") or {}
    replicas = spec.get("replicas")
    if replicas is not None and replicas < 0:
        yield fe.invalid("spec.replicas", replicas, NON_NEGATIVE)
    selector = spec.get("selector") or {}
    template = spec.get("template") or {}
    if "selector" not in spec:
        yield fe.required("spec.selector")
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield fe.invalid("spec.selector", selector, f"empty selector is invalid for {str(obj.get('kind')).lower()}")
    yield from _selector(selector, "spec.selector")
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not labels or any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        yield fe.invalid("spec.template.metadata.labels", labels or None, "`selector` does not match template `labels`")
    if old is not None and (old.get("spec") or {}).get("selector") != selector:
        yield _immutable("spec.selector", selector)
    pod = template.get("spec") or {}
    yield from pod_spec(pod, "spec.template.spec")
    if pod.get("restartPolicy") not in (None, "Always"):
        yield fe.not_supported("spec.template.spec.restartPolicy", pod["restartPolicy"], ("Always",))


def _job(obj: Json, old: Json | None) -> Iterator[FieldError]:
    yield from _job_spec(obj.get("spec") or {}, "spec")
    if old is not None:
        before, after = old.get("spec") or {}, obj.get("spec") or {}
        for field in ("selector", "completionMode"):
            if before.get(field) != after.get(field):
                yield _immutable(f"spec.{field}", after.get(field))
        if not before.get("suspend") and before.get("template") != after.get("template"):
            yield _immutable("spec.template", "")


def _job_spec(spec: Json, path: str) -> Iterator[FieldError]:
    for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if (value := spec.get(field)) is not None and value < 0:
            yield fe.invalid(f"{path}.{field}", value, NON_NEGATIVE)
    pod = (spec.get("template") or {}).get("spec") or {}
    yield from pod_spec(pod, f"{path}.template.spec")
    policy = pod.get("restartPolicy")
    if not policy or policy == "Always":
        yield fe.required(f"{path}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    elif policy not in ("OnFailure", "Never"):
        yield fe.not_supported(f"{path}.template.spec.restartPolicy", policy, ("OnFailure", "Never"))


def _cron_job(obj: Json, old: Json | None) -> Iterator[FieldError]:
    spec = obj.get("spec") or {}
    if not spec.get("schedule"):
        yield fe.required("spec.schedule")
    yield from _job_spec((spec.get("jobTemplate") or {}).get("spec") or {}, "spec.jobTemplate.spec")


def _service(obj: Json, old: Json | None) -> Iterator[FieldError]:
    spec = obj.get("spec") or {}
    kind = spec.get("type")
    if kind not in ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"):
        yield fe.not_supported("spec.type", kind, ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"))
    ports = spec.get("ports") or ()
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        yield fe.required("spec.ports")
    names: set[str] = set()
    for at, port in enumerate(ports):
        path = f"spec.ports[{at}]"
        number = port.get("port")
        if not isinstance(number, int) or not 0 < number < 65536:
            yield fe.invalid(f"{path}.port", number, "must be between 1 and 65535, inclusive")
        name = port.get("name")
        if not name:
            if len(ports) > 1:
                yield fe.required(f"{path}.name")
        elif not LABEL.fullmatch(name):
            yield fe.invalid(f"{path}.name", name, LABEL_MESSAGE)
        elif name in names:
            yield fe.duplicate(f"{path}.name", name)
        names.add(str(name))
    before = ((old or {}).get("spec") or {}).get("clusterIP")
    if before and kind != "ExternalName" and spec.get("clusterIP") != before:
        yield fe.invalid("spec.clusterIPs[0]", [spec.get("clusterIP")], "may not change once set")


def _webhooks(obj: Json, old: Json | None) -> Iterator[FieldError]:
    for at, webhook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{at}]"
        name = str(webhook.get("name") or "")
        if not name:
            yield fe.required(f"{path}.name")
        elif name.count(".") < 2:
            yield fe.invalid(f"{path}.name", name, "should be a domain with at least three segments separated by dots")
        config = webhook.get("clientConfig") or {}
        if bool(config.get("url")) == bool(config.get("service")):
            yield fe.required(f"{path}.clientConfig", "exactly one of url or service is required")
        elif config.get("url") and not str(config["url"]).startswith("https://"):
            yield fe.invalid(f"{path}.clientConfig.url", config["url"], "'https' is the only allowed URL scheme")
        if not webhook.get("admissionReviewVersions"):
            yield fe.required(f"{path}.admissionReviewVersions", "must specify one of v1, v1beta1")
        elif "v1" not in webhook["admissionReviewVersions"]:
            yield fe.invalid(f"{path}.admissionReviewVersions", webhook["admissionReviewVersions"], "must include at least one of v1, v1beta1")  # fmt: skip # noqa: E501
        if webhook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            yield fe.not_supported(f"{path}.sideEffects", webhook.get("sideEffects", ""), ("None", "NoneOnDryRun"))
        for field, supported in (("failurePolicy", ("Fail", "Ignore")), ("matchPolicy", ("Equivalent", "Exact"))):
            if webhook.get(field) not in (None, *supported):
                yield fe.not_supported(f"{path}.{field}", webhook[field], supported)
        seconds = webhook.get("timeoutSeconds")
        if seconds is not None and not 1 <= seconds <= 30:
            yield fe.invalid(f"{path}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds")


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
                yield _immutable(field, new_value)


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
    yield from pod_spec((obj.get("template") or {}).get("spec") or {}, "template.spec")


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
    "/services": _service,
    "coordination.k8s.io/leases": _lease,
    "policy/poddisruptionbudgets": _pdb,
    "scheduling.k8s.io/priorityclasses": _priority_class,
    f"{_RBAC}/roles": _role,
    f"{_RBAC}/clusterroles": _role,
    f"{_RBAC}/rolebindings": _role_binding,
    f"{_RBAC}/clusterrolebindings": _role_binding,
    "apps/deployments": _workload,
    "apps/replicasets": _workload,
    "apps/daemonsets": _workload,
    "apps/statefulsets": _workload,
    "batch/jobs": _job,
    "batch/cronjobs": _cron_job,
    f"{_ADM}/mutatingwebhookconfigurations": _webhooks,
    f"{_ADM}/validatingwebhookconfigurations": _webhooks,
    "apiextensions.k8s.io/customresourcedefinitions": _crd,
}
