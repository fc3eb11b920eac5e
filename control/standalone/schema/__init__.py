"""What kinds look like: schemas, defaults, validation, OpenAPI documents.

`KindSchemas` is what the API server plugs into its `Schemas` seam:

    schemas = KindSchemas()
    registry = Registry(…, schemas=schemas)
    documents = schemas.openapi(kinds)          # .v2() .v3_index() .v3("apis/apps/v1")

For built-in kinds the structure comes from the model classes of the `kubernetes` package, for custom kinds
from the CRD's schema (`Kind.crd`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from control.standalone import errors
from control.standalone.errors import FieldError
from control.standalone.kinds import Kind, Kinds
from control.standalone.schema import defaults, structural, validation
from control.standalone.schema.builtin import Builtins
from control.standalone.schema.custom import complete, version_schema
from control.standalone.schema.decode import DecodeError, decode
from control.standalone.schema.openapi import OpenAPI
from control.standalone.schema.walk import UNKNOWN, Schema

Json = dict[str, Any]

__all__ = ["KindSchemas", "OpenAPI", "Schema"]


class KindSchemas:
    """The `Schemas` seam; schemas are made on first use and kept while the kind stays what it is."""

    def __init__(self, builtins: Builtins | None = None) -> None:
        self.builtins = builtins if builtins is not None else Builtins()
        self._custom: dict[tuple[str, str], tuple[Mapping[str, Any] | None, Schema]] = {}

    def openapi(self, kinds: Kinds) -> OpenAPI:
        """The OpenAPI documents over the same schemas."""
        return OpenAPI(kinds, self.builtins)

    def merge_schema(self, kind: Kind, version: str) -> Schema:
        """The schema of a kind in a version; UNKNOWN (deduced merging) where there is none."""
        if kind.custom:
            return self._custom_schema(kind, version)
        if kind.storage_key:  # a view: objects are handled in the form they are stored in
            return self.builtins.schema("", "v1", kind.kind) or UNKNOWN
        return self.builtins.schema(kind.group, version, kind.kind) or UNKNOWN

    def unknown_fields(self, kind: Kind, version: str, obj: Json) -> list[str]:
        """Read the object as its kind: raises StatusError 400 for a wrong type in a built-in kind; removes
        fields that the schema doesn't know and returns their paths."""
        schema = self.merge_schema(kind, version)
        try:
            decode(obj if not kind.custom else obj["metadata"], schema if not kind.custom else self._meta, kind.kind)
        except DecodeError as error:
            head = f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}'
            raise errors.bad_request(f"{head}: {error}") from error
        return structural.prune(obj, schema)

    def default(self, kind: Kind, version: str, obj: Json) -> None:
        if kind.custom:
            structural.fill_defaults(obj, self._custom_schema(kind, version))
        else:
            defaults.fill(kind.key, obj)

    def validate(self, kind: Kind, version: str, obj: Json, old: Json | None, subresource: str) -> list[FieldError]:
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

    def _custom_schema(self, kind: Kind, version: str) -> Schema:
        held = self._custom.get((kind.key, version))
        if held is not None and held[0] is kind.crd:
            return held[1]
        raw = version_schema(kind.crd or {"spec": {}}, version)
        if raw is None:
            raw = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        schema = Schema(complete(raw, "#/definitions/V1ObjectMeta"), self.builtins.models.get)
        self._custom[(kind.key, version)] = (kind.crd, schema)
        return schema
