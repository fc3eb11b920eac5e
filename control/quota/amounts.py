"""Amounts of resources as integers: cpu in milli-cores, everything else in whole units (spec 06 §0.2). Pure.

Amounts are exact integers without an upper bound, because weights times amounts exceed 64 bits. Comparing lists is not
symmetric on purpose: a resource that a limit does not name is unlimited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from koordlet.api.encoding.quantity import BINARY_SI, DECIMAL_SI, ZERO, Quantity

Amounts = dict[str, int]
MAX_AMOUNT: Final = 2**63 - 1
"""Larger amounts count as this one."""
_BINARY: Final = frozenset(("memory", "ephemeral-storage"))


def from_list(resources: Mapping[str, Quantity]) -> Amounts:
    """Rounded up; negative amounts count as 0."""
    return {name: _amount(name, quantity) for name, quantity in resources.items()}


def _amount(name: str, quantity: Quantity) -> int:
    return min(max(quantity.milli_value() if name == "cpu" else quantity.value(), 0), MAX_AMOUNT)


def quantity(name: str, amount: int) -> Quantity:
    """An amount as Kubernetes writes it. Sums of many pods may exceed what Kubernetes can read back: they are
    bounded, too."""
    amount = min(amount, MAX_AMOUNT)
    if name == "cpu":
        return Quantity.milli(amount)
    return Quantity.of(amount, BINARY_SI if name in _BINARY or name.startswith("hugepages-") else DECIMAL_SI)


def to_list(amounts: Mapping[str, int]) -> dict[str, Quantity]:
    return {name: quantity(name, amount) for name, amount in amounts.items()}


def differs(amounts: Mapping[str, int], resources: Mapping[str, Quantity]) -> bool:
    """Whether the two state different amounts; 0 is the same as none."""
    return any(quantity(name, amounts.get(name, 0)) != resources.get(name, ZERO) for name in {*amounts, *resources})


def masked(amounts: Mapping[str, int], names: Iterable[str]) -> Amounts:
    """The amounts of these resources only."""
    return {name: amounts[name] for name in names if name in amounts}


def added(a: Mapping[str, int], b: Mapping[str, int]) -> Amounts:
    """The sum; resources of either."""
    total = dict(a)
    for name, amount in b.items():
        total[name] = total.get(name, 0) + amount
    return total


def add_to(total: Amounts, amounts: Mapping[str, int], sign: int = 1) -> None:
    """Add to `total` in place; results below 0 become 0."""
    for name, amount in amounts.items():
        total[name] = max(total.get(name, 0) + sign * amount, 0)


def exceeding(amounts: Mapping[str, int], limit: Mapping[str, int]) -> list[str]:
    """The resources that exceed the limit, sorted. A resource that the limit does not name is unlimited."""
    return sorted(name for name, amount in amounts.items() if name in limit and amount > limit[name])


def shown(amounts: Mapping[str, int]) -> str:
    """`cpu:1,memory:2Gi`, sorted; `<empty>` without entries."""
    return ",".join(f"{name}:{quantity(name, amount)}" for name, amount in sorted(amounts.items())) or "<empty>"
