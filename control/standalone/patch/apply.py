"""Server-side apply: merges the applied object into the live one and tracks the owner of every field.

The rules are those of Kubernetes' structured merge:
- the applier owns exactly the fields of the applied object; fields that it applied the last time and no longer applies
  are removed, unless another manager owns them too;
- changing a field that another manager owns is a conflict, unless the value stays the same (then both own it)
  or the applier forces it (then only the applier owns it);
- applying the same object again changes nothing, not even managedFields' time.

A null in an applied object means that the field is not applied. The fields of an object that never had managedFields
get the manager "before-first-apply". With `kubectl apply --server-side` after client-side apply, the fields in the
last-applied annotation don't conflict, and the annotation is kept up to date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.standalone.patch.fieldset import FieldSet, Path, format_path, prefixes
from control.standalone.patch.managed_fields import (
    MAX_MANAGER_NAME,
    UNOWNED,
    ManagerId,
    Managers,
    Owned,
    decode,
    encode,
    manager_id,
    settle,
)
from control.standalone.patch.typed import (
    DuplicateItem,
    compare,
    field_set,
    members_with_fields,
    merge,
    remove,
)
from control.standalone.schema.walk import UNKNOWN, Schema

BEFORE_FIRST_APPLY = "before-first-apply"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
MAX_ANNOTATION_BYTES = 256 * 1024
KUBECTL = "kubectl"
KUBECTL_CLIENT_SIDE = "kubectl-client-side-apply"


class ApplyError(ValueError):
    """The applied object is invalid (HTTP 400)."""


@dataclass(frozen=True, slots=True)
class ApplyConflict:
    """One field that `manager` owns and for which the applier has another value."""

    manager: ManagerId
    path: Path

    @property
    def field(self) -> str:
        return format_path(self.path)

    def __str__(self) -> str:
        return f"{_holder(self.manager)}: {self.field}"


def _holder(manager: ManagerId) -> str:
    text = f'conflict with "{manager.name}"'
    if manager.subresource:
        text += f' with subresource "{manager.subresource}"'
    if manager.operation == "Update":
        text += f" using {manager.api_version}"
    return text


def conflict_message(conflicts: list[ApplyConflict]) -> str:
    """`Apply failed with 1 conflict: conflict with "a" using v1: .spec.x`, which kubectl prints."""
    head = f"Apply failed with {len(conflicts)} conflict{'s' if len(conflicts) > 1 else ''}: "
    if len(conflicts) == 1:
        return head + str(conflicts[0])
    by_holder: dict[str, list[str]] = {}
    for conflict in conflicts:
        by_holder.setdefault(_holder(conflict.manager).replace("conflict", "conflicts", 1), []).append(conflict.field)
    return head + "\n".join(holder + ":\n- " + "\n- ".join(fields) for holder, fields in sorted(by_holder.items()))


def conflict_causes(conflicts: list[ApplyConflict]) -> list[dict[str, str]]:
    """`details.causes` of the 409 Status."""
    return [{"reason": "FieldManagerConflict", "message": _holder(c.manager), "field": c.field} for c in conflicts]


def server_side_apply(
    live: Mapping[str, Any] | None,
    applied: Mapping[str, Any],
    manager: str,
    force: bool,
    schema: Schema | None,
    subresource: str,
    api_version: str,
    now: str,
) -> tuple[dict[str, Any], list[ApplyConflict]]:
    """Apply `applied` to `live` (None: the object is being created).

    Returns the merged object with its managedFields, and the conflicts; with conflicts the object is `live`,
    unchanged. With `force` there are none. For the subresource "status" only `status` of `applied` is used;
    otherwise the caller has removed `status` if the kind has that subresource. The result has its final managedFields:
    it must not be passed to `update_on_write`. Raises ApplyError for an invalid object.
    """
    if not manager:
        raise ApplyError("fieldManager: Required value: is required for apply patch")
    if len(manager) > MAX_MANAGER_NAME:
        raise ApplyError(f"fieldManager: Too long: may not be more than {MAX_MANAGER_NAME} bytes")
    if (applied.get("metadata") or {}).get("managedFields"):
        raise ApplyError("metadata.managedFields must be nil")
    schema = schema or UNKNOWN
    desired = _desired(applied, subresource)
    before = _without_managed_fields(live or {})
    managers = _managers_of(live, before, schema, now)
    applier = manager_id(manager, "Apply", api_version, subresource)
    applied_before: FieldSet = set(managers[applier].paths) if applier in managers else set()
    applied_paths: FieldSet = {path for path in field_set(desired, schema) if path not in UNOWNED}
    if manager == KUBECTL and applier not in managers:
        applied_before |= _adopt_last_applied(managers, before, schema)

    try:
        merged = merge(before, desired, schema)
    except DuplicateItem as error:
        raise ApplyError(str(error)) from error
    previous = managers.get(applier)
    managers[applier] = Owned(frozenset(applied_paths), api_version, now)
    merged = _prune(merged, managers, applied_before, schema)

    difference = compare(before, merged, schema)
    taken = (difference.added | difference.modified) - UNOWNED
    conflicts = [
        ApplyConflict(key, path)
        for key, owned in managers.items()
        if key != applier
        for path in sorted(owned.paths & taken)
    ]
    if conflicts and not force:
        return dict(live or {}), sorted(conflicts, key=lambda c: (c.manager.name, c.path))
    settle(managers, applier, taken, difference.removed)
    _follow_last_applied(merged, before, desired, manager)
    reapplied = previous is not None and previous.paths == applied_paths and previous.api_version == api_version
    if live is not None and previous is not None and reapplied:
        if not difference and merged == before:
            return dict(live), []
        if not difference:
            managers[applier] = previous
    merged["metadata"] = {**merged.get("metadata", {}), "managedFields": encode(managers)}
    if not merged["metadata"]["managedFields"]:
        del merged["metadata"]["managedFields"]
    return merged, []


def _desired(applied: Mapping[str, Any], subresource: str) -> dict[str, Any]:
    """The applied object without nulls; for the status subresource only its status."""
    desired: dict[str, Any] = _drop_nulls(applied)
    if subresource == "status":
        keep = ("apiVersion", "kind", "metadata", "status")
        desired = {key: value for key, value in desired.items() if key in keep}
        identity = ("name", "namespace", "resourceVersion", "uid")
        desired["metadata"] = {k: v for k, v in desired.get("metadata", {}).items() if k in identity}
    return desired


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_drop_nulls(item) for item in value]
    return value


def _without_managed_fields(obj: Mapping[str, Any]) -> dict[str, Any]:
    metadata = obj.get("metadata") or {}
    if "managedFields" not in metadata:
        return dict(obj)
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def _managers_of(live: Mapping[str, Any] | None, before: dict[str, Any], schema: Schema, now: str) -> Managers:
    entries = ((live or {}).get("metadata") or {}).get("managedFields")
    if entries:
        return decode(entries)
    if live is None:
        return {}
    version = str(live.get("apiVersion", ""))
    paths = field_set(before, schema, containers=True) - UNOWNED
    key = manager_id(BEFORE_FIRST_APPLY, "Update", version, "")
    return {key: Owned(frozenset(paths), version, now)} if paths else {}


def _prune(merged: dict[str, Any], managers: Managers, applied_before: FieldSet, schema: Schema) -> dict[str, Any]:
    """Remove the fields that the applier owned before and that no manager owns now."""
    owned: FieldSet = set()
    for entry in managers.values():
        owned |= entry.paths
    remaining = owned | prefixes(owned)
    removed = members_with_fields(applied_before, schema) - remaining - UNOWNED
    result: dict[str, Any] = remove(merged, schema, removed, owned)
    return result


def _last_applied(obj: Mapping[str, Any]) -> str | None:
    value = ((obj.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    return value if isinstance(value, str) and value else None


def _adopt_last_applied(managers: Managers, before: Mapping[str, Any], schema: Schema) -> FieldSet:
    """Transfer the fields of kubectl's client-side apply to its first server-side apply.

    Returns the transferred paths; those that are not applied any more are removed.
    """
    text = _last_applied(before)
    if text is None:
        return set()
    try:
        paths = field_set(_drop_nulls(json.loads(text)), schema)
    except ValueError:
        return set()  # an invalid annotation transfers nothing
    adopted: FieldSet = set()
    for key in [k for k in managers if k.name == KUBECTL_CLIENT_SIDE and k.operation == "Update"]:
        owned = managers[key]
        adopted |= owned.paths & paths
        managers[key] = Owned(owned.paths - paths, owned.api_version, owned.time)
    return adopted


def _follow_last_applied(
    merged: dict[str, Any], before: Mapping[str, Any], desired: Mapping[str, Any], manager: str
) -> None:
    """Update the last-applied annotation, so that a later client-side apply computes the right deletions."""
    if manager != KUBECTL or _last_applied(before) is None:
        return
    metadata = dict(desired.get("metadata") or {})
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != LAST_APPLIED}
    metadata["annotations"] = annotations
    text = json.dumps({**desired, "metadata": metadata}, separators=(",", ":"), sort_keys=True) + "\n"
    new_annotations = dict(merged["metadata"].get("annotations") or {})
    new_annotations[LAST_APPLIED] = text
    if sum(len(k) + len(v) for k, v in new_annotations.items()) > MAX_ANNOTATION_BYTES:
        del new_annotations[LAST_APPLIED]
    merged["metadata"] = {**merged["metadata"], "annotations": new_annotations}
