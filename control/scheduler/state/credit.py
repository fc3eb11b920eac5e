"""Room that the table counts as used and that one pod may use nevertheless: that of its reservations (spec 06 §4.5).

Filters and scores of resources subtract the credit from what is requested. The credit of a row changes only with the
pods that are counted on it, so results can be cached like others that depend on pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from control.scheduler.state.columns import IntArray, Rows

NO_ROOM: Final[Mapping[int, int]] = {}


def no_room(row: int) -> Mapping[int, int]:
    """`RowCredit.at` of pods without a credit."""
    return NO_ROOM


Port = tuple[str, str, int]
"""(address, protocol, number)"""


def nonzero_key(column: int) -> int:
    """The key of a column of `NodeTable.nonzero` in a credit; other keys are columns of `NodeTable.requested`."""
    return ~column


class RowCredit(Protocol):
    """The credit of one pod."""

    def at(self, row: int) -> Mapping[int, int]:
        """key -> amount; read-only."""

    def column(self, key: int, rows: Rows) -> IntArray:
        """[len(rows)]: the amounts of one key."""

    def ports(self, row: int) -> Mapping[Port, int]:
        """Host ports that the row's reservations keep for the pod -> number of reservations."""
