"""Patches with the errors of the API (`StatusError`); server-side apply is in `apply`. Pure."""

from __future__ import annotations

from typing import Any

from control.standalone import errors
from control.standalone.patch import json_patch, merge_patch
from control.standalone.patch.apply import ApplyConflict, conflict_causes, conflict_message
from control.standalone.schema.walk import Schema
from koordlet.api.encoding import strategicmerge

Json = dict[str, Any]


def json(doc: Json, ops: Any) -> Json:
    """The document after a JSON patch; raises StatusError."""
    try:
        result = json_patch.apply(doc, ops)
    except json_patch.JsonPatchError as error:
        if error.invalid:
            message = f"the server rejected our request due to an error in our request: {error}"
            raise errors.generic("Invalid", message) from error
        raise errors.bad_request(f"error decoding patch: {error}") from error
    return _object(result)


def merge(doc: Json, patch: Any) -> Json:
    """The document after a merge patch; raises StatusError."""
    return _object(merge_patch.apply(doc, patch))


def strategic(doc: Json, patch: Json, schema: Schema | None) -> Json:
    """The document after a strategic merge patch; raises StatusError."""
    try:
        return strategicmerge.apply(doc, patch, schema)
    except strategicmerge.StrategicPatchError as error:
        raise errors.bad_request(f"error applying strategic merge patch: {error}") from error


def conflict_error(conflicts: list[ApplyConflict]) -> errors.StatusError:
    """409 that names every conflicting manager and field."""
    return errors.of_reason("Conflict", conflict_message(conflicts), {"causes": conflict_causes(conflicts)})


def _object(result: Any) -> Json:
    if not isinstance(result, dict):
        raise errors.bad_request("the result of the patch is not an object")
    return result
