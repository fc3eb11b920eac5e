"""RFC 6902 patches from a typed object before and after: only what was changed, nothing that the type does not know.

Structs are trimmed, so the changed struct can't be compared with what the API server sent: every unknown field would
look deleted, every default added. Instead the difference *between the two encodings of the struct* is carried over to
the raw document (`carried`), and the raw document before and after that is compared (`diff`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordlet.kube.patch import pointer

_NOTHING: Any = object()


def patch(raw: Any, before: Any, after: Any) -> list[dict[str, Any]]:
    """The operations that do to `raw` what turned `before` into `after`; all three as plain JSON values."""
    return diff(raw, carried(raw, before, after))


def carried(raw: Any, before: Any, after: Any) -> Any:
    """`raw` with the changes from `before` to `after` made in it; none of the arguments is changed."""
    if same(before, after):
        return raw
    if isinstance(after, Mapping) and isinstance(before, Mapping):
        return _carried_map(raw if isinstance(raw, Mapping) else {}, before, after)
    if isinstance(after, list) and isinstance(before, list):
        return _carried_list(raw if isinstance(raw, list) else [], before, after)
    return after


def _carried_map(raw: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(raw)
    for key in before.keys() - after.keys():
        result.pop(key, None)
    for key, value in after.items():
        old = before.get(key, _NOTHING)
        if old is _NOTHING:
            # What the struct left out as its zero value may hold fields that the struct does not know.
            old = {} if isinstance(value, Mapping) and isinstance(raw.get(key), Mapping) else _NOTHING
        elif same(old, value):
            continue
        result[key] = value if old is _NOTHING else carried(raw.get(key), old, value)
    return result


def _carried_list(raw: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    """Elements are the same one where they are equal or have the same unique `name`, else by their place."""
    if len(raw) != len(before):
        return after  # the raw list does not say which element is which
    partner = _partners(before, after)
    return [
        item if old is None else carried(raw[old], before[old], item)
        for item, old in zip(after, partner, strict=True)
    ]  # fmt: skip


def _partners(before: list[Any], after: list[Any]) -> list[int | None]:
    """For each element of `after` the index of the element of `before` that it was, None for a new one."""
    old_names, new_names = _names(before), _names(after)
    if old_names is not None and new_names is not None:
        index = {name: at for at, name in enumerate(old_names)}
        return [index.get(name) for name in new_names]
    found: list[int | None] = [None] * len(after)
    free = list(range(len(before)))
    for at, item in enumerate(after):
        match = next((old for old in free if same(before[old], item)), None)
        if match is not None:
            found[at] = match
            free.remove(match)
    if len(before) == len(after):
        for at in range(len(after)):
            if found[at] is None and at in free:
                found[at] = at
                free.remove(at)
    return found


def _names(items: list[Any]) -> list[str] | None:
    """The `name` of every element when all have one and no two the same."""
    names = [item.get("name") for item in items if isinstance(item, Mapping)]
    if len(names) != len(items) or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        return None
    return [str(name) for name in names]


def diff(old: Any, new: Any, path: Sequence[str | int] = ()) -> list[dict[str, Any]]:
    """The operations that turn `old` into `new`, maps key by key and lists element by element."""
    if old == new and (msgspec.json.encode(old) == msgspec.json.encode(new) or same(old, new)):
        return []  # what mostly holds, told without a look of ours at each part
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        result = [{"op": "remove", "path": pointer(*path, key)} for key in sorted(old.keys() - new.keys())]
        for key in sorted(new):
            if key not in old:
                result.append({"op": "add", "path": pointer(*path, key), "value": new[key]})
            else:
                result += diff(old[key], new[key], (*path, key))
        return result
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [op for at, (a, b) in enumerate(zip(old, new, strict=True)) for op in diff(a, b, (*path, at))]
    if isinstance(old, list) and isinstance(new, list) and len(old) < len(new) and same(old, new[: len(old)]):
        return [{"op": "add", "path": pointer(*path, "-"), "value": item} for item in new[len(old) :]]
    return [{"op": "replace", "path": pointer(*path), "value": new}]


def same(a: Any, b: Any) -> bool:
    """Equality of JSON values; unlike Python's, true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return bool(a == b)
