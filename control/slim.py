"""Objects in caches, made small: one empty list and one empty map for all of them, one copy of texts that repeat.

A decoded pod has some forty empty lists and maps of its own, two thirds of its memory. Whoever takes an object from a
cache must not change it anyway, so they can be the same. Pure but for the object, which is changed in place.
"""

from __future__ import annotations

from sys import intern
from typing import Any, Final

import msgspec

EMPTY_LIST: Final[list[Any]] = []
EMPTY_MAP: Final[dict[Any, Any]] = {}
REPEATED: Final = frozenset(
    (
        *("api_version", "image", "kind", "namespace", "node_name", "phase", "priority", "priority_class_name", "qos"),
        *("qos_class", "reason", "restart_policy", "scheduler_name", "service_account_name", "status", "type"),
    )
)
"""Fields whose texts a cluster has few of."""


def slimmed(obj: Any) -> Any:
    """`obj`, a mutable struct, and the structs in it."""
    if type(obj).__struct_config__.frozen:
        return obj
    for name in obj.__struct_fields__:
        value = getattr(obj, name)
        kind = type(value)
        if kind is list:
            if not value:
                setattr(obj, name, EMPTY_LIST)
            elif isinstance(value[0], msgspec.Struct):
                for item in value:
                    slimmed(item)
        elif kind is dict:
            setattr(obj, name, {_one(key): _one(item) for key, item in value.items()} if value else EMPTY_MAP)
        elif kind is str:
            if name in REPEATED:
                setattr(obj, name, intern(value))
        elif isinstance(value, msgspec.Struct):
            slimmed(value)
    return obj


def _one(value: Any) -> Any:
    """Keys and values of labels, annotations, resource lists; long texts are left alone."""
    if type(value) is str and len(value) < 128:
        return intern(value)
    return slimmed(value) if isinstance(value, msgspec.Struct) else value
