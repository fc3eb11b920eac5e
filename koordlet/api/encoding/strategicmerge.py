"""Strategic merge patch: a merge patch with merge keys for the lists of built-in kinds. Pure.

A `MergeSchema` defines which lists are merged by which key (the embedded API server takes it from OpenAPI's
`x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key`, the manager has a small table); all other lists are
replaced. Directives: `$patch` (replace, delete, merge) in maps and list items, `$retainKeys`,
`$deleteFromPrimitiveList/<list>` and `$setElementOrder/<list>`. Null removes a key. Neither the document nor the patch
is modified. Custom resources have no merge keys: the API server refuses this patch type for them.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Protocol

DIRECTIVE = "$patch"
RETAIN_KEYS = "$retainKeys"
DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
ELEMENT_ORDER = "$setElementOrder/"
MAX_SHOWN = 64
"""Characters of a merge key's value in the paths of error messages."""
_DELETED = object()


class MergeSchema(Protocol):
    """The merge behaviour of a field."""

    @property
    def patch_strategies(self) -> Collection[str]:
        """Any of "merge", "replace", "retainKeys"."""

    @property
    def patch_merge_key(self) -> str:
        """The key that identifies the objects of a list; empty for lists of scalars."""

    def field(self, name: str, /) -> MergeSchema | None:
        """The schema of a member; None if it is unknown."""

    def element(self) -> MergeSchema:
        """The schema of a list's items."""


class Untyped:
    """An unknown field: maps are merged, lists are replaced."""

    patch_strategies: Collection[str] = ()
    patch_merge_key = ""

    def field(self, name: str, /) -> MergeSchema | None:
        return None

    def element(self) -> MergeSchema:
        return self


UNKNOWN = Untyped()


class StrategicPatchError(ValueError):
    """The patch is malformed for this kind (HTTP 400); the message names the field."""


def apply(doc: Mapping[str, Any], patch: Mapping[str, Any], schema: MergeSchema | None) -> dict[str, Any]:
    """The document after the patch; raises StrategicPatchError."""
    return _merge_map(doc, patch, schema or UNKNOWN, "")


def _merge_map(doc: Mapping[str, Any], patch: Mapping[str, Any], schema: MergeSchema, where: str) -> dict[str, Any]:
    directive = patch.get(DIRECTIVE)
    if directive == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != DIRECTIVE}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise StrategicPatchError(f"{where or '.'}: unknown $patch type: {directive!r}")
    result = dict(doc)
    if RETAIN_KEYS in patch:
        _retain(result, patch, where)
    orders: dict[str, list[Any]] = {}
    for key, value in patch.items():
        if key.startswith(ELEMENT_ORDER):
            orders[key.removeprefix(ELEMENT_ORDER)] = _list(value, f"{where}.{key}")
        elif key.startswith(DELETE_PRIMITIVES):
            name = key.removeprefix(DELETE_PRIMITIVES)
            deleted = {_hashable(item) for item in _list(value, f"{where}.{key}")}
            if isinstance(result.get(name), list):
                result[name] = [item for item in result[name] if _hashable(item) not in deleted]
    for key, value in patch.items():
        if key in (DIRECTIVE, RETAIN_KEYS) or key.startswith((ELEMENT_ORDER, DELETE_PRIMITIVES)):
            continue
        if value is None:
            result.pop(key, None)
            continue
        result[key] = _merge_value(result.get(key), value, schema.field(key) or UNKNOWN, f"{where}.{key}")
    for name, order in orders.items():
        if isinstance(result.get(name), list):
            original = doc.get(name)
            child = schema.field(name) or UNKNOWN
            before = original if isinstance(original, list) else []
            result[name] = _ordered(result[name], before, order, child.patch_merge_key, f"{where}.{name}")
    return result


def _retain(result: dict[str, Any], patch: Mapping[str, Any], where: str) -> None:
    keep = {key for key in _list(patch[RETAIN_KEYS], f"{where}.{RETAIN_KEYS}") if isinstance(key, str)}
    for key, value in patch.items():
        if key not in keep and value is not None and not key.startswith("$"):
            raise StrategicPatchError(f"{where}.{key}: a field of the patch must be in its $retainKeys")
    for key in [key for key in result if key not in keep]:
        del result[key]


