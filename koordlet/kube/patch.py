"""Patch bodies: content types, minimal merge patches, JSON pointers.

The project's components write only patches of the fields that they own, so that unknown fields are kept
(docs/decisions.md).
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
    """The minimal JSON merge patch (RFC 7386) that changes `old` into `new`; {} if they are equal.

    Both are dicts or wire structs that contain only fields owned by the caller: a key in `old` but not in `new`
    becomes null, which deletes it. Lists are replaced as a whole, as merge patches do. For owned fields of a larger
    object, compare the parts and wrap the result (`{"status": merge_diff(a, b)}`).
    Raises ValueError if `new` has a null inside a map, which a merge patch cannot express.
    """
    before = _plain(old)
    after = _plain(new)
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
    """A map that is set as a whole. The server would silently drop its nulls, so they raise ValueError."""
    for key, item in value.items():
        if item is None:
            raise ValueError(f"{path}{key}: a merge patch can delete a field but not set it to null")
        if isinstance(item, Mapping):
            _checked(item, f"{path}{key}.")
    return dict(value)


def _same(a: Any, b: Any) -> bool:
    """Equality of JSON values; unlike in Python, true is not equal to 1."""
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
