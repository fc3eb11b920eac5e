"""Gangs and gang groups with the state of each member (spec 05 §9.2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from control.scheduler.plugins.coscheduling.params import GangParameters
from koordlet.api.annotations.gang import MATCH_ONCE_SATISFIED
from koordlet.api.core import Pod


@dataclass(eq=False)
class GangGroup:
    """Gangs that are placed together. `id`: the gang ids, joined by commas."""

    id: str
    gang_ids: tuple[str, ...]
    once_satisfied: bool = False
    """Whether a member was ever bound."""
    waiting_gang_ids: set[str] = field(default_factory=set)
    representative: str = ""
    """`namespace/name` of the pod that represents the group in the queue."""
    binding_members: frozenset[str] = frozenset()
    """uids of the pods that are bound together."""

    @property
    def one_namespace(self) -> bool:
        """Whether all its gangs are of one namespace."""
        return len({gang_id.partition("/")[0] for gang_id in self.gang_ids}) <= 1


@dataclass(eq=False)
class Gang:
    """Members by `namespace/name`, Reservations by `Reservation/name`.

    Every live member is in `children`, and in one of `pending`, `waiting`, `bound`."""

    id: str
    group: GangGroup
    parameters: GangParameters | None = None
    """None until a PodGroup or a pod with the parameters is seen."""
    crd: bool = False
    children: dict[str, Pod] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    """Members without a node."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Assumed members, held at Permit or being bound: key -> uid."""
    bound: set[str] = field(default_factory=set)

    @property
    def initialized(self) -> bool:
        return self.parameters is not None

    @property
    def strict(self) -> bool:
        return self.parameters is None or self.parameters.strict

    @property
    def settled(self) -> bool:
        """Whether members are scheduled individually from now on."""
        return self.group.once_satisfied and self.once_is_enough

    @property
    def once_is_enough(self) -> bool:
        return self.parameters is not None and self.parameters.policy == MATCH_ONCE_SATISFIED

    @property
    def complete(self) -> bool:
        """Whether there are enough members for an attempt."""
        return self.parameters is not None and len(self.children) >= self.parameters.minimum

    def in_order(self) -> list[str]:
        """Pending members, by creation time and name (spec 05 §17, D20)."""
        return sorted(self.pending, key=self._age)

    def _age(self, key: str) -> tuple[float, str]:
        created = self.children[key].metadata.creation_timestamp
        return (created.unix if created else 0.0, key)
