"""Room that the table counts as used and that one pod may use nevertheless: that of its reservations (spec 06 §4.5).

Filters and scores of resources subtract the credit from what is requested. The credit of a row changes only with the
pods that are counted on it, so results can be cached like others that depend on pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from control.scheduler.state.columns import IntArray, Mask, RowArray, Rows

NO_ROOM: Final[Mapping[int, int]] = {}


def no_room(row: int) -> Mapping[int, int]:
    """`RowCredit.at` of pods without a credit."""
    return NO_ROOM


Port = tuple[str, str, int]
"""(address, protocol, number)"""


def nonzero_key(column: int) -> int:
    """The key of a column of `NodeTable.nonzero` in a credit; other keys are columns of `NodeTable.requested`."""
    return ~column


@dataclass(frozen=True, slots=True)
class Offer:
    """What a pod may use on a row: a matching reservation, or all of them if the pod ignores reservations.

    A plugin that gives pods more than amounts of resources (CPUs, devices) lets the reserve pod hold its share like a
    pod. It knows the shares by uid, answers `Plugin.refuses_offer`, and takes from the offer in `CycleState.taken` at
    Reserve."""

    uids: tuple[str, ...]
    """Of the reservations, which are those of their reserve pods."""
    restricted: frozenset[str] = frozenset()
    """The resources of which the pod gets only what is left in the reservation."""
    owned: bool = True
    """The pod becomes an owner: what it gets counts as used in the reservation."""

    @property
    def owner_of(self) -> str:
        """uid of the reservation that the pod uses; empty if it uses none."""
        return self.uids[0] if self.owned else ""


class RowCredit(Protocol):
    """The credit of one pod."""

    def at(self, row: int) -> Mapping[int, int]:
        """key -> amount; read-only."""

    def column(self, key: int, rows: Rows) -> IntArray:
        """[len(rows)]: the amounts of one key."""

    def mask(self, rows: RowArray) -> Mask:
        """[len(rows)]: whether the row has a matching reservation."""

    def offers(self, row: int) -> Sequence[Offer]:
        """What the pod may take on a row: its amounts fit, and no plugin refuses the offer."""

    def ports(self, row: int) -> Mapping[Port, int]:
        """Host ports that the row's reservations keep for the pod -> number of reservations."""
