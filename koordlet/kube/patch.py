"""Patch bodies: kinds, merge patches of exactly what changed, JSON pointers.

Every write of ours is a patch on the fields we own, so that fields we don't know survive (design §3.4).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from koordlet.api.encoding import wire


class PatchKind(enum.Enum):
    """The content types of PATCH."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


def merge_diff(old: object, new: object) -> dict[str, Any]:
    """The smallest JSON merge patch (RFC 7386) that turns `old` into `new`; {} when they are equal.

    Both are objects as dicts or wire structs that hold only the fields the caller owns: a key in `old` but not in
    `new` becomes null, that is, it is deleted. Lists are replaced whole, as merge patches do. For fields owned
    inside a bigger object, compare the two parts and wrap the result (`{"status": merge_diff(a, b)}`).
    Raises ValueError when `new` holds a null inside a map, which a merge patch can't express.
    """
    before, after = _plain(old), _plain(new)
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        raise TypeError("merge_diff compares objects")
    return _diff(before, after, "")


def _diff(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> dict[str, Any]:
    patch: dict[str, Any] = {key: None for key in old if key not in new and old[key] is not None}
    for key, value in new.items():
        if value is None:
            if old.get(key) is not None:
                raise ValueError(f"{path}{key}: a merge patch can delete a field but not set it to null")
            continue
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := _diff(before, value, f"{path}{key}."):
                patch[key] = inner
        elif not _same(before, value):
            patch[key] = _checked(value, f"{path}{key}.") if isinstance(value, Mapping) else value
    return patch


def _checked(value: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A map that is set whole: its nulls would silently be dropped by the server, so they are refused."""
    for key, item in value.items():
        if item is None:
            raise ValueError(f"{path}{key}: a merge patch can delete a field but not set it to null")
        if isinstance(item, Mapping):
            _checked(item, f"{path}{key}.")
    return dict(value)


def _same(a: Any, b: Any) -> bool:
    """Equality of JSON values; unlike Python's, true is not 1."""
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    return bool(a == b)


def _plain(value: object) -> Any:
    return wire.to_builtins(value) if isinstance(value, msgspec.Struct) else value


def pointer(*parts: str | int) -> str:
    """A JSON pointer (RFC 6901): `pointer("metadata", "labels", "a/b")` is `/metadata/labels/a~1b`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
