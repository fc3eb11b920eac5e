"""The decisions of Coscheduling at PreEnqueue and Permit, computed from scratch (spec 05 §9.2, §9.3, §9.5).

Gangs here are named by annotations, have what they want from the start, and are not strict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PlainGang:
    minimum: int
    policy: str
    together: tuple[str, ...]
    """Gangs of its group, sorted."""


@dataclass
class PlainGangs:
    gangs: Mapping[str, PlainGang]
    """By id, whether or not they have members."""
    members: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Pod's key -> (gang, `pending`, `waiting` or `bound`)."""
    once: set[tuple[str, ...]] = field(default_factory=set)
    """Groups of which a member was bound."""
    representatives: dict[tuple[str, ...], str] = field(default_factory=dict)

    def _number(self, gang: str, *states: str) -> int:
        return sum(of == gang and (not states or state in states) for of, state in self.members.values())

    def _settled(self, gang: str) -> bool:
        rules = self.gangs[gang]
        return rules.policy == "once-satisfied" and rules.together in self.once

    def enqueued(self, key: str) -> str:
        """Why not; empty: it may."""
        gang, state = self.members[key]
        together = self.gangs[gang].together
        if self._settled(gang):
            return ""
        there = [member_gang for member_gang in together if self._number(member_gang)]
        parts = []
        missing = [member_gang for member_gang in together if member_gang not in there]
        if missing:
            parts.append(f"memberGangs [{' '.join(missing)}] doesn't exists")
        if any(self._number(member_gang) < self.gangs[member_gang].minimum for member_gang in there):
            parts.append(f"memberGangs [{' '.join(together)}] child pod not collect enough")
        if parts:
            if self.representatives.get(together) == key:
                del self.representatives[together]
            listed = " ".join(together)
            return f"gangGroup [{listed}] basic check: {', '.join(parts)}, current gang: {gang}, podName: {key}"
        if state != "pending":
            return f"pod {key} is not exists in gangCache"
        first = self.representatives.setdefault(together, key)
        return "" if first == key else f"representative pod {first} of gangGroupID {','.join(together)} already exists"

    def permitted(self, key: str) -> bool:
        """Whether the pod, and all that wait with it, may be bound. It waits from now on."""
        gang, _ = self.members[key]
        self.members[key] = (gang, "waiting")
        return all(self._enough(member_gang) for member_gang in self.gangs[gang].together)

    def _enough(self, gang: str) -> bool:
        if not self._number(gang):
            return False
        rules = self.gangs[gang]
        if self._settled(gang):
            return True
        states = ("waiting", "bound") if rules.policy == "waiting-and-running" else ("waiting",)
        return self._number(gang, *states) >= rules.minimum

    def returned(self, key: str) -> None:
        """It lost its node again."""
        gang, state = self.members[key]
        if state == "waiting":
            self.members[key] = (gang, "pending")

    def bound(self, key: str, gang: str) -> None:
        self.members[key] = (gang, "bound")
        together = self.gangs[gang].together
        self.once.add(together)
        if self.representatives.get(together) == key:
            del self.representatives[together]

    def deleted(self, key: str) -> None:
        gang, _ = self.members.pop(key)
        together = self.gangs[gang].together
        if self.representatives.get(together) == key:
            del self.representatives[together]
        if not any(self._number(member_gang) for member_gang in together):  # no member is left: the group is forgotten
            self.once.discard(together)
            self.representatives.pop(together, None)
