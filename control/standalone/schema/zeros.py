"""Zero values of the built-in kinds: what a typed server writes for fields that a client left out.

Kubernetes' structs by value and its fields without `omitempty` are always written. Clients see them in responses, and
managedFields has no owner for a field whose zero value existed before.
"""

from __future__ import annotations

from typing import Any

from control.standalone.schema.walk import Schema

_SCALARS: dict[str, Any] = {"string": "", "integer": 0, "number": 0, "boolean": False}
_PARTS_OF_KINDS = ("spec", "status")


def zero(schema: Schema, *, collections: bool = False) -> dict[str, Any]:
    """The zero value of a struct. With `collections` its required lists and maps are there too, empty."""
    out: dict[str, Any] = {}
    for name in (*schema.zeros, *(n for n in schema.required if n not in schema.zeros)):
        child = schema.field(name)
        if child is None:
            continue
        if schema.zeros.get(name, {}) != {}:
            out[name] = schema.zeros[name]
        elif child.is_collection:
            if collections:
                out[name] = [] if child.type == "array" else {}
        elif child.properties:
            out[name] = zero(child, collections=collections)
        elif child.type in _SCALARS and child.raw.get("format") not in ("quantity", "date-time"):
            out[name] = _SCALARS[child.type]
    return out


def zero_kind(schema: Schema) -> dict[str, Any]:
    """The zero value of a kind, with empty collections, from which the fields of a new object differ."""
    out = zero(schema, collections=True)
    for name in _PARTS_OF_KINDS:
        child = schema.field(name) if schema.has_property(name) else None
        if child is not None:
            out.setdefault(name, zero(child, collections=True))
    return out


def fill(value: dict[str, Any], schema: Schema) -> None:
    """Add the absent fields of one object that are always written, in place; `decode` calls it for every object."""
    for name, default in schema.zeros.items():
        if name not in value:
            child = schema.field(name)
            value[name] = zero(child) if default == {} and child is not None else default


def fill_kind(obj: dict[str, Any], schema: Schema) -> None:
    """Add the absent spec and status of a whole object, in place."""
    for name in _PARTS_OF_KINDS:
        if name not in obj and schema.has_property(name):
            child = schema.field(name)
            if child is not None and child.properties:
                obj[name] = zero(child)
