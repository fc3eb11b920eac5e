"""Structural schemas (apiextensions/v1) of struct types (spec 01 §3). Pure.

Types and required fields come from the struct, everything else from the notes of `koordlet.api.encoding.fields.doc`.
The schema of a field with the note `preserve` is an object without properties, even if its struct has fields.
"""

import inspect as python_inspect
from datetime import datetime
from typing import Any

import msgspec
from msgspec import inspect

from koordlet.api.encoding.quantity import Quantity
from koordlet.api.encoding.wire import Duration
from koordlet.api.meta import LabelSelector, ObjectReference

Schema = dict[str, Any]

QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
PRESERVE = "x-kubernetes-preserve-unknown-fields"

# Types that server-side apply always owns as a whole.
_ATOMIC = (LabelSelector, ObjectReference)
_INT_OR_STRING: Schema = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_SCALARS: tuple[tuple[type[inspect.Type], Schema], ...] = (
    (inspect.BoolType, {"type": "boolean"}),
    (inspect.IntType, {"type": "integer", "format": "int64"}),
    (inspect.FloatType, {"type": "number", "format": "double"}),
    (inspect.StrType, {"type": "string"}),
)
_ROOT_FIELDS: dict[str, Schema] = {
    "apiVersion": {"description": "Group and version of the schema of this object.", "type": "string"},
    "kind": {"description": "Kind of this object, in CamelCase.", "type": "string"},
    "metadata": {"type": "object"},
}


class SchemaError(TypeError):
    """A struct has no structural schema; the message names the field."""


def root_schema(kind: type[msgspec.Struct]) -> Schema:
    """The schema of a whole object. Raises SchemaError.

    `spec` is never required, as in Koordinator: an object that was stored without it can still be updated.
    """
    schema = _struct(kind, kind.__name__, skip=frozenset(_ROOT_FIELDS))
    required = [name for name in schema.pop("required", []) if name != "spec"]
    if required:
        schema["required"] = required
    schema["properties"] = {**_ROOT_FIELDS, **schema["properties"]}
    return schema


def _struct(cls: type[msgspec.Struct], where: str, skip: frozenset[str] = frozenset()) -> Schema:
    properties: dict[str, Schema] = {}
    required: list[str] = []
    shape = inspect.type_info(cls)
    assert isinstance(shape, inspect.StructType)
    for field in shape.fields:
        name = field.encode_name
        if name in skip:
            continue
        properties[name], notes = _schema(field.type, f"{where}.{name}")
        if field.required or notes.get("required"):
            required.append(name)
    schema: Schema = {"description": _summary(cls), "type": "object"}
    if properties:
        schema["properties"] = properties
    if required:
        schema["required"] = required
    if cls in _ATOMIC:
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


def _schema(shape: inspect.Type, where: str) -> tuple[Schema, dict[str, Any]]:
    """The schema of a type, and its notes."""
    notes: dict[str, Any] = {}
    while isinstance(shape, inspect.Metadata):
        notes = {**(shape.extra_json_schema or {}), **notes}
        shape = shape.type
    keywords = {key: value for key, value in notes.items() if key != "required"}
    if keywords.get(PRESERVE):
        return _described({"type": "object", **keywords}), notes
    if keywords.get("x-kubernetes-int-or-string"):
        return _described({**_INT_OR_STRING, **keywords}), notes
    if isinstance(shape, inspect.UnionType):
        members = [member for member in shape.types if not isinstance(member, inspect.NoneType)]
        if len(members) != 1:
            raise SchemaError(f"{where}: a union of {len(members)} types has no structural schema")
        schema, inner = _schema(members[0], where)
        # The note on the field takes precedence: it is more specific than the one on the type.
        return _described({**schema, **keywords}), {**inner, **notes}
    return _described({**_plain(shape, where), **keywords}), notes


def _described(schema: Schema) -> Schema:
    """The schema with its description first, for readability."""
    return {**{key: schema[key] for key in ("description",) if key in schema}, **schema}


def _plain(shape: inspect.Type, where: str) -> Schema:
    for kind, schema in _SCALARS:
        if isinstance(shape, kind):
            return dict(schema)
    match shape:
        case inspect.StructType(cls=cls):
            return _struct(cls, where)
        case inspect.ListType(item_type=item):
            return {"type": "array", "items": _schema(item, f"{where}[]")[0]}
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _schema(value, f"{where}{{}}")[0]}
        case inspect.CustomType(cls=cls) if cls is Quantity:
            return {**_INT_OR_STRING, "pattern": QUANTITY_PATTERN}
        case inspect.CustomType(cls=cls) if issubclass(cls, datetime):
            return {"type": "string", "format": "date-time"}
        case inspect.CustomType(cls=cls) if cls is Duration:
            return {"type": "string"}
    raise SchemaError(f"{where}: {type(shape).__name__} has no structural schema")


def _summary(cls: type) -> str:
    text = python_inspect.getdoc(cls) or ""
    return " ".join(text.split("\n\n")[0].replace("`", "").split())
