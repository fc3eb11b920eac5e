"""Normalises an object of a built-in kind as a server with typed structs does.

Kubernetes decodes built-in kinds into typed structs. Clients rely on the effects: a field of the wrong
type is an error, null is the same as absent, quantities are stored in canonical form. `decode`
applies this to a plain dict, in place: empty optional lists and maps are left out, structs by value are always there.
Malformed quantities stay unchanged, for validation to report.
"""

from __future__ import annotations

from typing import Any

from control.standalone.schema import zeros
from control.standalone.schema.structural import parse_quantity, type_name
from control.standalone.schema.walk import UNKNOWN, Schema


class DecodeError(ValueError):
    """A value has the wrong type; the message has the wording of Go's JSON decoder."""


def decode(obj: dict[str, Any], schema: Schema, kind: str) -> None:
    """Remove nulls and canonicalise quantities; raises DecodeError for the first value of the wrong type."""
    _decode(obj, schema, kind, "")


def _decode(value: Any, schema: Schema, kind: str, path: str) -> None:
    if isinstance(value, dict):
        for key in [key for key, item in value.items() if item is None or _is_omitted(item, key, schema)]:
            del value[key]
        if schema.zeros:
            zeros.fill(value, schema)
        for key, item in value.items():
            child = schema.field(key)
            if item is None or child is None or child is UNKNOWN:  # None: a zero value that was just filled in
                continue
            where = f"{path}.{key}"
            if child.raw.get("format") == "quantity":
                value[key] = _canonical(item, kind, where)
                continue
            _check(item, child, kind, where)
            if isinstance(item, dict | list):
                _decode(item, child, kind, where)
    else:
        element = schema.element()
        for at, item in enumerate(value):
            where = f"{path}[{at}]"
            if item is None:
                if element.type == "object":
                    value[at] = {}
                continue
            _check(item, element, kind, where)
            if isinstance(item, dict | list):
                _decode(item, element, kind, where)


_GO_NAMES = {"integer": "int64", "boolean": "bool", "number": "float64", "array": "slice", "object": "struct"}


def _is_omitted(item: Any, key: str, schema: Schema) -> bool:
    """Whether a typed server leaves out this empty list or map."""
    if item or not isinstance(item, dict | list) or key in schema.required or not schema.has_property(key):
        return False
    child = schema.field(key)
    return child is not None and child.is_collection and isinstance(item, list) == (child.type == "array")


def _check(value: Any, schema: Schema, kind: str, path: str) -> None:
    actual = type_name(value)
    if schema.raw.get("x-kubernetes-int-or-string"):
        fits = actual in ("integer", "string")
    else:
        expected = schema.type
        fits = not expected or actual == expected or (expected == "number" and actual == "integer")
    if not fits:
        json_type = "bool" if actual == "boolean" else "number" if actual == "integer" else actual
        go_type = "string" if schema.type == "string" else _GO_NAMES.get(schema.type, schema.type)
        raise DecodeError(f"json: cannot unmarshal {json_type} into Go struct field {kind}{path} of type {go_type}")


def _canonical(value: Any, kind: str, path: str) -> Any:
    if isinstance(value, bool | dict | list):
        raise DecodeError(
            f"json: cannot unmarshal {type_name(value)} into Go struct field {kind}{path} of type resource.Quantity"
        )
    quantity = parse_quantity(str(value))
    return value if quantity is None else str(quantity)
