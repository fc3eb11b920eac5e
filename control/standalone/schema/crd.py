"""Validates a CustomResourceDefinition.

Checks names, scope and versions, and that every version's schema is structural: a type everywhere (except for
int-or-string and preserve-unknown-fields), no forbidden keywords, list types with their keys, and logical
branches (allOf, anyOf, oneOf, not) that only restrict values. Pure; `validation` calls it on create and update.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from control.standalone.errors import FieldError
from control.standalone.schema import fielderrors as fe
from control.standalone.schema import patterns, structural
from control.standalone.schema.walk import Schema

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
_LABEL_1035 = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_LOGIC_FORBIDDEN = ("description", "type", "default", "nullable", "additionalProperties")
_KEYWORDS_FORBIDDEN = ("$ref", "definitions", "dependencies", "deprecated", "patternProperties", "id", "$schema")
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")

Json = Mapping[str, Any]


def check_crd(crd: Json) -> list[FieldError]:
    """All errors of a CustomResourceDefinition, with field paths."""
    spec = crd.get("spec")
    if not isinstance(spec, Mapping):
        return [fe.required("spec")]
    return [*_names(crd, spec), *_versions(spec)]


def _names(crd: Json, spec: Json) -> Iterator[FieldError]:
    group = spec.get("group") or ""
    names = spec.get("names") or {}
    plural = names.get("plural") or ""
    if not group:
        yield fe.required("spec.group")
    elif "." not in group:
        yield fe.invalid("spec.group", group, "should be a domain with at least one dot")
    elif not all(_LABEL.match(part) for part in group.split(".")):
        yield fe.invalid("spec.group", group, "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'")  # fmt: skip # noqa: E501
    for field in ("plural", "kind"):
        if not names.get(field):
            yield fe.required(f"spec.names.{field}")
    for field in ("plural", "singular"):
        if (value := names.get(field)) and not _LABEL_1035.match(value):
            yield fe.invalid(f"spec.names.{field}", value, "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character")  # fmt: skip # noqa: E501
    for field in ("kind", "listKind"):
        if (value := names.get(field)) and not _LABEL_1035.match(str(value).lower()):
            yield fe.invalid(f"spec.names.{field}", value, "may have mixed case, but should otherwise match a DNS-1035 label")  # fmt: skip # noqa: E501
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        yield fe.invalid("spec.names.listKind", names["listKind"], "kind and listKind may not be the same")
    name = (crd.get("metadata") or {}).get("name")
    if name and group and plural and name != f"{plural}.{group}":
        yield fe.invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    scope = spec.get("scope")
    if not scope:
        yield fe.required("spec.scope")
    elif scope not in ("Cluster", "Namespaced"):
        yield fe.not_supported("spec.scope", scope, ("Cluster", "Namespaced"))
    if spec.get("preserveUnknownFields"):
        yield fe.invalid("spec.preserveUnknownFields", True, "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead")  # fmt: skip # noqa: E501


def _versions(spec: Json) -> Iterator[FieldError]:
    versions = spec.get("versions") or []
    if not versions:
        yield fe.required("spec.versions", "must have at least one version")
        return
    if sum(bool(version.get("storage")) for version in versions) != 1:
        yield fe.invalid("spec.versions", [v.get("name", "") for v in versions], "must have exactly one version marked as storage version")  # fmt: skip # noqa: E501
    seen: set[str] = set()
    for at, version in enumerate(versions):
        path = f"spec.versions[{at}]"
        name = version.get("name") or ""
        if not name:
            yield fe.required(f"{path}.name")
        elif not _LABEL_1035.match(name):
            yield fe.invalid(f"{path}.name", name, "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character")  # fmt: skip # noqa: E501
        if name in seen:
            yield fe.duplicate(f"{path}.name", name)
        seen.add(name)
        for flag in ("served", "storage"):
            if not isinstance(version.get(flag), bool):
                yield fe.required(f"{path}.{flag}")
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        where = f"{path}.schema.openAPIV3Schema"
        if schema is None:
            yield fe.required(where, "schemas are required")
        elif not isinstance(schema, Mapping):
            yield fe.type_invalid(where, structural.type_name(schema), f"{where} in body must be of type object")
        else:
            yield from _root(schema, where)
        for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
            yield from _column(column, f"{path}.additionalPrinterColumns[{index}]")


def _column(column: Json, path: str) -> Iterator[FieldError]:
    for field in ("name", "type", "jsonPath"):
        if not column.get(field):
            yield fe.required(f"{path}.{field}")
    if column.get("type") and column["type"] not in _COLUMN_TYPES:
        yield fe.invalid(f"{path}.type", column["type"], f"must be one of {','.join(_COLUMN_TYPES)}")
    if column.get("jsonPath") and not str(column["jsonPath"]).startswith("."):
        yield fe.invalid(f"{path}.jsonPath", column["jsonPath"], "must be a simple json path starting with .")


def _root(schema: Json, path: str) -> Iterator[FieldError]:
    if schema.get("type") != "object":
        if schema.get("type"):
            yield fe.invalid(f"{path}.type", schema["type"], "must be object at the root")
        else:
            yield fe.required(f"{path}.type", "must not be empty at the root")
    metadata = (schema.get("properties") or {}).get("metadata") or {}
    if set(metadata.get("properties") or ()) - {"name", "generateName"}:
        yield fe.forbidden(f"{path}.properties[metadata]", "must not specify anything other than name and generateName, but metadata is implicitly specified")  # fmt: skip # noqa: E501
    yield from _node(schema, path, root=True)


def _node(schema: Any, path: str, root: bool = False) -> Iterator[FieldError]:
    if not isinstance(schema, Mapping):
        yield fe.type_invalid(path, structural.type_name(schema), "must be an object")
        return
    kind = schema.get("type")
    preserves = schema.get("x-kubernetes-preserve-unknown-fields")
    int_or_string = schema.get("x-kubernetes-int-or-string")
    if int_or_string and kind:
        yield fe.invalid(f"{path}.type", kind, "must be empty when x-kubernetes-int-or-string is true")
    elif not kind and not preserves and not int_or_string and not root:
        yield fe.required(f"{path}.type", "must not be empty for specified object fields")
    elif kind and kind not in _TYPES:
        yield fe.not_supported(f"{path}.type", kind, _TYPES)
    if preserves is False:
        yield fe.invalid(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    if schema.get("x-kubernetes-embedded-resource") and kind != "object":
        yield fe.invalid(f"{path}.type", kind or "", "must be object if x-kubernetes-embedded-resource is true")
    for keyword in _KEYWORDS_FORBIDDEN:
        if keyword in schema:
            yield fe.forbidden(f"{path}.{keyword}", f"{keyword} is not supported")
    if schema.get("uniqueItems"):
        yield fe.forbidden(f"{path}.uniqueItems", "uniqueItems cannot be set to true since the runtime complexity becomes quadratic")  # fmt: skip # noqa: E501
    if "pattern" in schema:
        yield from _pattern(str(schema["pattern"]), f"{path}.pattern")
    if "enum" in schema and not isinstance(schema["enum"], list):
        yield fe.type_invalid(f"{path}.enum", structural.type_name(schema["enum"]), "must be an array")
    yield from _lists(schema, kind, path)
    for name, child in (schema.get("properties") or {}).items():
        yield from _node(child, f"{path}.properties[{name}]")
    additional = schema.get("additionalProperties")
    if additional is not None and schema.get("properties"):
        yield fe.forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
    if isinstance(additional, Mapping):
        yield from _node(additional, f"{path}.additionalProperties")
    elif additional is False:
        yield fe.forbidden(f"{path}.additionalProperties", "additionalProperties cannot be set to false")
    items = schema.get("items")
    if isinstance(items, list):
        yield fe.forbidden(f"{path}.items", "items must be a schema object and not an array")
    elif items is not None:
        yield from _node(items, f"{path}.items")
    elif kind == "array":
        yield fe.required(f"{path}.items", "must be specified")
    for keyword in ("allOf", "anyOf", "oneOf"):
        for at, branch in enumerate(schema.get(keyword) or ()):
            yield from _branch(branch, f"{path}.{keyword}[{at}]", bool(int_or_string))
    if "not" in schema:
        yield from _branch(schema["not"], f"{path}.not", False)
    if "default" in schema and not root:
        yield from structural.validate(schema["default"], Schema(schema), f"{path}.default")


def _pattern(pattern: str, path: str) -> Iterator[FieldError]:
    try:
        patterns.compiled(pattern)
    except patterns.PatternError as error:
        detail = f"must be a valid regular expression, but isn't: error parsing regexp: {error}"
        yield fe.invalid(path, pattern, detail)


def _lists(schema: Json, kind: Any, path: str) -> Iterator[FieldError]:
    list_type = schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys")
    if list_type is not None:
        if kind != "array":
            yield fe.invalid(f"{path}.type", kind or "", "must be array if x-kubernetes-list-type is specified")
        if list_type not in ("atomic", "set", "map"):
            yield fe.not_supported(f"{path}.x-kubernetes-list-type", list_type, ("atomic", "map", "set"))
    if list_type == "map":
        if not keys:
            yield fe.required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")  # fmt: skip # noqa: E501
        items = schema.get("items") or {}
        properties = items.get("properties") or {} if isinstance(items, Mapping) else {}
        for at, key in enumerate(keys or ()):
            where = f"{path}.x-kubernetes-list-map-keys[{at}]"
            if key not in properties:
                yield fe.invalid(where, key, "entries must all be names of item properties")
            elif key not in (items.get("required") or ()) and "default" not in properties[key]:
                yield fe.required(
                    f"{path}.items.properties[{key}].default",
                    "this property is in x-kubernetes-list-map-keys, so it must have a default or be required",
                )
    elif keys:
        yield fe.forbidden(f"{path}.x-kubernetes-list-map-keys", "must be empty if x-kubernetes-list-type is not map")
    map_type = schema.get("x-kubernetes-map-type")
    if map_type is not None and map_type not in ("atomic", "granular"):
        yield fe.not_supported(f"{path}.x-kubernetes-map-type", map_type, ("atomic", "granular"))


def _branch(schema: Any, path: str, in_int_or_string: bool) -> Iterator[FieldError]:
    """A logical branch may restrict values but not describe structure."""
    if not isinstance(schema, Mapping):
        yield fe.type_invalid(path, structural.type_name(schema), "must be an object")
        return
    for keyword in _LOGIC_FORBIDDEN:
        if keyword in schema and not (in_int_or_string and keyword == "type"):
            yield fe.forbidden(f"{path}.{keyword}", "must be undefined to be structural")
    for name, child in (schema.get("properties") or {}).items():
        yield from _branch(child, f"{path}.properties[{name}]", False)
    if isinstance(schema.get("items"), Mapping):
        yield from _branch(schema["items"], f"{path}.items", False)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for at, child in enumerate(schema.get(keyword) or ()):
            yield from _branch(child, f"{path}.{keyword}[{at}]", in_int_or_string)
