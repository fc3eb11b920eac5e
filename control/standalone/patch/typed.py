"""Structured-merge operations by schema: collect fields, compare, merge and remove.

apply and managedFields are built from these four functions. They interpret a schema in the same way: atomic maps and
lists are leaves, keyed lists and sets are addressed by item, everything else by key. They never change their
arguments; results may share unchanged parts with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from control.standalone.patch.fieldset import FieldSet, Path, prefixes
from control.standalone.schema.walk import UNKNOWN, Schema

_ABSENT = object()


class DuplicateItem(ValueError):
    """An applied keyed list has the same item twice, or an item without its key."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths that only `new` has, that both have with different values, and that only `old` has."""

    added: FieldSet = field(default_factory=set)
    modified: FieldSet = field(default_factory=set)
    removed: FieldSet = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.added or self.modified or self.removed)


def field_set(value: Any, schema: Schema, *, containers: bool = False) -> FieldSet:
    """All leaf paths of an object, and the paths of list items and map keys.

    With `containers`, non-empty maps and lists are members too: a manager owns those that its update created.
    """
    out: FieldSet = set()
    _collect(value, schema, (), out, containers)
    return out


def _child(schema: Schema, key: str) -> Schema:
    child = schema.field(key)
    return UNKNOWN if child is None else child


def _is_leaf(value: Any, schema: Schema) -> bool:
    if isinstance(value, dict):
        return not value or schema.atomic_map
    if isinstance(value, list):
        return not value or schema.list_type == "atomic"
    return True


def _collect(value: Any, schema: Schema, path: Path, out: FieldSet, containers: bool) -> None:
    if _is_leaf(value, schema):
        if path:
            out.add(path)
        return
    if containers and path:
        out.add(path)
    if isinstance(value, dict):
        for key, item in value.items():
            here = (*path, "f:" + key)
            if not schema.has_property(key) and schema.values() is not None:
                out.add(here)
            _collect(item, _child(schema, key), here, out, containers)
        return
    for item in value:
        element = schema.item_key(item)
        if element is None:
            continue
        out.add((*path, element))
        _collect(item, schema.element(), (*path, element), out, containers)


def compare(old: Any, new: Any, schema: Schema) -> Difference:
    """The changes from `old` to `new`. The order of keyed lists and sets doesn't matter."""
    result = Difference()
    _compare(_ABSENT if old is None else old, _ABSENT if new is None else new, schema, (), result)
    return result


def _compare(old: Any, new: Any, schema: Schema, path: Path, out: Difference) -> None:
    if old is new or (type(old) is type(new) and old == new):
        return
    if old is _ABSENT:
        _collect(new, schema, path, out.added, True)
        return
    if new is _ABSENT:
        _collect(old, schema, path, out.removed, True)
        return
    if isinstance(old, dict) and isinstance(new, dict) and not schema.atomic_map:
        for key in old.keys() | new.keys():
            _compare(old.get(key, _ABSENT), new.get(key, _ABSENT), _child(schema, key), (*path, "f:" + key), out)
        return
    if isinstance(old, list) and isinstance(new, list) and schema.list_type != "atomic":
        before, after = _by_key(old, schema), _by_key(new, schema)
        for element in before.keys() | after.keys():
            here = (*path, element)
            if element not in before:
                out.added.add(here)
            elif element not in after:
                out.removed.add(here)
            _compare(before.get(element, _ABSENT), after.get(element, _ABSENT), schema.element(), here, out)
        return
    if not _is_leaf(old, schema):
        _collect(old, schema, path, out.removed, True)
    if not _is_leaf(new, schema):
        _collect(new, schema, path, out.added, True)
    out.modified.add(path)


def _by_key(items: list[Any], schema: Schema) -> dict[str, Any]:
    """Items by path element; of duplicates the first counts; items without identity are left out."""
    out: dict[str, Any] = {}
    for item in items:
        element = schema.item_key(item)
        if element is not None:
            out.setdefault(element, item)
    return out