def _merge_value(old: Any, new: Any, schema: MergeSchema, where: str) -> Any:
    replaces = "replace" in schema.patch_strategies
    if isinstance(new, Mapping):
        return _merge_map(old if isinstance(old, Mapping) and not replaces else {}, new, schema, where)
    if isinstance(new, list) and "merge" in schema.patch_strategies:
        return _merge_list(old if isinstance(old, list) else [], new, schema, where)
    return copy.deepcopy(new)


def _merge_list(old: list[Any], new: list[Any], schema: MergeSchema, where: str) -> list[Any]:
    merge_key = schema.patch_merge_key
    if not merge_key:
        if any(isinstance(item, Mapping | list) for item in old + new):
            raise StrategicPatchError(f"{where}: objects or lists in a list of primitives")
        known = set(old)
        added = [item for item in dict.fromkeys(new) if item not in known]
        return _ordered(old + added, old, new, "", where)
    if any(isinstance(item, Mapping) and item.get(DIRECTIVE) == "replace" for item in new):
        kept = [item for item in new if isinstance(item, Mapping) and item.get(DIRECTIVE) != "replace"]
        return copy.deepcopy(kept)
    result = list(old)
    order: list[Any] = []
    positions: dict[Any, list[int]] = {}  # value of the merge key -> its items in `result`
    for position, item in enumerate(old):
        if isinstance(item, Mapping):
            positions.setdefault(_hashable(item.get(merge_key)), []).append(position)
    for item in new:
        if not isinstance(item, Mapping):
            raise StrategicPatchError(f"{where}: expected objects")
        if merge_key not in item:
            raise StrategicPatchError(f"{where}: map: {dict(item)} does not contain declared merge key: {merge_key}")
        name = _hashable(item[merge_key])
        if item.get(DIRECTIVE) == "delete":
            for position in positions.pop(name, ()):
                result[position] = _DELETED
            continue
        order.append(item)
        here = f"{where}[{merge_key}={str(item[merge_key])[:MAX_SHOWN]}]"
        if name in positions:
            first = positions[name][0]
            result[first] = _merge_map(result[first], item, schema.element(), here)
        else:
            positions[name] = [len(result)]
            result.append(_merge_map({}, item, schema.element(), here))
    return _ordered([item for item in result if item is not _DELETED], old, order, merge_key, where)


def _hashable(value: Any) -> Any:
    """A hashable value that is equal for equal JSON values, so that items are looked up and not compared in pairs."""
    if isinstance(value, Mapping):
        return "map", frozenset((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list):
        return "list", tuple(_hashable(item) for item in value)
    return value


def _ordered(items: list[Any], original: list[Any], order: list[Any], merge_key: str, where: str) -> list[Any]:
    """`items` in the order of `order`, which names some of them; the others keep their order in `original`.

    As in Kubernetes, an item of `original` that `order` does not name comes before a named one only if it did so in
    `original`; so new items are inserted before it, not appended.
    """

    def identity(item: Any) -> Any:
        if not merge_key:
            return _hashable(item)
        if not isinstance(item, Mapping) or merge_key not in item:
            raise StrategicPatchError(f"{where}: element does not contain declared merge key: {merge_key}")
        return _hashable(item[merge_key])

    rank = {identity(item): at for at, item in reversed(list(enumerate(order)))}
    was = {identity(item): at for at, item in reversed(list(enumerate(original)))}
    named = deque(sorted((item for item in items if identity(item) in rank), key=lambda item: rank[identity(item)]))
    unnamed = deque(item for item in items if identity(item) not in rank)
    result: list[Any] = []
    while named and unnamed:
        left, right = was.get(identity(named[0])), was.get(identity(unnamed[0]))
        take_other = left is not None and right is not None and right < left
        result.append(unnamed.popleft() if take_other else named.popleft())
    return [*result, *named, *unnamed]


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise StrategicPatchError(f"{where}: expected a list")
    return value
