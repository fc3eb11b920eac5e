"""Patches of plain JSON objects: JSON patch, merge patch, strategic merge patch, server-side apply.

`Patches` implements `policyinterfaces.Patcher`:

    registry = ObjectRegistry(…, patcher=Patches())

Each kind of patch is a pure function in its own module; `Patches` converts their errors to `StatusError`s.
`schema` is a `control.standalone.schema.walk.Schema`, or None when the kind has no schema.
"""

from __future__ import annotations

from typing import Any

from control.standalone import errors
from control.standalone.patch import apply as ssa
from control.standalone.patch import json_patch, managed_fields, merge_patch, strategic
from control.standalone.patch.apply import ApplyConflict, conflict_causes, conflict_message
from control.standalone.schema.walk import Schema

Json = dict[str, Any]

__all__ = ["ApplyConflict", "Patches", "conflict_error"]


def conflict_error(conflicts: list[ApplyConflict]) -> errors.StatusError:
    """409 that names every conflicting manager and field."""
    return errors.of_reason("Conflict", conflict_message(conflicts), {"causes": conflict_causes(conflicts)})


class Patches:
    """Implements `policyinterfaces.Patcher`."""

    def json(self, doc: Json, ops: Any) -> Json:
        try:
            result = json_patch.apply(doc, ops)
        except json_patch.JsonPatchError as error:
            if error.invalid:
                message = f"the server rejected our request due to an error in our request: {error}"
                raise errors.generic("Invalid", message) from error
            raise errors.bad_request(f"error decoding patch: {error}") from error
        return _object(result)

    def merge(self, doc: Json, patch: Any) -> Json:
        return _object(merge_patch.apply(doc, patch))

    def strategic(self, doc: Json, patch: Json, schema: Schema | None) -> Json:
        try:
            return strategic.apply(doc, patch, schema)
        except strategic.StrategicPatchError as error:
            raise errors.bad_request(f"error applying strategic merge patch: {error}") from error

    def apply(
        self,
        live: Json | None,
        applied: Json,
        manager: str,
        force: bool,
        schema: Schema | None,
        subresource: str,
        api_version: str,
        now: str,
    ) -> tuple[Json, list[ApplyConflict]]:
        try:
            return ssa.server_side_apply(live, applied, manager, force, schema, subresource, api_version, now)
        except ssa.ApplyError as error:
            raise errors.bad_request(str(error)) from error

    def track(
        self,
        live: Json | None,
        new: Json,
        manager: str,
        operation: str,
        schema: Schema | None,
        subresource: str,
        now: str,
    ) -> None:
        try:
            result = managed_fields.update_on_write(live, new, manager, operation, schema, subresource, now)
        except managed_fields.ManagedFieldsError as error:
            raise errors.of_reason("Invalid", str(error)) from error
        new["metadata"] = result["metadata"]


def _object(result: Any) -> Json:
    if not isinstance(result, dict):
        raise errors.bad_request("the result of the patch is not an object")
    return result
