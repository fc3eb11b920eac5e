"""metadata.managedFields: the manager of each field, updated by every write.

`Managers` is the decoded form: one `Owned` (set of paths, apiVersion, time) per manager. An update gives its
manager the fields that it added or changed, and removes changed and removed fields from all other managers;
`apply` uses the same type. At most MAX_UPDATE_MANAGERS update entries are kept; the oldest are merged into one
entry named "ancient-changes", as in Kubernetes, to limit the size.

The registry calls this after defaulting and before storing, for every create, update and patch other than
apply. `now` is RFC 3339 with seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from control.standalone.patch.fieldset import FieldSet, FieldSetError, Path, parse, to_fields_v1
from control.standalone.patch.typed import compare
from control.standalone.schema.walk import UNKNOWN, Schema

MAX_UPDATE_MANAGERS = 10
MAX_MANAGER_NAME = 128
ANCIENT = "ancient-changes"

UNOWNED: frozenset[Path] = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)}
    | {
        ("f:metadata", "f:" + name)
        for name in (
            "name",
            "namespace",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "uid",
            "generation",
            "managedFields",
            "resourceVersion",
        )
    }
)
"""Fields of the server and of the object's identity; they have no manager."""


class ManagedFieldsError(ValueError):
    """A client sent invalid managedFields (HTTP 422)."""


@dataclass(frozen=True, slots=True)
class ManagerId:
    """The identity of a manager. An applier keeps its identity across API versions."""

    name: str
    operation: str  # "Apply" or "Update"
    api_version: str  # "" for appliers
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    """The fields of a manager. `fields` is the fieldsV1 from which `paths` were decoded, to avoid encoding it again."""

    paths: frozenset[Path]
    api_version: str
    time: str
    fields: Mapping[str, Any] | None = None


Managers = dict[ManagerId, Owned]


def manager_id(name: str, operation: str, api_version: str, subresource: str) -> ManagerId:
    return ManagerId(name, operation, "" if operation == "Apply" else api_version, subresource)


def decode(entries: Any) -> Managers:
    """metadata.managedFields -> managers; raises ManagedFieldsError, which names the entry and the problem."""
    managers: Managers = {}
    if not isinstance(entries, list):
        raise ManagedFieldsError("metadata.managedFields: expected a list")
    for index, entry in enumerate(entries):
        where = f"metadata.managedFields[{index}]"
        if not isinstance(entry, Mapping):
            raise ManagedFieldsError(f"{where}: expected an object")
        operation = entry.get("operation", "")
        if operation not in ("Apply", "Update"):
            raise ManagedFieldsError(f'{where}.operation: Invalid value: "{operation}": must be `Apply` or `Update`')
        if entry.get("fieldsType", "FieldsV1") != "FieldsV1":
            raise ManagedFieldsError(f'{where}.fieldsType: Invalid value: "{entry["fieldsType"]}": must be `FieldsV1`')
        fields = entry.get("fieldsV1") or {}
        try:
            paths = parse(fields)
        except FieldSetError as error:
            raise ManagedFieldsError(f"{where}.fieldsV1: {error}") from error
        version = str(entry.get("apiVersion", ""))
        key = manager_id(str(entry.get("manager", "")), operation, version, str(entry.get("subresource", "")))
        if key in managers:
            paths |= managers[key].paths
            fields = None
        managers[key] = Owned(frozenset(paths), version, str(entry.get("time") or ""), fields)
    return managers


def encode(managers: Managers) -> list[dict[str, Any]]:
    """Managers -> metadata.managedFields: appliers first, then by time and name; without managers of no fields."""
    entries = []
    order = sorted(managers.items(), key=lambda kv: (kv[0].operation, kv[1].time, kv[0].name, kv[0].subresource))
    for key, owned in order:
        if not owned.paths:
            continue
        entry: dict[str, Any] = {
            "manager": key.name,
            "operation": key.operation,
            "apiVersion": owned.api_version,
            "time": owned.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": owned.fields if owned.fields is not None else to_fields_v1(owned.paths),
        }
        if not owned.time:
            del entry["time"]
        if key.subresource:
            entry["subresource"] = key.subresource
        entries.append(entry)
    return entries


def current(live: Mapping[str, Any] | None, new: Mapping[str, Any], subresource: str) -> tuple[Managers, bool]:
    """The managers before a write, and whether the client has set them.

    A client may rewrite managedFields of the main resource (kubectl transfers ownership from client-side to
    server-side apply this way); a single empty entry clears them; without them the live ones are kept.
    """
    live_entries = ((live or {}).get("metadata") or {}).get("managedFields") or []
    sent = (new.get("metadata") or {}).get("managedFields")
    if subresource or not sent or sent == live_entries:
        return decode(live_entries), False
    if sent == [{}]:
        return {}, True
    return {key: replace(owned, fields=None) for key, owned in decode(sent).items()}, True


def settle(managers: Managers, change_of: ManagerId, taken: FieldSet, removed: FieldSet) -> None:
    """Remove the paths in `taken` and `removed` from all managers except `change_of`, in place."""
    lost = taken | removed
    for key, owned in managers.items():
        if key != change_of and not owned.paths.isdisjoint(lost):
            managers[key] = replace(owned, paths=owned.paths - lost, fields=None)


def update_on_write(
    live: Mapping[str, Any] | None,
    new: Mapping[str, Any],
    manager: str,
    operation: str,
    schema: Schema | None,
    subresource: str,
    now: str,
) -> dict[str, Any]:
    """`new` with metadata.managedFields after `manager` changed `live` to `new`.

    Raises ManagedFieldsError if the client sent invalid ones. A write without changes keeps the live
    entries and their times.
    """
    managers, rewritten = current(live, new, subresource)
    difference = compare(live or {}, new, schema or UNKNOWN)
    taken = (difference.added | difference.modified) - UNOWNED
    removed = difference.removed - UNOWNED
    taken = {p for p in taken if p[:2] != ("f:metadata", "f:managedFields")}
    version = str(new.get("apiVersion", ""))
    if taken or removed:
        key = manager_id(manager[:MAX_MANAGER_NAME], operation, version, subresource)
        settle(managers, key, taken, removed)
        owned = managers.get(key)
        paths = ((owned.paths if owned else frozenset()) | taken) - removed
        if owned is None or paths != owned.paths:
            managers[key] = Owned(frozenset(paths), version, now)
        elif taken:
            managers[key] = replace(owned, api_version=version, time=now)
        _cap(managers)
        rewritten = True
    metadata = dict(new.get("metadata") or {})
    if rewritten:
        metadata["managedFields"] = encode(managers)
    else:
        metadata["managedFields"] = ((live or {}).get("metadata") or {}).get("managedFields")
    if not metadata["managedFields"]:
        del metadata["managedFields"]
    return {**new, "metadata": metadata}


def _cap(managers: Managers) -> None:
    """Merge the oldest update managers into one entry per version while there are too many."""
    updates = sorted(
        (key for key, owned in managers.items() if key.operation == "Update" and owned.paths),
        key=lambda key: managers[key].time,
    )
    excess = len(updates) - MAX_UPDATE_MANAGERS
    if excess <= 0:
        return
    for key in updates[: excess + 1]:
        owned = managers.pop(key)
        ancient = manager_id(ANCIENT, "Update", owned.api_version, "")
        merged = managers.get(ancient)
        paths = owned.paths | (merged.paths if merged else frozenset())
        managers[ancient] = Owned(paths, owned.api_version, max(owned.time, merged.time if merged else ""))
