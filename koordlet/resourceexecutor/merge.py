"""One wish per setting out of what all owners declare. Pure.

The rule is the same everywhere and has no hidden cases: among the owners that want a setting, the one that stands
highest for its resource wins, and the others are reported as overruled. `RULES` is the table; docs/enforcement.md
shows it and `/enforcement` serves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koordlet.resourceexecutor.settings import Setting, Update

Declarations = Mapping[str, Mapping[Setting, Update]]
"""Owner -> what it wants."""


@dataclass(frozen=True, slots=True)
class OwnerRule:
    """For `resources` (all when empty) `owners` stand in this order, highest first, and why."""

    resources: tuple[str, ...]
    owners: tuple[str, ...]
    why: str

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
    ranks: dict[str, Mapping[str, int]] = {}
    wishes = {}
    for setting, found in claims.items():
        if len(found) == 1:
            wishes[setting] = Wish(found[0][1], found[0][0])
            continue
        rank = ranks.get(setting.resource)
        if rank is None:
            rank = ranks[setting.resource] = _rank(setting.resource, rules)
        owner, update = min(found, key=lambda claim: rank.get(claim[0], len(rank)))
        others = tuple(name for name, other in found if name != owner and other.value != update.value)
        wishes[setting] = Wish(update, owner, others)
    return wishes


def _rank(resource: str, rules: Sequence[OwnerRule]) -> Mapping[str, int]:
    for rule in rules:
        if rule.covers(resource):
            return {owner: place for place, owner in enumerate(rule.owners)}
    return {}
