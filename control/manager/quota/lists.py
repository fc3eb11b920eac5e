"""Arithmetic over resource lists as quota rules use it (spec 04 §2). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from koordlet.api.encoding.quantity import ZERO
from koordlet.api.resources import ResourceList, Resources


def total(lists: Iterable[Resources]) -> ResourceList:
    """The sum, key by key."""
    result: ResourceList = {}
    for each in lists:
        for name, amount in each.items():
            result[name] = result[name] + amount if name in result else amount
    return result


def largest(a: Resources, b: Resources) -> ResourceList:
    """The larger amount of each key of both."""
    return {**a, **{name: max(amount, a.get(name, amount)) for name, amount in b.items()}}


def excess(a: Resources, b: Resources) -> list[str]:
    """Keys of which `a` has more than `b`; what `b` lacks counts as none. Sorted."""
    return sorted(name for name, amount in a.items() if amount > b.get(name, ZERO))


def negative(a: Resources) -> list[str]:
    """Keys with an amount below zero. Sorted."""
    return sorted(name for name, amount in a.items() if amount < ZERO)


def shown(a: Resources, keys: Iterable[str]) -> str:
    """`cpu=2,memory=1Gi` of these keys; one that is absent is 0."""
    return ",".join(f"{name}={a.get(name, ZERO)}" for name in keys)
