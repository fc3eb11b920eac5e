"""What one pod may use on each row: the reservations that match it, and their room as a credit (spec 06 §4.4, §4.5).

The rows with matching reservations are kept per shape and set of owner groups, and only rows that changed are computed
again. The content of a row is read on demand, so it also holds in trials.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from control.reservation.matching import PodConditions, ReservationMatch, matched
from control.scheduler.plugins.reservation.book import ReservationBook, ReservedRoom
from control.scheduler.plugins.reservation.fit import Fit
from control.scheduler.plugins.reservation.owners import OwnerGroup
from control.scheduler.plugins.reservation.selectorindex import LabelIndex
from control.scheduler.state.columns import IntArray, Mask, RowArray, Rows
from control.scheduler.state.credit import NO_ROOM, Offer, Port
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
        conditions: PodConditions,
        groups: Sequence[OwnerGroup],
        *,
        node_labels: bool,
    ) -> None:
        """`node_labels`: whether a reservation's labels include those of its node."""
        self.pod = pod
        self.conditions = conditions
        self.groups = groups
        self.rows: RowArray = NO_ROWS
        """The rows with matching reservations, ascending."""
        self._book = book
        self._node_labels = node_labels and conditions.affinity is not None
        self._numbers = frozenset(group.number for group in groups)
        self._version = -1
        """The version of the book for which the next two are right."""
        self._rooms: dict[int, list[ReservedRoom]] = {}
        """Row -> result of `on`."""
        self._credits: dict[int, Mapping[int, int]] = {}
        """Row -> result of `at`."""
        self._fits: dict[str, Fit] = {}
        self._fits_for = (-1, -1, -1)
        """The version of the book and the ends of the table's logs for which `fits` is right."""
        self.known: KnownRows | None = None
        self.offers: Callable[[int], Sequence[Offer]] = lambda row: ()
        """See `RowCredit`."""

    def mask(self, rows: RowArray) -> Mask:
        """[len(rows)]: whether the row has matching reservations."""
        if self.known is None:
            return np.zeros(len(rows), np.bool_)
        chosen: Mask = self.known.mask[rows]
        return chosen

    @property
    def required(self) -> bool:
        """Whether the pod must use a reservation."""
        return self.conditions.affinity is not None and not self.conditions.ignores

    @property
    def variant(self) -> Hashable:
        """The owner groups; the rest of what decides is the shape's."""
        return self._numbers or None

    def owned(self, room: ReservedRoom) -> bool:
        return room.group is not None and room.group.number in self._numbers

    def owner_matched(self) -> Iterable[ReservedRoom]:
        """The reservations on nodes whose owners match, regardless of the other conditions."""
        if self.conditions.ignores:
            return [room for rooms in self._book.by_row.values() for room in rooms.values()]
        return [room for group in self.groups for room in group.members.values() if room.placed]

    def judge(self, room: ReservedRoom) -> ReservationMatch:
        """Why the pod's conditions exclude a reservation whose owners match."""
        table, model = self._book.table, room.model
        if model is None:
            raise ValueError(f"reservation {room.uid} is not known")
        node = table.nodes[room.row] if self._node_labels else None
        labels = node.metadata.labels if node is not None else NO_LABELS
        return matched(self.conditions, self.pod.requests, model, labels)

    @property
    def fits(self) -> dict[str, Fit]:
        """By uid: what `Fitting.with_room` computed since the last change of the table or the book. Filter, Score and
        the nomination of one cycle use the same."""
        table = self._book.table
        now = (self._book.version, table.pod_log.end, table.node_log.end)
        if self._fits_for != now:
            self._fits_for = now
            self._fits.clear()
        return self._fits

    def rows_of(self, rows: Sequence[int]) -> Sequence[bool]:
        """Whether each of a few rows may have matching reservations."""
        known = self.known
        if known is None or known.version != self._book.version:  # in a trial
            return [True] * len(rows)
        item = known.mask.item
        return [item(row) for row in rows]

    def at(self, row: int) -> Mapping[int, int]:
        """See `RowCredit`."""
        known, version = self.known, self._book.version
        if self._version == version and known is not None and known.version == version and not known.mask.item(row):
            return NO_ROOM
        if self._empty(row):
            return NO_ROOM
        credit = self._credits.get(row)
        if credit is None:
            credit = self._credits[row] = self._credit([room for room in self.on(row) if not room.lifted])
        return credit

    def on(self, row: int) -> list[ReservedRoom]:
        """The matching reservations on a row."""
        if self._empty(row):
            return []
        rooms = self._rooms.get(row)
        if rooms is None:
            rooms = self._rooms[row] = self._matching(self._book.by_row.get(row, {}))
        return rooms

    def _empty(self, row: int) -> bool:
        """Whether the row is known to have no matching reservation. What changed since it was read is read again."""
        version, known = self._book.version, self.known
        if self._version != version:
            self._version = version
            self._rooms.clear()
            self._credits.clear()
        return known is not None and known.version == version and not known.mask.item(row)

    def _credit(self, rooms: Sequence[ReservedRoom]) -> Mapping[int, int]:
        if len(rooms) <= 1:
            return rooms[0].room if rooms else NO_ROOM
        total: dict[int, int] = {}
        for room in rooms:
            for key, amount in room.room.items():
                total[key] = total.get(key, 0) + amount
        return total

    def _matching(self, rooms: Mapping[str, ReservedRoom]) -> list[ReservedRoom]:
        if self.conditions.ignores:
            return [room for room in rooms.values() if room.offered]
        return [room for room in rooms.values() if self.owned(room) and room.offered and self.judge(room).ok]

    def column(self, key: int, rows: Rows) -> IntArray:
        """See `RowCredit`."""
        known = self.known
        if known is None or self._book.version != known.version:  # in a trial
            dense = self._dense(key)
        else:
            column = known.columns.get(key)
            dense = known.columns[key] = self._dense(key) if column is None else column
        chosen: IntArray = dense[rows]
        return chosen

    def _dense(self, key: int) -> IntArray:
        dense = np.zeros(self._book.table.size, np.int64)
        for row in self.rows.tolist():
            dense[row] = self.at(row).get(key, 0)
        return dense

    def ports(self, row: int) -> Mapping[Port, int]:
        """See `RowCredit`."""
        total: dict[Port, int] = {}
        for room in self.on(row):
            if not room.lifted:
                for port in room.ports:
                    total[port] = total.get(port, 0) + 1
        return total


