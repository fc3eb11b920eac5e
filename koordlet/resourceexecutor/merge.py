"""One wish per setting out of what all owners declare. Pure.

The rule has no hidden cases: among the owners that want a setting, the one that stands highest for its resource wins,
or, where the rule says so, the one that bounds it most tightly; the others are reported as overruled. `RULES` is the
table; docs/enforcement.md shows it and `/enforcement` serves it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from koordlet.resourceexecutor.settings import Setting, Update, Value
from koordlet.system.cgroup.codecs import UNLIMITED

Declarations = Mapping[str, Mapping[Setting, Update]]
"""Owner -> what it wants."""


@dataclass(frozen=True, slots=True)
class OwnerRule:
    """For `resources` (all when empty) `owners` stand in this order, highest first, and why. With `least` the smallest
    value wins whoever says it (-1 is unlimited), and the order decides between equal ones."""

    resources: tuple[str, ...]
    owners: tuple[str, ...]
    why: str
    least: bool = False

    def covers(self, resource: str) -> bool:
        return not self.resources or resource in self.resources


@dataclass(frozen=True, slots=True)
class Wish:
    """What shall be, who says so, and who else wanted something different."""

    update: Update
    owner: str
    overruled: tuple[str, ...] = ()


def merge(declared: Declarations, rules: Sequence[OwnerRule]) -> dict[Setting, Wish]:
    """Owners that no rule names stand below those it names, in alphabetical order."""
    claims: dict[Setting, list[tuple[str, Update]]] = {}
    for owner in sorted(declared):
        for setting, update in declared[owner].items():
            claims.setdefault(setting, []).append((owner, update))
    orders: dict[str, Callable[[tuple[str, Update]], tuple[float, int]]] = {}
    wishes = {}
    for setting, found in claims.items():
        if len(found) == 1:
            wishes[setting] = Wish(found[0][1], found[0][0])
            continue
        order = orders.get(setting.resource)
        if order is None:
            order = orders[setting.resource] = _order(setting.resource, rules)
        owner, update = min(found, key=order)
        others = tuple(name for name, other in found if name != owner and other.value != update.value)
        wishes[setting] = Wish(update, owner, others)
    return wishes


def _order(resource: str, rules: Sequence[OwnerRule]) -> Callable[[tuple[str, Update]], tuple[float, int]]:
    """What to sort claims by, the winner first."""
    rule = next((rule for rule in rules if rule.covers(resource)), OwnerRule((), (), ""))
    rank = {owner: place for place, owner in enumerate(rule.owners)}

    def place(claim: tuple[str, Update]) -> tuple[float, int]:
        return _bound(claim[1].value) if rule.least else 0.0, rank.get(claim[0], len(rank))

    return place


def _bound(value: Value) -> float:
    return inf if value == UNLIMITED else float(value)
