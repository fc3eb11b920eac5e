"""Rules for the metadata of every kind: names, labels, generated names, timestamps.

Pure functions, except that generated names are random. Messages have Kubernetes' wording, because users search for it.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from control.standalone.errors import FieldError
from control.standalone.kinds import ResourceKind

Json = dict[str, Any]

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels, so that generated names are never words
MAX_GENERATED_PREFIX = 58

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_KEY_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_SUBDOMAIN_RE, _LABEL_RE = re.compile(_SUBDOMAIN), re.compile(_LABEL)
_VALUE_RE, _KEY_NAME_RE = re.compile(_VALUE), re.compile(_KEY_NAME)

STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
_EXTENSION_GROUPS = ("apiextensions.k8s.io", "apiregistration.k8s.io")
_LABEL_NAMED = {"/namespaces", "/services"}
_PATH_NAMED_GROUPS = {"rbac.authorization.k8s.io", "apiregistration.k8s.io"}


def timestamp(seconds: float) -> str:
    """metav1.Time: UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(seconds: float) -> str:
    """metav1.MicroTime."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str) -> float:
    """Seconds since the epoch; raises ValueError."""
    return datetime.fromisoformat(text).timestamp()


def generate_name(prefix: str) -> str:
    suffix = "".join(secrets.choice(_ALPHABET) for _ in range(5))
    return prefix[:MAX_GENERATED_PREFIX] + suffix


def name_error(kind: ResourceKind, name: str, field: str = "metadata.name") -> FieldError | None:
    def invalid(why: str) -> FieldError:
        return FieldError("FieldValueInvalid", field, f'Invalid value: "{name}": {why}')

    if kind.group in _PATH_NAMED_GROUPS:  # also the names of API services, such as "v1."
        if name in (".", "..") or "/" in name or "%" in name:
            return invalid("may not be '.' or '..' and may not contain '/' or '%'")
        return None
    if kind.key in _LABEL_NAMED:
        if len(name) > 63:
            return invalid("must be no more than 63 characters")
        if not _LABEL_RE.fullmatch(name):
            return invalid(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must "
                "start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for "
                f"validation is '{_LABEL}')"
            )
        return None
    if len(name) > 253:
        return invalid("must be no more than 253 characters")
    if not _SUBDOMAIN_RE.fullmatch(name):
        return invalid(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
            "must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
            f"'{_SUBDOMAIN}')"
        )
    return None


def metadata_errors(kind: ResourceKind, meta: Json) -> list[FieldError]:
    """Problems of a complete metadata block (name present, labels and annotations well formed)."""
    field_errors: list[FieldError] = []
    name = meta.get("name")
    prefix = meta.get("generateName")
    if prefix and (problem := name_error(kind, prefix.rstrip("-."), "metadata.generateName")):
        field_errors.append(
            replace(problem, message=problem.message.replace(f'"{prefix.rstrip("-.")}"', f'"{prefix}"'))
        )
    if not name:
        field_errors.append(
            FieldError("FieldValueRequired", "metadata.name", "Required value: name or generateName is required")
        )
    elif problem := name_error(kind, name):
        field_errors.append(problem)
    for key, value in (meta.get("labels") or {}).items():
        field_errors += key_errors("metadata.labels", key)
        if why := label_value_problem(value):
            field_errors.append(FieldError("FieldValueInvalid", "metadata.labels", f'Invalid value: "{value}": {why}'))
    annotations = meta.get("annotations") or {}
    for key in annotations:
        field_errors += key_errors("metadata.annotations", key.lower())
    if sum(len(k) + len(v) for k, v in annotations.items()) > 256 * 1024:
        field_errors.append(
            FieldError("FieldValueTooLong", "metadata.annotations", "Too long: may not be more than 262144 bytes")
        )
    field_errors += _owner_errors(meta.get("ownerReferences") or [])
    finalizers = meta.get("finalizers") or []
    for finalizer in finalizers:
        field_errors += key_errors("metadata.finalizers", finalizer)
    for i, finalizer in enumerate(finalizers if not kind.custom else ()):
        if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS and kind.group not in _EXTENSION_GROUPS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            field_errors.append(
                FieldError("FieldValueInvalid", f"metadata.finalizers[{i}]", f'Invalid value: "{finalizer}": {why}')
            )
    return field_errors


def _owner_errors(owners: list[Any]) -> list[FieldError]:
    field_errors: list[FieldError] = []
    path = "metadata.ownerReferences"
    for owner in owners:
        for name, why in (
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ):
            if not owner.get(name):
                field_errors.append(FieldError("FieldValueInvalid", f"{path}.{name}", f'Invalid value: "": {why}'))
    controllers = [f"{o.get('kind')}/{o.get('name')}" for o in owners if o.get("controller")]
    if len(controllers) > 1:
        why = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{controllers[0]} and {controllers[1]}"
        )
        shown = msgspec.json.encode(owners).decode()
        field_errors.append(FieldError("FieldValueInvalid", path, f"Invalid value: {shown}: {why}"))
    return field_errors


def label_value_problem(value: str) -> str:
    """Why this cannot be the value of a label; "" when it can."""
    if len(value) > 63:
        return "must be no more than 63 bytes"
    if _VALUE_RE.fullmatch(value):
        return ""
    return (
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
        "and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for "
        f"validation is '{_VALUE}')"
    )


def key_errors(field: str, key: str) -> list[FieldError]:
    if key.count("/") > 1:
        why = (
            "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
            "an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            f"'{_KEY_NAME}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        )
        return [FieldError("FieldValueInvalid", field, f'Invalid value: "{key}": {why}')]
    prefix, slash, name = key.rpartition("/")
    problems = []
    if slash and not (prefix and len(prefix) <= 253 and _SUBDOMAIN_RE.fullmatch(prefix)):
        problems.append(
            "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
            "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for "
            f"validation is '{_SUBDOMAIN}')"
        )
    if len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not name:
        problems.append("name part must be non-empty")
    if not _KEY_NAME_RE.fullmatch(name):
        problems.append(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            f"'{_KEY_NAME}')"
        )
    return [FieldError("FieldValueInvalid", field, f'Invalid value: "{key}": {p}') for p in problems]


def shape_error(obj: Any) -> str | None:
    """Why `obj` cannot be an API object: readers rely on the types of these metadata fields. None when it can."""
    if not isinstance(obj, dict):
        return "the object must be a JSON object"
    for name in ("apiVersion", "kind"):
        if not isinstance(obj.get(name, ""), str):
            return f"{name} must be a string"
    meta = obj.get("metadata")
    if meta is not None and not isinstance(meta, dict):
        return "metadata must be an object"
    for name in ("labels", "annotations"):
        value = (meta or {}).get(name)
        if value is None:
            continue
        if not isinstance(value, dict):
            return f"metadata.{name} must be a map of strings"
        for k, v in value.items():
            if not isinstance(v, str):
                return f"metadata.{name}[{k}]: must be a string, is {type(v).__name__}"
    for name in ("name", "namespace", "generateName", "resourceVersion", "uid"):
        if not isinstance((meta or {}).get(name) or "", str):
            return f"metadata.{name} must be a string"
    for name in ("finalizers", "ownerReferences", "managedFields"):
        if not isinstance((meta or {}).get(name) or [], list):
            return f"metadata.{name} must be a list"
    return None
