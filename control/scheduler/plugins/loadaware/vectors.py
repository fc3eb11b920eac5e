"""Amounts as integer vectors over the resources that the arguments name (spec 05 §8.1).

CPU is in milli-cores, everything else in base units, rounded up. What is not tracked is ignored; what is negative
counts as nothing, and what no machine has is cut to `LIMIT`, so that sums and percentages stay within 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from control.scheduler.config.args import LoadAwareSchedulingArgs
from koordlet.api.encoding.quantity import Quantity

Vector: TypeAlias = tuple[int, ...]
LIMIT: Final = 1 << 54


class Tracked:
    """The tracked resources, sorted by name; a vector has an element for each."""

    def __init__(self, args: LoadAwareSchedulingArgs) -> None:
        aggregated = args.aggregated.usage_thresholds if args.aggregated is not None else {}
        self.names: tuple[str, ...] = tuple(
            sorted(
                {"cpu", "memory"}.union(
                    args.usage_thresholds,
                    args.prod_usage_thresholds,
                    aggregated,
                    args.resource_weights,
                    args.estimated_scaling_factors,
                    args.supported_resources,
                )
            )
        )
        self.zero: Vector = (0,) * len(self.names)

    def amounts(self, resources: Mapping[str, Quantity]) -> Vector:
        """Quantities as a vector."""
        return tuple(amount(name, resources.get(name)) for name in self.names)

    def numbers(self, values: Mapping[str, int]) -> Vector:
        """Plain numbers (thresholds, weights) as a vector."""
        return tuple(values.get(name, 0) for name in self.names)


def amount(name: str, quantity: Quantity | None) -> int:
    """One element of a vector."""
    if quantity is None:
        return 0
    return min(max(quantity.milli_value() if name == "cpu" else quantity.value(), 0), LIMIT)


def plus(a: Sequence[int], b: Sequence[int]) -> Sequence[int]:
    total = [x + y for x, y in zip(a, b, strict=True)]
    return total if max(total) <= LIMIT else [min(amount, LIMIT) for amount in total]
