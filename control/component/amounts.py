"""Bounded integer amounts of resources, for columns of 64-bit integers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MAX_AMOUNT: Final = 1 << 53
"""Upper bound of a pod's request for one resource (8 PiB of memory); a node's capacity is bounded below it. The sum of
a thousand pods, and a hundred times the capacity of a node, still fit into an int64 column."""


def amounts(resources: Mapping[str, Any]) -> dict[str, int]:
    """Quantities as integers, rounded up: cpu in milli-cores, other resources in whole units (spec 05 §3.1).

    Bounded by 0 and `MAX_AMOUNT`: an integer overflow would make a full node look empty to other pods."""
    return {
        name: min(max(quantity.milli_value() if name == "cpu" else quantity.value(), 0), MAX_AMOUNT)
        for name, quantity in resources.items()
    }
