"""JSON merge patch (RFC 7386): null removes, objects merge, everything else replaces."""

from __future__ import annotations

import copy
from typing import Any


def apply(doc: Any, patch: Any) -> Any:
    """The document after the patch; neither argument is changed."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(doc) if isinstance(doc, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply(result.get(key), value)
    return result


def diff(old: Any, new: Any) -> Any:
    """A patch from `old` to `new`, which must not contain nulls: `apply(old, diff(old, new)) == new`."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return copy.deepcopy(new)
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = copy.deepcopy(value)
        elif not _same(old[key], value):
            patch[key] = diff(old[key], value)
    return patch


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)