def merge(live: Any, applied: Any, schema: Schema, where: str = "") -> Any:
    """`live` with the fields of `applied`; raises DuplicateItem for an ambiguous applied list."""
    if isinstance(live, dict) and isinstance(applied, dict) and not schema.atomic_map:
        result = dict(live)
        for key, value in applied.items():
            result[key] = merge(live.get(key, _ABSENT), value, _child(schema, key), f"{where}.{key}")
        return result
    if isinstance(applied, dict) and live is _ABSENT and not schema.atomic_map:
        return {key: merge(_ABSENT, value, _child(schema, key), f"{where}.{key}") for key, value in applied.items()}
    if isinstance(applied, list) and schema.list_type != "atomic":
        return _merge_list(live if isinstance(live, list) else [], applied, schema, where)
    return applied


def _merge_list(live: list[Any], applied: list[Any], schema: Schema, where: str) -> list[Any]:
    applied_items: dict[str, Any] = {}
    for item in applied:
        element = schema.item_key(item)
        if element is None:
            raise DuplicateItem(f"{where}: element lacks its key field(s) {', '.join(schema.list_map_keys)}")
        if element in applied_items:
            raise DuplicateItem(f"{where}: duplicate entries for key [{element[2:]}]")
        applied_items[element] = item
    keyed = [(schema.item_key(item), item) for item in live]
    position = {element: index for index, (element, _) in reversed(list(enumerate(keyed))) if element is not None}
    result: list[Any] = []
    emitted = 0  # live items before this index are in the result, or will be placed by the applied order
    known = {element for element in applied_items if element in position}
    for element, item in applied_items.items():
        index = position.get(element)
        # A live item follows the live items before it; new items after the last known one are appended at the end.
        upto = index if index is not None else 0 if known else len(keyed)
        result.extend(old for key, old in keyed[emitted:upto] if key not in applied_items)
        emitted = max(emitted, upto if index is None else index + 1)
        if index is not None:
            known.remove(element)
        live_item = _ABSENT if index is None else keyed[index][1]
        result.append(merge(live_item, item, schema.element(), f"{where}[{element[2:]}]"))
    result.extend(old for key, old in keyed[emitted:] if key not in applied_items)
    return result


def remove(value: Any, schema: Schema, paths: FieldSet, keep: FieldSet | frozenset[Path] = frozenset()) -> Any:
    """`value` without these paths and everything below them; emptied containers are removed too, except `keep`."""
    if not paths:
        return value
    return _remove(value, schema, (), _Removal(paths, prefixes(paths), keep))


@dataclass(frozen=True, slots=True)
class _Removal:
    paths: FieldSet
    inner: FieldSet  # containers of removed members
    keep: FieldSet | frozenset[Path]


def _remove(value: Any, schema: Schema, path: Path, removal: _Removal) -> Any:
    if isinstance(value, dict):
        result: dict[str, Any] = {}
        for key, item in value.items():
            here = (*path, "f:" + key)
            if here in removal.paths:
                continue
            if here in removal.inner:
                remainder = _remove(item, _child(schema, key), here, removal)
                if item and not remainder and isinstance(remainder, dict | list) and here not in removal.keep:
                    continue
                item = remainder
            result[key] = item
        return result
    if isinstance(value, list) and schema.list_type != "atomic":
        items = []
        for item in value:
            element = schema.item_key(item)
            here = (*path, element or "")
            if here in removal.paths:
                continue
            items.append(_remove(item, schema.element(), here, removal) if here in removal.inner else item)
        return items
    return value


def members_with_fields(paths: FieldSet, schema: Schema) -> FieldSet:
    """The set plus every declared field that contains a member: a struct exists while it has a member."""
    return paths | {path for path in prefixes(paths) if path[-1].startswith("f:") and _declared(path, schema)}


def _declared(path: Path, schema: Schema) -> bool:
    here = schema
    for element in path[:-1]:
        here = _child(here, element[2:]) if element.startswith("f:") else here.element()
    return here.has_property(path[-1][2:])