class KnownRows:
    """The matching rows for one shape and set of groups, current up to positions of logs."""

    __slots__ = ("columns", "mask", "node_position", "positions", "rows", "version")

    def __init__(self) -> None:
        self.positions: list[int] = []
        """In the logs of the groups, in their order."""
        self.node_position = -1
        self.version = -1
        """The version of the book for which `columns` are right."""
        self.mask: Mask = np.empty(0, np.bool_)
        """[row]"""
        self.rows: RowArray = NO_ROWS
        self.columns: dict[int, IntArray] = {}
        """key -> the credit of every row, for the requested keys."""


class MatchingRows:
    """The `KnownRows` of the shapes used last."""

    MAX_KNOWN: Final = 256

    def __init__(self, book: ReservationBook, table: NodeTable, index: LabelIndex) -> None:
        self._book = book
        self._table = table
        self._index = index
        self._known: OrderedDict[Hashable, KnownRows] = OrderedDict()

    def fill(self, match: PodMatch) -> None:
        """Set `match.known` and `match.rows`."""
        key = (match.pod.shape.id, match.variant)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = KnownRows()
            if len(self._known) > self.MAX_KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        self._update(known, match)
        match.known, match.rows = known, known.rows

    def _update(self, known: KnownRows, match: PodMatch) -> None:
        book, table = self._book, self._table
        rows = self._changed(known, match)
        known.version = book.version
        if rows is None:
            known.mask, known.rows = np.zeros(table.size, np.bool_), NO_ROWS
            known.columns.clear()
            rows = self._possible(match)
        elif len(known.mask) < table.size:  # also without `rows`: filters and scores read every row of the table
            known.mask = np.concatenate((known.mask, np.zeros(table.size - len(known.mask), np.bool_)))
            known.columns.clear()
        if not rows:
            return
        changed = False
        for row in rows:
            matching = bool(match.on(row))
            if matching != known.mask.item(row):
                known.mask[row], changed = matching, True
            if known.columns:
                room = match.at(row)
                for key, column in known.columns.items():
                    column[row] = room.get(key, 0)
        if changed:
            known.rows = np.flatnonzero(known.mask)

    def _possible(self, match: PodMatch) -> set[int]:
        """The rows with reservations that may match."""
        affinity, rooms = match.conditions.affinity, match.owner_matched()
        if affinity is not None and affinity.name and not match.conditions.ignores:
            return {room.row for room in rooms if room.model is not None and room.model.name == affinity.name}
        rows = {room.row for room in rooms}
        chosen = None if affinity is None else self._index.rows(affinity.reservation_selector)
        return rows if chosen is None or match.conditions.ignores else rows.intersection(chosen)

    def _changed(self, known: KnownRows, match: PodMatch) -> set[int] | None:
        """The rows to compute again; None: all."""
        table, book = self._table, self._book
        logs = [book.log] if match.conditions.ignores else [group.log for group in match.groups]
        since, known.positions = known.positions, [log.end for log in logs]
        nodes = table.node_log.since(known.node_position) if known.node_position >= 0 else None
        known.node_position = table.node_log.end
        if nodes is None or len(since) != len(logs):
            return None
        rows = {row for row in nodes if row in book.by_row}
        for log, position in zip(logs, since, strict=True):
            noted = log.since(position)
            if noted is None:
                return None
            rows.update(noted)
        return rows
