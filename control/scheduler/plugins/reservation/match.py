"""What one pod may use on each row: the reservations that match it, and their room as a credit (spec 06 §4.4, §4.5).

The rows with matching reservations are kept per shape and set of owner groups, and only rows that changed are computed
again. What is on a row is read when it is asked for, so it also holds in trials.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from control.reservation.matching import PodConditions, ReservationMatch, matched
from control.scheduler.plugins.reservation.book import ReservationBook, ReservedRoom
from control.scheduler.plugins.reservation.owners import OwnerGroup
from control.scheduler.state.columns import IntArray, Mask, RowArray, Rows
from control.scheduler.state.credit import NO_ROOM, Port
from control.scheduler.state.pods import PodInfo
from control.scheduler.state.table import NodeTable

NO_LABELS: Final[Mapping[str, str]] = {}
NO_ROWS: Final[RowArray] = np.empty(0, np.intp)


class PodMatch:
    """The reservations for one pod. A `RowCredit`."""

    def __init__(
        self,
        book: ReservationBook,
        pod: PodInfo,
        wanted: PodConditions,
        groups: Sequence[OwnerGroup],
        *,
        node_labels: bool = True,
    ) -> None:
        """`node_labels`: whether a reservation's labels include those of its node."""
        self.pod = pod
        self.wanted = wanted
        self.groups = groups
        self.rows: RowArray = NO_ROWS
        """The rows with matching reservations, ascending."""
        self._book = book
        self._node_labels = node_labels and wanted.affinity is not None
        self._numbers = frozenset(group.number for group in groups)
        self._seen: dict[int, tuple[int, list[ReservedRoom]]] = {}
        """Row -> (version of the book, result of `on`)"""
        self._columns: dict[int, tuple[int, IntArray]] = {}
        """key -> (version of the book, dense column)"""

    @property
    def required(self) -> bool:
        """Whether the pod must use a reservation."""
        return self.wanted.affinity is not None and not self.wanted.ignores

    @property
    def variant(self) -> Hashable:
        """The owner groups; the rest of what decides is the shape's."""
        return self._numbers or None

    def owned(self, room: ReservedRoom) -> bool:
        return room.group is not None and room.group.number in self._numbers

    def owner_matched(self) -> Iterable[ReservedRoom]:
        """The reservations on nodes whose owners match, whatever the other conditions say."""
        if self.wanted.ignores:
            return [room for rooms in self._book.by_row.values() for room in rooms.values()]
        return [room for group in self.groups for room in group.members.values() if room.placed]

    def judge(self, room: ReservedRoom) -> ReservationMatch:
        """Why the pod's conditions exclude a reservation whose owners match."""
        table, model = self._book.table, room.model
        if model is None:
            raise ValueError(f"reservation {room.uid} is not known")
        node = table.nodes[room.row] if self._node_labels else None
        return matched(self.wanted, self.pod.requests, model, node.metadata.labels if node is not None else NO_LABELS)

    def at(self, row: int) -> Mapping[int, int]:
        """See `RowCredit`."""
        rooms = [room.room for room in self.on(row) if not room.lifted]
        if len(rooms) <= 1:
            return rooms[0] if rooms else NO_ROOM
        total: dict[int, int] = {}
        for room in rooms:
            for key, amount in room.items():
                total[key] = total.get(key, 0) + amount
        return total

    def on(self, row: int) -> list[ReservedRoom]:
        """The matching reservations on a row."""
        rooms = self._book.by_row.get(row)
        if not rooms:
            return []
        version, seen = self._seen.get(row, (-1, []))
        if version != self._book.version:
            seen = self._matching(rooms)
            self._seen[row] = (self._book.version, seen)
        return seen

    def _matching(self, rooms: Mapping[str, ReservedRoom]) -> list[ReservedRoom]:
        if self.wanted.ignores:
            return [room for room in rooms.values() if room.offered]
        return [room for room in rooms.values() if self.owned(room) and room.offered and self.judge(room).ok]

    def column(self, key: int, rows: Rows) -> IntArray:
        """See `RowCredit`."""
        version, dense = self._columns.get(key, (-1, None))
        if dense is None or version != self._book.version:
            dense = np.zeros(self._book.table.size, np.int64)
            for row in self.rows.tolist():
                dense[row] = self.at(row).get(key, 0)
            self._columns[key] = (self._book.version, dense)
        chosen: IntArray = dense[rows]
        return chosen

    def ports(self, row: int) -> Mapping[Port, int]:
        """See `RowCredit`."""
        total: dict[Port, int] = {}
        for room in self.on(row):
            if not room.lifted:
                for port in room.ports:
                    total[port] = total.get(port, 0) + 1
        return total


class _KnownRows:
    """The matching rows for one shape and set of groups, current up to positions of two logs."""

    __slots__ = ("mask", "node_position", "position", "rows")

    def __init__(self) -> None:
        self.position = self.node_position = -1
        self.mask: Mask = np.empty(0, np.bool_)
        self.rows: RowArray = NO_ROWS


class MatchingRows:
    """`PodMatch.rows` of the shapes used last."""

    MAX_KNOWN: Final = 256

    def __init__(self, book: ReservationBook, table: NodeTable) -> None:
        self._book = book
        self._table = table
        self._known: OrderedDict[Hashable, _KnownRows] = OrderedDict()

    def fill(self, match: PodMatch) -> None:
        """Set `match.rows`."""
        key = (match.pod.shape.id, match.variant)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _KnownRows()
            if len(self._known) > self.MAX_KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        self._update(known, match)
        match.rows = known.rows

    def _update(self, known: _KnownRows, match: PodMatch) -> None:
        book, table = self._book, self._table
        changed = book.log.since(known.position) if known.position >= 0 else None
        nodes = table.node_log.since(known.node_position) if known.position >= 0 else None
        known.position, known.node_position = book.log.end, table.node_log.end
        if changed is None or nodes is None:
            known.mask = np.zeros(table.size, np.bool_)
            rows = {room.row for room in match.owner_matched()}
        elif changed or nodes:
            rows = {*changed, *(row for row in nodes if row in book.by_row)}
        else:
            return
        if len(known.mask) < table.size:
            known.mask = np.concatenate((known.mask, np.zeros(table.size - len(known.mask), np.bool_)))
        for row in rows:
            known.mask[row] = bool(match.on(row))
        known.rows = np.flatnonzero(known.mask)
