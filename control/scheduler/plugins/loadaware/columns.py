"""Columns with what is left on every node: below the thresholds for the filter, of the capacity for the score.

Everything that depends on one row only (usage, sums over its pods, thresholds, capacity, expiry) is computed when the
row changes, a few integers at a time. A cycle then only compares and weights `room - estimate` over rows.

A node has two views, because prod pods may be evaluated by the usage of prod pods: view 0 is for all pods, 1 for prod.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from control.scheduler.config.args import LoadAwareSchedulingArgs
from control.scheduler.plugins.loadaware.assigned import NodeLoad
from control.scheduler.plugins.loadaware.report import LoadReport
from control.scheduler.plugins.loadaware.thresholds import NO_BOUND, NodeLimits
from control.scheduler.plugins.loadaware.vectors import Vector
from control.scheduler.state.columns import IntArray, Mask, Reasons16
from control.scheduler.state.table import NodeTable

NOTHING_LEFT: Final = -NO_BOUND
"""Value in `left` that gives score 0 for every pod."""
NEVER: Final = float("inf")


class LoadColumns:
    """Columns [view, resource, row] and [view, row]; they grow with the table."""

    def __init__(self, table: NodeTable, args: LoadAwareSchedulingArgs, resources: int, expired_reason: int) -> None:
        self._args = args
        self._expired_reason = expired_reason
        aggregated = args.aggregated
        self._window = (
            (aggregated.score_aggregation_type, aggregated.score_aggregated_duration.nanoseconds)
            if aggregated is not None and aggregated.score_aggregation_type
            else None
        )
        self._room = table.matrix(2, resources, dtype=np.int64, fill=NO_BOUND)
        self._blocked = table.matrix(2, dtype=np.int16)
        self._aggregated = table.matrix(2, dtype=np.bool_, fill=False)
        self._left = table.matrix(2, resources, dtype=np.int64, fill=NOTHING_LEFT)
        self._divisor = table.matrix(resources, dtype=np.int64, fill=1)
        self._has = table.matrix(resources, dtype=np.bool_, fill=False)
        self._expires = table.column(np.float64, NEVER)
        self._cleared = table.column(np.bool_, True)
        """[row]: whether `clear` would change nothing."""
        self.next_expiry = NEVER
        """The earliest time at which a report expires, or earlier."""

    @property
    def room(self) -> IntArray:
        """[view, resource, row]: usage that may be added before a threshold is exceeded."""
        return self._room.data

    @property
    def blocked(self) -> Reasons16:
        """[view, row]: number of the reason for which the node rejects every pod; 0: none."""
        return self._blocked.data

    @property
    def aggregated(self) -> Mask:
        """[view, row]: whether percentiles are compared instead of averages."""
        return self._aggregated.data

    @property
    def left(self) -> IntArray:
        """[view, resource, row]: capacity minus existing usage."""
        return self._left.data

    @property
    def divisor(self) -> IntArray:
        """[resource, row]: capacity, at least 1."""
        return self._divisor.data

    @property
    def has(self) -> Mask:
        """[resource, row]: whether the node has any of the resource."""
        return self._has.data

    @property
    def expires(self) -> NDArray[np.float64]:
        """[row]: Unix seconds at which the report expires; NEVER without a report or after its expiry."""
        return self._expires.data

    def set_capacity(self, row: int, capacity: Vector) -> None:
        for at, amount in enumerate(capacity):
            self.divisor[at, row] = amount or 1
            self.has[at, row] = amount > 0

    def clear(self, row: int) -> None:
        """The row has no usable data: every pod passes with score 0."""
        if self._cleared.data.item(row):
            return
        self._cleared.data[row] = True
        self.room[:, :, row] = NO_BOUND
        self.left[:, :, row] = NOTHING_LEFT
        self.blocked[:, row] = 0
        self.aggregated[:, row] = False
        self.expires[row] = NEVER

    def put(self, row: int, limits: NodeLimits, load: NodeLoad, now: float) -> None:
        """Compute the columns of a row. `now`: Unix seconds."""
        report = load.report
        if report is None:
            self.clear(row)
            return
        self._cleared.data[row] = False
        args, expired, usable = self._args, self._note_expiry(row, report, now), report.complete
        refuse = expired and args.filter_expired_node_metrics and not args.enable_schedule_when_node_metrics_expired
        self.blocked[0, row] = self._expired_reason if refuse and limits.usual else 0
        self.blocked[1, row] = self._expired_reason if refuse and (limits.prod or limits.usual) else 0
        existing = load.existing(limits.window)
        if not usable or (expired and args.filter_expired_node_metrics):
            self.room[:, :, row] = NO_BOUND
        else:
            by_percentile = limits.window is not None
            self._put_room(row, limits.usual, existing, (0,) if limits.prod else (0, 1))
            self.aggregated[0, row] = by_percentile
            if limits.prod:
                self._put_room(row, limits.prod, load.existing_prod(), (1,))
            self.aggregated[1, row] = by_percentile and not limits.prod
        if not usable or expired:
            self.left[:, :, row] = NOTHING_LEFT
        else:
            used = existing if self._window == limits.window else load.existing(self._window)
            self._put_left(self.left[0], row, limits.capacity, used)
            if args.score_according_prod_usage:
                self._put_left(self.left[1], row, limits.capacity, load.existing_prod())

    def room_on(self, view: int, row: int, estimate: Vector) -> int:
        """Index of the first resource for which `row` has too little room for `estimate`; -1 if there is none."""
        item = self.room.item
        for at, amount in enumerate(estimate):
            if item(view, at, row) < amount:
                return at
        return -1

    def parts_left(self, view: int, row: int, estimate: Vector) -> list[int]:
        """Per resource, the percentage of the capacity of `row` that would be left."""
        left, divisor = self.left.item, self.divisor.item
        return [max(0, left(view, at, row) - amount) * 100 // divisor(at, row) for at, amount in enumerate(estimate)]

    def _put_room(self, row: int, bounds: Vector | None, existing: Sequence[int], views: tuple[int, ...]) -> None:
        room = self.room
        for view in views:
            if bounds is None:
                room[view, :, row] = NO_BOUND
                continue
            for at, bound in enumerate(bounds):
                room[view, at, row] = bound if bound == NO_BOUND else bound - existing[at]

    @staticmethod
    def _put_left(left: IntArray, row: int, capacity: Vector, existing: Sequence[int]) -> None:
        for at, amount in enumerate(capacity):
            left[at, row] = amount - existing[at] if amount else NOTHING_LEFT

    def _note_expiry(self, row: int, report: LoadReport, now: float) -> bool:
        """Whether the report has expired; if not, record when it will."""
        if report.update_time is not None:
            at = report.update_time + self._args.node_metric_expiration_seconds
            if now < at:
                self.expires[row] = at
                if at < self.next_expiry:
                    self.next_expiry = at
                return False
        self.expires[row] = NEVER
        return True

    def just_expired(self, now: float) -> list[int]:
        """Rows whose reports have expired since `put`; the caller must `put` them again. Cheap if there are none."""
        if now < self.next_expiry:
            return []
        rows: list[int] = np.flatnonzero(self.expires <= now).tolist()
        self.expires[rows] = NEVER
        self.next_expiry = float(self.expires.min(initial=NEVER))
        return rows
