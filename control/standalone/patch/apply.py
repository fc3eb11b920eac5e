"""Server-side apply: merge what a manager wants into what is, and know who owns every field.

The rules (those of Kubernetes' structured merge):
- the applier comes to own exactly the fields it names; what it named the last time and no longer does is
  removed, unless somebody else owns it too;
- changing a field that another manager owns is a conflict, unless the value stays the same (then both own it)
  or the applier forces it (then it alone owns it);
- applying the same again changes nothing, managedFields' time included.

Nulls in an applied object mean "not mentioned". An object that has never had managedFields gets the manager
"before-first-apply" for what it already holds. `kubectl apply --server-side` after client-side apply: fields
that the last-applied annotation holds don't conflict, and the annotation keeps step.
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
    """The applied object itself can't be applied (HTTP 400)."""


@dataclass(frozen=True, slots=True)
class ApplyConflict:
    """One field that `manager` owns and the applier wants otherwise."""

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
    """`Apply failed with 1 conflict: conflict with "a" using v1: .spec.x`, as kubectl prints it."""
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

    Returns the merged object with its managedFields, and the conflicts; with conflicts the object is `live`
    unchanged. With `force` there are none. For subresource "status" only `status` is taken from `applied`;
    otherwise the caller has dropped `status` where the kind has that subresource. The result is final: it must
    not go through `update_on_write` again. Raises ApplyError for an unappliable object.
    """
    if not manager:
        raise ApplyError("fieldManager: Required value: is required for apply patch")
    if len(manager) > MAX_MANAGER_NAME:
        raise ApplyError(f"fieldManager: Too long: may not be more than {MAX_MANAGER_NAME} bytes")
    if (applied.get("metadata") or {}).get("managedFields"):
        raise ApplyError("metadata.managedFields must be nil")
    schema = schema or UNKNOWN
    wanted = _wanted(applied, subresource)
    before = _without_managed_fields(live or {})
    managers = _managers_of(live, before, schema, now)
    me = manager_id(manager, "Apply", api_version, subresource)
    mine_before: FieldSet = set(managers[me].paths) if me in managers else set()
    mine: FieldSet = {path for path in field_set(wanted, schema) if path not in UNOWNED}
    if manager == KUBECTL and me not in managers:
        mine_before |= _adopt_last_applied(managers, before, schema)

    try:
        merged = merge(before, wanted, schema)
    except DuplicateItem as error:
        raise ApplyError(str(error)) from error
    held = managers.get(me)
    managers[me] = Owned(frozenset(mine), api_version, now)
    merged = _prune(merged, managers, mine_before, schema)

    difference = compare(before, merged, schema)
    taken = (difference.added | difference.modified) - UNOWNED
    conflicts = [
        ApplyConflict(key, path) for key, owned in managers.items() if key != me for path in sorted(owned.paths & taken)
    ]
    if conflicts and not force:
        return dict(live or {}), sorted(conflicts, key=lambda c: (c.manager.name, c.path))
    settle(managers, me, taken, difference.removed)
    _follow_last_applied(merged, before, wanted, manager)
    if live is not None and held is not None and held.paths == mine and held.api_version == api_version:
        if not difference and merged == before:
            return dict(live), []
        if not difference:
            managers[me] = held
    merged["metadata"] = {**merged.get("metadata", {}), "managedFields": encode(managers)}
    if not merged["metadata"]["managedFields"]:
        del merged["metadata"]["managedFields"]
    return merged, []


def _wanted(applied: Mapping[str, Any], subresource: str) -> dict[str, Any]:
    """The applied object without nulls, and only its status for the status subresource."""
    wanted: dict[str, Any] = _drop_nulls(applied)
    if subresource == "status":
        keep = ("apiVersion", "kind", "metadata", "status")
        wanted = {key: value for key, value in wanted.items() if key in keep}
        identity = ("name", "namespace", "resourceVersion", "uid")
        wanted["metadata"] = {k: v for k, v in wanted.get("metadata", {}).items() if k in identity}
    return wanted


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


def _prune(merged: dict[str, Any], managers: Managers, mine_before: FieldSet, schema: Schema) -> dict[str, Any]:
    """Remove what the applier owned before and nobody owns now (it included)."""
    owned: FieldSet = set()
    for entry in managers.values():
        owned |= entry.paths
    kept = owned | prefixes(owned)
    gone = members_with_fields(mine_before, schema) - kept - UNOWNED
    result: dict[str, Any] = remove(merged, schema, gone, owned)
    return result


def _last_applied(obj: Mapping[str, Any]) -> str | None:
    value = ((obj.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    return value if isinstance(value, str) and value else None


def _adopt_last_applied(managers: Managers, before: Mapping[str, Any], schema: Schema) -> FieldSet:
    """The first server-side apply by kubectl takes over what its client-side apply had applied.

    Returns the paths taken over, so that those not applied any more are removed as they would have been.
    """
    text = _last_applied(before)
    if text is None:
        return set()
    try:
        paths = field_set(_drop_nulls(json.loads(text)), schema)
    except ValueError:
        return set()  # an unreadable annotation claims nothing
    adopted: FieldSet = set()
    for key in [k for k in managers if k.name == KUBECTL_CLIENT_SIDE and k.operation == "Update"]:
        owned = managers[key]
        adopted |= owned.paths & paths
        managers[key] = Owned(owned.paths - paths, owned.api_version, owned.time)
    return adopted


def _follow_last_applied(
    merged: dict[str, Any], before: Mapping[str, Any], wanted: Mapping[str, Any], manager: str
) -> None:
    """Keep the annotation true, so that a later client-side apply computes the right deletions."""
    if manager != KUBECTL or _last_applied(before) is None:
        return
    metadata = dict(wanted.get("metadata") or {})
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != LAST_APPLIED}
    metadata["annotations"] = annotations
    text = json.dumps({**wanted, "metadata": metadata}, separators=(",", ":"), sort_keys=True) + "\n"
    kept = dict(merged["metadata"].get("annotations") or {})
    kept[LAST_APPLIED] = text
    if sum(len(k) + len(v) for k, v in kept.items()) > MAX_ANNOTATION_BYTES:
        del kept[LAST_APPLIED]
    merged["metadata"] = {**merged["metadata"], "annotations": kept}
