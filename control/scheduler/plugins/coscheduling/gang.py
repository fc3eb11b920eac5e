"""Gangs and groups of gangs: who belongs to them, and where each member stands (spec 05 §9.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from control.scheduler.plugins.coscheduling.params import Parameters
from koordlet.api.annotations.gang import MATCH_ONCE_SATISFIED
from koordlet.api.core import Pod


@dataclass(eq=False)
class GangGroup:
    """Gangs that are placed together. `id`: their ids, joined by commas."""

    id: str
    gang_ids: tuple[str, ...]
    once_satisfied: bool = False
    """A member was bound once; never taken back."""
    waiting_gang_ids: set[str] = field(default_factory=set)
    representative: str = ""
    """`namespace/name` of the one pod that may be in the queue for the whole group."""
    binding_members: frozenset[str] = frozenset()
    """uids of the pods that are bound together."""


@dataclass(eq=False)
class Gang:
    """Members by `namespace/name`. Every live one is in `children`, and in one of the other three."""

    id: str
    group: GangGroup
    parameters: Parameters | None = None
    """None: nobody has said yet what the gang wants."""
    crd: bool = False
    children: dict[str, Pod] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    """Without a node."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Assumed: parked at Permit, or being bound; the value is the uid."""
    bound: set[str] = field(default_factory=set)

    @property
    def initialized(self) -> bool:
        return self.parameters is not None

    @property
    def strict(self) -> bool:
        return self.parameters is None or self.parameters.strict

    @property
    def settled(self) -> bool:
        """Whether later members are scheduled one by one."""
        return self.group.once_satisfied and self.once_is_enough

    @property
    def once_is_enough(self) -> bool:
        return self.parameters is not None and self.parameters.policy == MATCH_ONCE_SATISFIED

    @property
    def complete(self) -> bool:
        """Whether there are enough members to try."""
        return self.parameters is not None and len(self.children) >= self.parameters.minimum

    def in_order(self) -> list[str]:
        """Pending members, by creation time and name (spec 05 §17, D20)."""
        return sorted(self.pending, key=self._age)

    def _age(self, key: str) -> tuple[float, str]:
        created = self.children[key].metadata.creation_timestamp
        return (created.unix if created else 0.0, key)
