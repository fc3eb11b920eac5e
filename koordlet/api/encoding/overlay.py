"""Merges one struct into another: the only merge operation of the SLO configuration (spec 01 §6.3).

A field that the patch omits on the wire keeps the base's value; a nullable field set to 0 or false is not omitted.
Objects are merged per field. Maps are merged per key; the value of a key is replaced as a whole. Lists are replaced
unless the patch's list is empty, also lists of objects (Koordinator merges these by index: spec 01 §9 A9). Neither
argument is modified; the result shares unchanged parts with them.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from koordlet.api.encoding.shape import written_fields

S = TypeVar("S", bound=msgspec.Struct)


def overlay(base: S, patch: msgspec.Struct | None) -> S:
    """`base` with the values of `patch`; None: no values.

    `patch` has base's type or a subclass with additional fields (a node entry of the ConfigMap), which are ignored.
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
