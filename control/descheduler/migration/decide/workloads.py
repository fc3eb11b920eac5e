"""Replicas and pods of a workload, and the limits that follow from them (spec 07 §11.4). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from koordlet.api.core import Pod

DERIVED_SHARE_PERCENT = 10
DERIVED_SHARE_ABOVE_REPLICAS = 10
DERIVED_PAIR_FROM_REPLICAS = 4


@dataclass(frozen=True, slots=True)
class ReplicatedWorkload:
    """A workload as the limits see it."""

    replicas: int
    """desired number of pods; the number of existing pods if the desired one is unknown"""
    pods: Sequence[Pod]


def get_max(replicas: int, value: int | str | None) -> int:
    """How many of `replicas` pods may be affected: `value` is a number, a percentage `N%`, or None (derived)."""
    if value is None:
        if replicas > DERIVED_SHARE_ABOVE_REPLICAS:
            limit = replicas * DERIVED_SHARE_PERCENT // 100
        else:
            limit = 2 if replicas >= DERIVED_PAIR_FROM_REPLICAS else 1
    else:
        limit = max(absolute(replicas, value), 1)
    return min(limit, replicas)


def absolute(replicas: int, value: int | str) -> int:
    """A number as it is, a percentage of `replicas` rounded down."""
    return replicas * int(value.removesuffix("%")) // 100 if isinstance(value, str) else value
