"""Validation of containers' environment variables, and of the references to fields that volumes have, too.

Each function yields `FieldError`s with paths below its `path` argument and with Kubernetes' wording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.schema import fielderrors as fe
from control.standalone.schema.configkeys import config_key_problem

Json = Mapping[str, Any]

_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_CONVERTED_FIELDS = frozenset(
    ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
     "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase", "status.hostIP",
     "status.hostIPs", "status.podIP", "status.podIPs")
)  # fmt: skip
_ENV_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP",
    "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
_VOLUME_FIELDS = ("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid")
_RESOURCES = tuple(
    f"{part}.{name}" for part in ("limits", "requests") for name in ("cpu", "ephemeral-storage", "memory")
)


def environment(container: Json, path: str) -> Iterator[FieldError]:
    for at, env in enumerate(container.get("env") or ()):
        yield from _variable(env, f"{path}.env[{at}]")
    for at, source in enumerate(container.get("envFrom") or ()):
        named = [name for name in ("configMapRef", "secretRef") if source.get(name) is not None]
        for name in named:
            if not source[name].get("name"):
                yield fe.required(f"{path}.envFrom[{at}].{name}.name")
        if not named:
            yield fe.invalid(f"{path}.envFrom", "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(named) > 1:
            yield fe.invalid(f"{path}.envFrom", "", "may not have more than one field specified at a time")


def _variable(env: Json, path: str) -> Iterator[FieldError]:
    name = str(env.get("name") or "")
    if not name:
        yield fe.required(f"{path}.name")
    elif "=" in name or not name.isascii() or not name.isprintable():
        why = "a valid environment variable name must consist only of printable ASCII characters other than '='"
        yield fe.invalid(f"{path}.name", name, why)
    source = env.get("valueFrom")
    if not isinstance(source, Mapping):
        return
    named = [each for each in _SOURCES if source.get(each) is not None]
    where = f"{path}.valueFrom"
    if "fieldRef" in named:
        yield from object_field(source["fieldRef"], f"{where}.fieldRef")
    if "resourceFieldRef" in named:
        yield from resource_field(source["resourceFieldRef"], f"{where}.resourceFieldRef")
    for each in ("configMapKeyRef", "secretKeyRef"):
        if each in named:
            yield from _key(source[each], f"{where}.{each}.key")
    if env.get("value"):
        if named:
            yield fe.invalid(where, "", "may not be specified when `value` is not empty")
    elif not named:
        choice = ", ".join(f"`{each}`" for each in _SOURCES[:-1]) + f" or `{_SOURCES[-1]}`"
        yield fe.invalid(where, "", f"must specify one of: {choice}")
    elif len(named) > 1:
        yield fe.invalid(where, "", "may not have more than one field specified at a time")


def _key(source: Json, path: str) -> Iterator[FieldError]:
    if not (key := str(source.get("key") or "")):
        yield fe.required(path)
    elif why := config_key_problem(key):
        yield fe.invalid(path, key, why)


def object_field(source: Json, path: str, *, of_volume: bool = False) -> Iterator[FieldError]:
    """A reference to a field of the pod."""
    field = str(source.get("fieldPath") or "")
    supported = _VOLUME_FIELDS if of_volume else _ENV_FIELDS
    if not field:
        yield fe.required(f"{path}.fieldPath")
    elif _is_subscript(field) or field in supported:
        return
    elif field not in _CONVERTED_FIELDS:
        why = f"error converting fieldPath: field label not supported: {field}"
        yield fe.invalid(f"{path}.fieldPath", field, why)
    else:
        yield fe.not_supported(f"{path}.fieldPath", field, supported)


def _is_subscript(field: str) -> bool:
    return field.startswith(("metadata.labels['", "metadata.annotations['")) and field.endswith("']")


def resource_field(source: Json, path: str, *, of_volume: bool = False) -> Iterator[FieldError]:
    """A reference to a request or limit of a container."""
    resource = str(source.get("resource") or "")
    if of_volume and not source.get("containerName"):
        yield fe.required(f"{path}.containerName")
    elif not resource:
        yield fe.required(f"{path}.resource")
    elif resource not in _RESOURCES and not resource.startswith(("limits.hugepages-", "requests.hugepages-")):
        yield fe.not_supported(f"{path}.resource", resource, _RESOURCES)
    if resource.endswith(".cpu") and str(source.get("divisor") or "0") not in ("0", "1", "1m"):
        message = "only divisor's values 1m and 1 are supported with the cpu resource"
        yield fe.invalid(f"{path}.divisor", resource, message)
