"""RFC 6902 patches between two plain JSON values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordlet.kube.patch import pointer


def diff(old: Any, new: Any, path: Sequence[str | int] = ()) -> list[dict[str, Any]]:
    """The operations that turn `old` into `new`; maps are compared per key, lists of equal length per element."""
    if old == new and (msgspec.json.encode(old) == msgspec.json.encode(new) or same(old, new)):
        return []  # the common case, decided without comparing each part in Python
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
    """Equality of JSON values; unlike in Python, true does not equal 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return bool(a == b)
