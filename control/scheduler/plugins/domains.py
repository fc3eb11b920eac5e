"""Sums of counted pods over the values of a node label (topology domains), kept current from one cycle to the next.

A sum is asked for in every cycle, and between two cycles mostly one row changed; so the rows in the table's pod log are
applied one by one, and everything is summed anew only after many changes, or when a node changed. Trials are in the
log, too, so a sum is right within them and after them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from control.scheduler.columns import IntArray, LabelColumn, Mask
from control.scheduler.selectors import Counter
from control.scheduler.table import NodeTable

_ONE_BY_ONE: Final = 64
"""Up to so many changed rows are applied singly."""


class DomainSums:
    """`sums[number of value]` of a counter over the rows that `eligible` says; number 0, no value, sums to 0.

    `eligible()` gives [row] whether a row counts; it is asked when nodes changed. None: rows with a node.
    """

    __slots__ = (
        "_counter", "_counts", "_domains", "_eligible", "_node_at", "_pod_at", "_table", "column", "present", "sums",
    )  # fmt: skip

    def __init__(
        self, table: NodeTable, counter: Counter, key: str, eligible: Callable[[], Mask] | None = None
    ) -> None:
        self._table, self._counter, self._eligible = table, counter, eligible
        self.column: LabelColumn = table.labels.column(key)
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

    def ids(self) -> IntArray:
        """[row]: number of each row's value, 0 for none."""
        found: IntArray = self.column.ids.data[: self._table.size]
        return found

    def _place(self) -> None:
        eligible = self._table.valid if self._eligible is None else self._eligible()
        self._domains = np.where(eligible, self.ids(), 0).astype(np.intp)
        there = np.bincount(self._domains, minlength=len(self.column.values)) > 0
        there[0] = False
        self.present = np.flatnonzero(there)

    def _sum(self) -> None:
        self._counts = self._counter.data[: self._table.size].copy()
        self.sums = np.bincount(self._domains, self._counts, len(self.column.values)).astype(np.int64)
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
