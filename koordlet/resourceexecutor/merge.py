"""One desired value per setting from the declarations of all owners. Pure.

The rule is the same for all settings: of the owners that want a setting, the one that ranks highest for its resource
wins, and the others are reported as overruled. `koordlet.wiring` has the ranks; docs/enforcement.md shows them and
`/enforcement` serves them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koordlet.resourceexecutor.settings import DesiredSetting, Setting

Declarations = Mapping[str, Mapping[Setting, DesiredSetting]]
"""Owner -> its desired settings."""


@dataclass(frozen=True, slots=True)
class OwnerRule:
    """The rank of `owners`, highest first, for `resources` (all when empty), and the reason."""

    resources: tuple[str, ...]
    owners: tuple[str, ...]
    why: str

    def covers(self, resource: str) -> bool:
        return not self.resources or resource in self.resources


@dataclass(frozen=True, slots=True)
class MergedSetting:
    """The desired setting that won, its owner, and the owners that wanted another value."""

    desired: DesiredSetting
    owner: str
    overruled: tuple[str, ...] = ()


def merge(declared: Declarations, rules: Sequence[OwnerRule]) -> dict[Setting, MergedSetting]:
    """Owners that no rule names rank below those that it names, in alphabetical order."""
    claims: dict[Setting, list[tuple[str, DesiredSetting]]] = {}
    for owner in sorted(declared):
        for setting, desired in declared[owner].items():
            claims.setdefault(setting, []).append((owner, desired))
    ranks: dict[str, Mapping[str, int]] = {}
    merged = {}
    for setting, claimants in claims.items():
        if len(claimants) == 1:
            owner, desired = claimants[0]
            merged[setting] = MergedSetting(desired, owner)
            continue
        rank = ranks.get(setting.resource)
        if rank is None:
            rank = ranks[setting.resource] = _rank(setting.resource, rules)
        owner, desired = min(claimants, key=lambda claim: rank.get(claim[0], len(rank)))
        overruled = tuple(name for name, other in claimants if name != owner and other.value != desired.value)
        merged[setting] = MergedSetting(desired, owner, overruled)
    return merged


def _rank(resource: str, rules: Sequence[OwnerRule]) -> Mapping[str, int]:
    for rule in rules:
        if rule.covers(resource):
            return {owner: place for place, owner in enumerate(rule.owners)}
    return {}
