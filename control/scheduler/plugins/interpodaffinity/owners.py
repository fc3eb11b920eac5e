"""The affinity terms of existing pods by domain: the part of inter-pod affinity that applies to incoming pods.

Each distinct term has the number of its owners per domain, updated when pods are added and removed (trials included).
The domain in which a row's pods are counted is stored, so that a changed label moves them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from control.scheduler.plugins.interpodaffinity.terms import NamespaceLabels, Term, terms_of
from control.scheduler.state.columns import IntArray, LabelColumn, RowColumn
from control.scheduler.state.pods import PodInfo, Shape
from control.scheduler.state.table import NodeTable


class Topology:
    """A topology key of terms. `filed.data[row]`: number of the domain in which the row's pods are counted."""

    __slots__ = ("column", "filed")

    def __init__(self, column: LabelColumn, filed: RowColumn) -> None:
        self.column = column
        self.filed = filed


class OwnedTerm:
    """A term and the number of its owners: `sums[number of the domain]`; number 0 is no domain."""

    __slots__ = ("placed", "sums", "term", "topology", "total")

    def __init__(self, term: Term, topology: Topology) -> None:
        self.term = term
        self.topology = topology
        self.sums: IntArray = np.zeros(len(topology.column.values) + 8, np.int64)
        self.total = 0
        self.placed = 0
        """Number of owners on nodes with a domain."""

    def add(self, domain: int, number: int) -> None:
        if domain >= len(self.sums):
            grown = np.zeros(max(2 * len(self.sums), domain + 1), np.int64)
            grown[: len(self.sums)] = self.sums
            self.sums = grown
        self.sums[domain] += number
        self.total += number
        if domain:
            self.placed += number

    def by_domain(self) -> IntArray:
        """`sums`, padded so that the domain number of every row is a valid index."""
        size = len(self.topology.column.values)
        if len(self.sums) < size:
            self.sums = np.pad(self.sums, (0, size + 64 - len(self.sums)))
        return self.sums


class Owners:
    """The terms of all counted pods of a table."""

    MIN_TERMS_TO_COMPACT: Final = 256

    def __init__(self, table: NodeTable, memo: str) -> None:
        """`memo`: prefix of the keys in `Shape.memo`."""
        self._table = table
        self._owned_memo = f"{memo}.owned"
        self._matching_memo = f"{memo}.matching"
        self._topologies: dict[str, Topology] = {}
        self._terms: dict[Term, OwnedTerm] = {}
        self._list: list[OwnedTerm] = []
        self.generation = 0
        """Changes when terms without owners were dropped."""
        self._node_at = table.node_log.end
        table.listen(self)

    def __len__(self) -> int:
        return len(self._list)

    def pod_added(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, 1)

    def pod_removed(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, -1)

    def sync(self) -> None:
        """Move the pods of rows whose domain changed. Call it before reading sums."""
        table = self._table
        end = table.node_log.end
        if end == self._node_at:
            return
        if len(self._list) >= self.MIN_TERMS_TO_COMPACT and 2 * sum(owned.total == 0 for owned in self._list) > len(
            self._list
        ):
            self._drop_unowned()
        changed: Iterable[int] | None = table.node_log.since(self._node_at)
        self._node_at = end
        for row in set(changed) if changed is not None else range(table.size):
            for topology in self._topologies.values():
                before, now = topology.filed.data.item(row), topology.column.ids.data.item(row)
                if before != now:
                    self._move(topology, row, before, now)

    def matching(self, shape: Shape, labels_of: NamespaceLabels, generation: int) -> list[OwnedTerm]:
        """The terms that select pods of the shape. Cached in the shape; only new terms are evaluated again."""
        key = (self.generation, generation)
        known: tuple[tuple[int, int], int, list[OwnedTerm]] | None = shape.memo.get(self._matching_memo)
        if known is not None and known[0] == key and known[1] == len(self._list):
            return known[2]
        upto, matching = (known[1], known[2]) if known is not None and known[0] == key else (0, [])
        matching.extend(owned for owned in self._list[upto:] if owned.term.selects(shape, labels_of))
        shape.memo[self._matching_memo] = (key, len(self._list), matching)
        return matching

    def _count(self, row: int, pod: PodInfo, number: int) -> None:
        for owned in self._owned(pod.shape):
            owned.add(owned.topology.filed.data.item(row), number)

    def _owned(self, shape: Shape) -> list[OwnedTerm]:
        """The terms of a shape, interned."""
        known: tuple[int, list[OwnedTerm]] | None = shape.memo.get(self._owned_memo)
        if known is None or known[0] != self.generation:
            owned = [self._intern(term) for term in terms_of(shape)]
            known = shape.memo[self._owned_memo] = (self.generation, owned)
        return known[1]

    def _intern(self, term: Term) -> OwnedTerm:
        owned = self._terms.get(term)
        if owned is None:
            owned = self._terms[term] = OwnedTerm(term, self._topology(term.topology))
            self._list.append(owned)
        return owned

    def _drop_unowned(self) -> None:
        """Drop terms without owners: terms come and go with workloads."""
        self._terms = {key: term for key, term in self._terms.items() if term.total}
        self._list = list(self._terms.values())
        self.generation += 1

    def _topology(self, key: str) -> Topology:
        topology = self._topologies.get(key)
        if topology is None:
            filed = self._table.column(np.int32)
            column = self._table.labels.column(key)
            filed.data[:] = column.ids.data
            topology = self._topologies[key] = Topology(column, filed)
        return topology

    def _move(self, topology: Topology, row: int, before: int, now: int) -> None:
        for pod in self._table.pods[row].values():
            for owned in self._owned(pod.shape):
                if owned.topology is topology:
                    owned.add(before, -1)
                    owned.add(now, 1)
        topology.filed.data[row] = now
