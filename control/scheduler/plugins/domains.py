"""Sums of counted pods over the values of a node label (topology domains), kept current from one cycle to the next.

A sum is asked for in every cycle, and between two cycles mostly one row changed; so the rows in the table's pod log are
applied one by one, and everything is summed anew only after many changes, or when a node changed. Trials are in the
log, too, so a sum is right within them and after them.
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
_ONE_BY_ONE: Final = 64
"""Up to so many changed rows are applied singly."""


class DomainIds:
    """`ids[row]`: the number of each row's value of a label, 0 for none; as indexes, which numpy looks up fastest."""

    __slots__ = ("_node_at", "_table", "column", "distinct", "everywhere", "ids")

    def __init__(self, table: NodeTable, key: str) -> None:
        self._table = table
        self.column: LabelColumn = table.labels.column(key)
        self._node_at = -1
        self.ids: RowArray = np.zeros(0, np.intp)
        self.everywhere = False
        """All nodes have the label."""
        self.distinct = 0
        """Different values that nodes have; absence is one."""

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
    """The labels that a plugin's topologies name."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._known: dict[str, DomainIds] = {}

    def of(self, key: str) -> DomainIds:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = DomainIds(self._table, key)
        return found


def by_row(by_domain: NDArray[T], domains: DomainIds, rows: Rows) -> NDArray[T]:
    """[len(rows)]: what each row's domain has."""
    if isinstance(rows, slice):
        return by_domain.take(domains.sync()[rows])
    if len(rows) * 2 < domains.column.ids.data.shape[0]:
        return by_domain.take(domains.sync().take(rows))
    return by_domain.take(domains.sync()).take(rows)


class DomainSums:
    """`sums[number of value]` of a counter over the rows that `eligible` says; number 0, no value, sums to 0.

    `eligible()` gives [row] whether a row counts; it is asked when nodes changed. None: rows with a node.
    """

    __slots__ = (
        "_counter", "_counts", "_domains", "_eligible", "_node_at", "_pod_at", "_table", "ids", "present", "sums",
    )  # fmt: skip

    def __init__(
        self, table: NodeTable, counter: PodCounter, domains: DomainIds, eligible: Callable[[], Mask] | None = None
    ) -> None:
        self._table, self._counter, self._eligible = table, counter, eligible
        self.ids = domains
        self._node_at = self._pod_at = -1
        self._domains = np.zeros(0, np.intp)
        self._counts = np.zeros(0, np.int64)
        self.sums: IntArray = np.zeros(1, np.int64)
        self.present: IntArray = np.zeros(0, np.int64)
        """Numbers of the values that eligible rows have."""

    def sync(self) -> IntArray:
        """Bring `sums` up to date, and return them."""
        table = self._table
        node_at, pod_at = table.node_log.end, table.pod_log.end
        if node_at != self._node_at:
            self._place()
            self._sum()
        elif pod_at != self._pod_at:
            changed = table.pod_log.since(self._pod_at)
            if changed is None or len(changed) > _ONE_BY_ONE or table.size != len(self._counts):
                if table.size != len(self._counts):
                    self._place()  # a row for a node that is not known yet
                self._sum()
            else:
                self._apply(changed)
        self._node_at, self._pod_at = node_at, pod_at
        return self.sums

    def least(self) -> int:
        """The lowest sum of a domain that eligible rows are in; 0 without any."""
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
