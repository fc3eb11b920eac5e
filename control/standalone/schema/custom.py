"""Schemas of custom kinds: the CRD's openAPIV3Schema, completed with the fields that every object has.

`complete` adds apiVersion, kind and a typed metadata (the schema in a CRD may restrict metadata but not describe it).
Pruning, defaulting, validation, apply and OpenAPI of custom kinds use the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

API_VERSION = {
    "type": "string",
    "description": "The versioned schema this object is written in, as group/version.",
}
KIND = {"type": "string", "description": "The kind of this object, in CamelCase. It can't be changed."}
METADATA = {"description": "Standard object's metadata."}

Json = dict[str, Any]


def version_schema(crd: Mapping[str, Any], version: str) -> Json | None:
    """The openAPIV3Schema of a version; None if the CRD has none."""
    for entry in crd["spec"].get("versions", ()):
        if entry.get("name") == version:
            schema = (entry.get("schema") or {}).get("openAPIV3Schema")
            return dict(schema) if schema is not None else None
    return None


def complete(schema: Mapping[str, Any], object_meta: str) -> Json:
    """`schema` with apiVersion, kind and metadata; `object_meta` is the `$ref` of ObjectMeta."""
    if not schema.get("properties") and schema.get("x-kubernetes-preserve-unknown-fields"):
        properties: Json = {}
    else:
        properties = dict(schema.get("properties") or {})
    properties["apiVersion"] = {**API_VERSION, **properties.get("apiVersion", {})}
    properties["kind"] = {**KIND, **properties.get("kind", {})}
    properties["metadata"] = {**METADATA, "$ref": object_meta}
    return {**schema, "type": "object", "properties": properties}
