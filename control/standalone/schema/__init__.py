"""Schemas of kinds: unknown fields, defaults, validation, OpenAPI documents.

`KindSchemas` implements `policyinterfaces.Schemas`:

    schemas = KindSchemas()
    registry = ObjectRegistry(…, schemas=schemas)
    documents = schemas.openapi(kinds)          # .v2() .v3_index() .v3("apis/apps/v1")

The schemas of built-in kinds come from the model classes of the `kubernetes` package, those of custom kinds
from the CRD (`ResourceKind.crd`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from control.standalone import errors
from control.standalone.errors import FieldError
from control.standalone.kinds import NODE, POD, Kinds, ResourceKind
from control.standalone.schema import defaults, structural, validation, zeros
from control.standalone.schema.builtin import Builtins
from control.standalone.schema.custom import complete, version_schema
from control.standalone.schema.decode import DecodeError, decode
from control.standalone.schema.openapi import OpenAPI
from control.standalone.schema.validation_pod import validate_ephemeral_containers, validate_resize
from control.standalone.schema.walk import UNKNOWN, Schema

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode

_PARTS: dict[tuple[str, str], Callable[[Json, Json | None], Iterator[FieldError]]] = {
    (POD, "ephemeralcontainers"): validate_ephemeral_containers,
    (POD, "resize"): validate_resize,
}
"""(Kind, subresource) -> what validates the part that the subresource writes."""

__all__ = ["KindSchemas", "OpenAPI", "Schema"]


class KindSchemas:
    """Implements `policyinterfaces.Schemas`. Schemas are made on first use and cached until the kind changes."""

    def __init__(self, builtins: Builtins | None = None) -> None:
        self.builtins = builtins if builtins is not None else Builtins()
        self._custom: dict[tuple[str, str], tuple[Mapping[str, Any] | None, Schema]] = {}

    def openapi(self, kinds: Kinds) -> OpenAPI:
        """The OpenAPI documents of the same schemas."""
        return OpenAPI(kinds, self.builtins)

    def merge_schema(self, kind: ResourceKind, version: str) -> Schema:
        """The schema of a kind in a version; UNKNOWN (merging without a schema) when there is none."""
        if kind.custom:
            return self._custom_schema(kind, version)
        if kind.storage_key:  # objects of another kind's storage are handled in their stored form
            return self.builtins.schema("", "v1", kind.kind) or UNKNOWN
        return self.builtins.schema(kind.group, version, kind.kind) or UNKNOWN

    def unknown_fields(self, kind: ResourceKind, version: str, obj: Json, old: Json | None = None) -> list[str]:
        """Remove the fields that the schema doesn't have; returns their paths. Raises StatusError 400 for a field of
        the wrong type in a built-in kind. Fields with the same value as in `old` have been checked before."""
        schema = self.merge_schema(kind, version)
        if kind.custom:  # the whole object each time: the CRD's schema may have changed
            _decode(obj["metadata"], self._meta, kind, version)
            return structural.prune(obj, schema)
        if old is None:
            _decode(obj, schema, kind, version)
            return structural.prune(obj, schema)
        changed = _differing(obj, old)
        meta = _differing(obj["metadata"], old["metadata"])
        if meta:
            changed["metadata"] = meta
        names, meta_names = set(changed), set(meta)
        _decode(changed, schema, kind, version)
        removed = structural.prune(changed, schema)
        _drop(obj["metadata"], meta_names - meta.keys())
        _drop(obj, names - changed.keys())
        return removed

    def default(self, kind: ResourceKind, version: str, obj: Json) -> None:
        if kind.custom:
            structural.fill_defaults(obj, self._custom_schema(kind, version))
        else:
            defaults.fill(kind.key, obj)

    def complete(self, kind: ResourceKind, version: str, obj: Json) -> None:
        if not kind.custom:
            zeros.fill_kind(obj, self.merge_schema(kind, version))

    def zero(self, kind: ResourceKind, version: str) -> Json:
        return {} if kind.custom else zeros.zero_kind(self.merge_schema(kind, version))

    def validate(
        self, kind: ResourceKind, version: str, obj: Json, old: Json | None, subresource: str
    ) -> list[FieldError]:
        if kind.custom:
            return structural.validate(obj, self._custom_schema(kind, version))
        part = _PARTS.get((kind.key, subresource))
        if part is not None:
            return list(part(obj, old))
        if subresource and (kind.key, subresource) != (NODE, "status"):
            return []  # the handler has validated its part, and the other fields have not changed
        return validation.validate(kind.key, obj, old)

    @property
    def _meta(self) -> Schema:
        return self.builtins.object_meta

    def _custom_schema(self, kind: ResourceKind, version: str) -> Schema:
        cached = self._custom.get((kind.key, version))
        if cached is not None and cached[0] is kind.crd:
            return cached[1]
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
    """The fields of `obj` that differ from `old`; their values are shared with `obj`."""
    # Encoded, because 1, 1.0 and True are equal but not the same JSON.
    return {name: value for name, value in obj.items() if name not in old or _encode(old[name]) != _encode(value)}


def _drop(target: Json, names: Iterable[str]) -> None:
    for name in names:
        del target[name]
