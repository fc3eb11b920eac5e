"""Lay one struct over another: the single merge primitive of the SLO configuration (spec 01 §6.3).

What a patch leaves out by the omission rules of the wire keeps the base's value; nullable fields that
are set to 0 or false are not left out. Objects are merged field by field, maps by key with the whole
value replaced, lists replaced unless the patch's is empty. Lists of objects are replaced too (the
reference merges them by index: spec 01 §9 A9). Neither argument changes; the result shares what did not.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from koordlet.api.encoding.shape import written_fields

S = TypeVar("S", bound=msgspec.Struct)


def overlay(base: S, patch: msgspec.Struct | None) -> S:
    """`base` with everything that `patch` says.

    `patch` is of base's type, or of a subclass that adds fields of its own (a node entry of the ConfigMap):
    only base's fields count. None says nothing.
    """
    if patch is None:
        return base
    changes: dict[str, object] = {}
    for name in base.__struct_fields__:
        old, new = getattr(base, name), getattr(patch, name)
        if isinstance(new, msgspec.Struct) and isinstance(old, msgspec.Struct):
            merged: object = overlay(old, new)
        elif isinstance(new, dict) and isinstance(old, dict):
            merged = {**old, **new} if new else old
        elif new is None or (_is_zero(new) and name not in written_fields(type(base))):
            continue
        else:
            merged = new
        if merged is not old:
            changes[name] = merged
    return msgspec.structs.replace(base, **changes) if changes else base


def _is_zero(value: object) -> bool:
    return value in (False, 0, "") if isinstance(value, bool | int | float | str) else value in ([], {})
