"""Arithmetic on resource lists for the quota rules (spec 04 §2). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from koordlet.api.encoding.quantity import ZERO
from koordlet.api.resources import ResourceList, Resources


def total(lists: Iterable[Resources]) -> ResourceList:
    """The sum per resource."""
    result: ResourceList = {}
    for resources in lists:
        for name, amount in resources.items():
            result[name] = result[name] + amount if name in result else amount
    return result


def largest(a: Resources, b: Resources) -> ResourceList:
    """The larger amount per resource; resources of either list."""
    return {**a, **{name: max(amount, a.get(name, amount)) for name, amount in b.items()}}


def excess(a: Resources, b: Resources) -> list[str]:
    """Resources of which `a` has more than `b`, sorted; a resource missing in `b` counts as 0."""
    return sorted(name for name, amount in a.items() if amount > b.get(name, ZERO))


def negative(a: Resources) -> list[str]:
    """Resources with a negative amount, sorted."""
    return sorted(name for name, amount in a.items() if amount < ZERO)


def shown(a: Resources, keys: Iterable[str]) -> str:
    """`cpu=2,memory=1Gi` for these resources; a missing one is 0."""
    return ",".join(f"{name}={a.get(name, ZERO)}" for name in keys)
