"""Validation of parts of a pod's spec: probes, hooks, environment, affinity, spreading, security, volumes.

Each function yields `FieldError`s with paths below its `path` argument and with Kubernetes' wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.objectmeta import key_errors, label_value_problem
from control.standalone.schema import fielderrors as fe

Json = Mapping[str, Any]

NON_NEGATIVE = "must be greater than or equal to 0"
MAX_ID = 2**31 - 1
MAX_PORT_NAME = 15
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PORT_NAME = re.compile(r"[-a-z0-9]+")
_SYSCTL = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
_SYSCTL_RE = re.compile(_SYSCTL)
_HOST_PATH_TYPES = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
_POD_FIELDS = frozenset(
    ("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
     "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
)  # fmt: skip
_NODE_OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False, "Gt": True, "Lt": True}


def container_parts(container: Json, path: str) -> Iterator[FieldError]:
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(probe := container.get(name), Mapping):
            yield from _probe(probe, f"{path}.{name}", fixed=name != "readinessProbe")
    for name in ("postStart", "preStop"):
        if isinstance(hook := (container.get("lifecycle") or {}).get(name), Mapping):
            yield from _handler(hook, f"{path}.lifecycle.{name}")
    for at, env in enumerate(container.get("env") or ()):
        yield from _env(env, f"{path}.env[{at}]")
    for at, port in enumerate(container.get("ports") or ()):
        if name := port.get("name"):
            yield from _port_name(str(name), f"{path}.ports[{at}].name")
    yield from _ids(container.get("securityContext") or {}, f"{path}.securityContext")


def spec_parts(spec: Json, path: str) -> Iterator[FieldError]:
    for key, value in (spec.get("nodeSelector") or {}).items():
        yield from key_errors(f"{path}.nodeSelector", key)
        if why := label_value_problem(str(value)):
            yield fe.invalid(f"{path}.nodeSelector", value, why)
    yield from _affinity(spec.get("affinity") or {}, f"{path}.affinity")
    for at, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        where = f"{path}.topologySpreadConstraints[{at}]"
        skew = constraint.get("maxSkew")
        if not isinstance(skew, int) or skew <= 0:
            yield fe.invalid(f"{where}.maxSkew", skew, "must be greater than zero")
        if not constraint.get("topologyKey"):
            yield fe.required(f"{where}.topologyKey", "can not be empty")
        action = constraint.get("whenUnsatisfiable")
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            yield fe.not_supported(f"{where}.whenUnsatisfiable", action, ("DoNotSchedule", "ScheduleAnyway"))
    security = spec.get("securityContext") or {}
    yield from _ids(security, f"{path}.securityContext")
    for at, sysctl in enumerate(security.get("sysctls") or ()):
        name = str(sysctl.get("name") or "")
        if not name:
            yield fe.required(f"{path}.securityContext.sysctls[{at}].name")
        elif len(name) > 253 or not _SYSCTL_RE.match(name):
            why = f"must have at most 253 characters and match regex {_SYSCTL}"
            yield fe.invalid(f"{path}.securityContext.sysctls[{at}].name", name, why)


def host_path(volume: Json, path: str) -> Iterator[FieldError]:
    source = volume.get("hostPath")
    if not isinstance(source, Mapping):
        return
    if not source.get("path"):
        yield fe.required(f"{path}.hostPath.path")
    if source.get("type", "") not in _HOST_PATH_TYPES:
        yield fe.not_supported(f"{path}.hostPath.type", source["type"], _HOST_PATH_TYPES)


def _handler(handler: Json, path: str) -> Iterator[FieldError]:
    named = [name for name in _HANDLERS if handler.get(name) is not None]
    if not named:
        yield fe.required(path, "must specify a handler type")
    for name in named[1:]:
        yield fe.forbidden(f"{path}.{name}", "may not specify more than 1 handler type")


def _probe(probe: Json, path: str, *, fixed: bool) -> Iterator[FieldError]:
    yield from _handler(probe, path)
    for name in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        if (probe.get(name) or 0) < 0:
            yield fe.invalid(f"{path}.{name}", probe[name], NON_NEGATIVE)
    if fixed and probe.get("successThreshold", 1) != 1:
        yield fe.invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1")


def _env(env: Json, path: str) -> Iterator[FieldError]:
    name = str(env.get("name") or "")
    if name and ("=" in name or not name.isascii() or not name.isprintable()):
        why = "a valid environment variable name must consist only of printable ASCII characters other than '='"
        yield fe.invalid(f"{path}.name", name, why)
    field = ((env.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    if field is not None and field not in _POD_FIELDS and not _is_subscript(str(field)):
        why = f"error converting fieldPath: field label not supported: {field}"
        yield fe.invalid(f"{path}.valueFrom.fieldRef.fieldPath", field, why)


def _is_subscript(field: str) -> bool:
    return field.startswith(("metadata.labels['", "metadata.annotations['")) and field.endswith("']")


def _port_name(name: str, path: str) -> Iterator[FieldError]:
    if len(name) > MAX_PORT_NAME:
        yield fe.invalid(path, name, f"must be no more than {MAX_PORT_NAME} characters")
    if not _PORT_NAME.fullmatch(name):
        yield fe.invalid(path, name, "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    elif not re.search("[a-z]", name):
        yield fe.invalid(path, name, "must contain at least one letter (a-z)")


def _ids(context: Json, path: str) -> Iterator[FieldError]:
    for name in ("runAsUser", "runAsGroup", "fsGroup"):
        value = context.get(name)
        if value is not None and not 0 <= value <= MAX_ID:
            yield fe.invalid(f"{path}.{name}", value, f"must be between 0 and {MAX_ID}, inclusive")


def _affinity(affinity: Json, path: str) -> Iterator[FieldError]:
    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    node = affinity.get("nodeAffinity") or {}
    terms = (node.get(required) or {}).get("nodeSelectorTerms") or ()
    for at, term in enumerate(terms):
        yield from _node_term(term, f"{path}.nodeAffinity.{required}.nodeSelectorTerms[{at}]")
    for at, weighted in enumerate(node.get(preferred) or ()):
        yield from _node_term(weighted.get("preference") or {}, f"{path}.nodeAffinity.{preferred}[{at}].preference")
    for kind in ("podAffinity", "podAntiAffinity"):
        part = affinity.get(kind) or {}
        for at, term in enumerate(part.get(required) or ()):
            yield from _pod_term(term, f"{path}.{kind}.{required}[{at}]")
        for at, weighted in enumerate(part.get(preferred) or ()):
            yield from _pod_term(
                weighted.get("podAffinityTerm") or {}, f"{path}.{kind}.{preferred}[{at}].podAffinityTerm"
            )


def _node_term(term: Json, path: str) -> Iterator[FieldError]:
    for at, requirement in enumerate(term.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{at}]"
        operator = requirement.get("operator")
        values = requirement.get("values") or ()
        if operator not in _NODE_OPERATORS:
            yield fe.invalid(f"{where}.operator", operator or "", "not a valid selector operator")
        elif operator in ("Gt", "Lt"):
            if len(values) != 1:
                yield fe.required(f"{where}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
        elif _NODE_OPERATORS[operator] and not values:
            yield fe.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif not _NODE_OPERATORS[operator] and values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield fe.forbidden(f"{where}.values", why)


def _pod_term(term: Json, path: str) -> Iterator[FieldError]:
    key = term.get("topologyKey")
    if not key:
        yield fe.required(f"{path}.topologyKey", "can not be empty")
    yield from key_errors(f"{path}.topologyKey", str(key or ""))
