"""Amounts as integer vectors over the tracked resources, which the arguments name (spec 05 §8.1).

CPU is in milli-cores, other resources in base units, rounded up. Other resources are ignored. Negative amounts count as
0, and amounts are limited to `MAX_AMOUNT`, so that sums and percentages fit into 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from control.scheduler.config.args import LoadAwareSchedulingArgs
from koordlet.api.encoding.quantity import Quantity

Vector: TypeAlias = tuple[int, ...]
MAX_AMOUNT: Final = 1 << 54


class Tracked:
    """The tracked resources, sorted by name. A vector has one element per resource."""

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
    return min(max(quantity.milli_value() if name == "cpu" else quantity.value(), 0), MAX_AMOUNT)


def plus(a: Sequence[int], b: Sequence[int]) -> Sequence[int]:
    total = [x + y for x, y in zip(a, b, strict=True)]
    return total if max(total) <= MAX_AMOUNT else [min(amount, MAX_AMOUNT) for amount in total]
