"""What kinds look like: schemas, defaults, validation, OpenAPI documents.

`KindSchemas` is what the API server plugs into its `Schemas` seam:

    schemas = KindSchemas()
    registry = Registry(…, schemas=schemas)
    documents = schemas.openapi(kinds)          # .v2() .v3_index() .v3("apis/apps/v1")

For built-in kinds the structure comes from the model classes of the `kubernetes` package, for custom kinds
from the CRD's schema (`ResourceKind.crd`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from control.standalone import errors
from control.standalone.errors import FieldError
from control.standalone.kinds import Kinds, ResourceKind
from control.standalone.schema import defaults, structural, validation
from control.standalone.schema.builtin import Builtins
from control.standalone.schema.custom import complete, version_schema
from control.standalone.schema.decode import DecodeError, decode
from control.standalone.schema.openapi import OpenAPI
from control.standalone.schema.walk import UNKNOWN, Schema

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode

__all__ = ["KindSchemas", "OpenAPI", "Schema"]


class KindSchemas:
    """The `Schemas` seam; schemas are made on first use and kept while the kind stays what it is."""

    def __init__(self, builtins: Builtins | None = None) -> None:
        self.builtins = builtins if builtins is not None else Builtins()
        self._custom: dict[tuple[str, str], tuple[Mapping[str, Any] | None, Schema]] = {}

    def openapi(self, kinds: Kinds) -> OpenAPI:
        """The OpenAPI documents over the same schemas."""
        return OpenAPI(kinds, self.builtins)

    def merge_schema(self, kind: ResourceKind, version: str) -> Schema:
        """The schema of a kind in a version; UNKNOWN (deduced merging) where there is none."""
        if kind.custom:
            return self._custom_schema(kind, version)
        if kind.storage_key:  # a view: objects are handled in the form they are stored in
            return self.builtins.schema("", "v1", kind.kind) or UNKNOWN
        return self.builtins.schema(kind.group, version, kind.kind) or UNKNOWN

    def unknown_fields(self, kind: ResourceKind, version: str, obj: Json, old: Json | None = None) -> list[str]:
        """Read the object as its kind: raises StatusError 400 for a wrong type in a built-in kind; removes
        fields that the schema doesn't know and returns their paths. What is as in `old` was read before."""
        schema = self.merge_schema(kind, version)
        if kind.custom:  # all of it, every time: a CRD's schema may have changed since
            _decode(obj["metadata"], self._meta, kind, version)
            return structural.prune(obj, schema)
        if old is None:
            _decode(obj, schema, kind, version)
            return structural.prune(obj, schema)
        fresh = _differing(obj, old)
        meta = _differing(obj["metadata"], old["metadata"])
        if meta:
            fresh["metadata"] = meta
        names, meta_names = set(fresh), set(meta)
        _decode(fresh, schema, kind, version)
        gone = structural.prune(fresh, schema)
        _drop(obj["metadata"], meta_names - meta.keys())
        _drop(obj, names - fresh.keys())
        return gone

    def default(self, kind: ResourceKind, version: str, obj: Json) -> None:
        if kind.custom:
            structural.fill_defaults(obj, self._custom_schema(kind, version))
        else:
            defaults.fill(kind.key, obj)

    def validate(
        self, kind: ResourceKind, version: str, obj: Json, old: Json | None, subresource: str
    ) -> list[FieldError]:
        if kind.custom:
            return structural.validate(obj, self._custom_schema(kind, version))
        if subresource and subresource != "status":
            return []  # the subresource has judged its own input, and the rest has not changed
        if subresource == "status" and kind.key != "/nodes":
            return []
        return validation.validate(kind.key, obj, old)

    @property
    def _meta(self) -> Schema:
        return self.builtins.object_meta

    def _custom_schema(self, kind: ResourceKind, version: str) -> Schema:
        held = self._custom.get((kind.key, version))
        if held is not None and held[0] is kind.crd:
            return held[1]
        raw = version_schema(kind.crd or {"spec": {}}, version)
        if raw is None:
            raw = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        schema = Schema(complete(raw, "#/definitions/V1ObjectMeta"), self.builtins.models.get)
        self._custom[(kind.key, version)] = (kind.crd, schema)
        return schema


def _decode(obj: Json, schema: Schema, kind: ResourceKind, version: str) -> None:
    try:
        decode(obj, schema, kind.kind)
    except DecodeError as error:
        head = f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}'
        raise errors.bad_request(f"{head}: {error}") from error


def _differing(obj: Json, old: Json) -> Json:
    """The fields of `obj` that are not as in `old`; their values are shared with `obj`."""
    # Encoded, because 1, 1.0 and True are equal but not the same JSON.
    return {name: value for name, value in obj.items() if name not in old or _encode(old[name]) != _encode(value)}


def _drop(target: Json, names: Iterable[str]) -> None:
    for name in names:
        del target[name]
