"""Sums of counted pods per value of a node label (topology domain), updated incrementally between cycles.

Sums are read in every cycle, and usually one row changes between two cycles. So the rows in the table's pod log are
applied one by one. Everything is summed again only after many changes, or when a node changed. The log contains trials
too, so sums are correct during and after them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from control.scheduler.state.columns import IntArray, LabelColumn, Mask, RowArray, Rows
from control.scheduler.state.selectors import PodCounter
from control.scheduler.state.table import NodeTable

T = TypeVar("T", bound=np.generic)
_MAX_INCREMENTAL_ROWS: Final = 64
"""Up to this number of changed rows are applied one by one."""


class DomainIds:
    """`ids[row]`: the number of the row's label value, 0 for none; as `intp`, the fastest index type of numpy."""

    __slots__ = ("_node_at", "_table", "column", "distinct", "everywhere", "ids")

    def __init__(self, table: NodeTable, key: str) -> None:
        self._table = table
        self.column: LabelColumn = table.labels.column(key)
        self._node_at = -1
        self.ids: RowArray = np.zeros(0, np.intp)
        self.everywhere = False
        """All nodes have the label."""
        self.distinct = 0
        """Number of distinct values among the nodes, counting a missing label as one."""

    def sync(self) -> RowArray:
        """Bring `ids` up to date, and return them: [row]."""
        table = self._table
        if table.node_log.end != self._node_at or len(self.ids) != table.size:
            self._node_at = table.node_log.end
            self.ids = self.column.ids.data[: table.size].astype(np.intp)
            there = np.bincount(self.ids[table.valid], minlength=1)
            self.everywhere = not there[0]
            self.distinct = int(np.count_nonzero(there))
        return self.ids


class Domains:
    """The `DomainIds` of each topology key that a plugin uses."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._known: dict[str, DomainIds] = {}

    def of(self, key: str) -> DomainIds:
        ids = self._known.get(key)
        if ids is None:
            ids = self._known[key] = DomainIds(self._table, key)
        return ids


def by_row(by_domain: NDArray[T], domains: DomainIds, rows: Rows) -> NDArray[T]:
    """[len(rows)]: the value of each row's domain."""
    if isinstance(rows, slice):
        return by_domain.take(domains.sync()[rows])
    if len(rows) * 2 < domains.column.ids.data.shape[0]:
        return by_domain.take(domains.sync().take(rows))
    return by_domain.take(domains.sync()).take(rows)


class DomainSums:
    """`sums[number of the label value]`: the counter summed over eligible rows. Number 0 (no value) has sum 0.

    `eligible()` returns [row] whether a row counts; it is called when nodes changed. None: every row with a node.
    """

    __slots__ = (
        "_counter",
        "_counts",
        "_domains",
        "_eligible",
        "_node_at",
        "_pod_at",
        "_table",
        "ids",
        "present",
        "sums",
    )

    def __init__(
        self, table: NodeTable, counter: PodCounter, domains: DomainIds, eligible: Callable[[], Mask] | None = None
    ) -> None:
        self._table = table
        self._counter = counter
        self._eligible = eligible
        self.ids = domains
        self._node_at = self._pod_at = -1
        self._domains = np.zeros(0, np.intp)
        self._counts = np.zeros(0, np.int64)
        self.sums: IntArray = np.zeros(1, np.int64)
        self.present: IntArray = np.zeros(0, np.int64)
        """The numbers of the values of eligible rows."""

    def sync(self) -> IntArray:
        """Bring `sums` up to date, and return them."""
        table = self._table
        node_at, pod_at = table.node_log.end, table.pod_log.end
        if node_at != self._node_at:
            self._place()
            self._sum()
        elif pod_at != self._pod_at:
            changed = table.pod_log.since(self._pod_at)
            if changed is None or len(changed) > _MAX_INCREMENTAL_ROWS or table.size != len(self._counts):
                if table.size != len(self._counts):
                    self._place()  # the table has a row for a node that does not exist yet
                self._sum()
            else:
                self._apply(changed)
        self._node_at, self._pod_at = node_at, pod_at
        return self.sums

    def least(self) -> int:
        """The lowest sum of a domain with eligible rows; 0 if there is none."""
        present = self.present
        if not len(present):
            return 0
        return int(self.sums[1:].min() if len(present) == len(self.sums) - 1 else self.sums.take(present).min())

    def _place(self) -> None:
        eligible = self._table.valid if self._eligible is None else self._eligible()
        self._domains = np.where(eligible, self.ids.sync(), 0)
        there = np.bincount(self._domains, minlength=len(self.ids.column.values)) > 0
        there[0] = False
        self.present = np.flatnonzero(there)

    def _sum(self) -> None:
        self._counts = self._counter.data[: self._table.size].copy()
        self.sums = np.bincount(self._domains, self._counts, len(self.ids.column.values)).astype(np.int64)
        self.sums[0] = 0

    def _apply(self, changed: list[int]) -> None:
        now, before, domains, sums = self._counter.data, self._counts, self._domains, self.sums
        for row in changed:
            count = now.item(row)
            difference = count - before.item(row)
            if difference:
                before[row] = count
                domain = domains.item(row)
                if domain:
                    sums[domain] += difference
