"""Counting pods by what they carry: a column of counts for each selector, current as pods come and go.

Spreading and inter-pod affinity ask how many pods on every node match a selector. Those are counts by row, maintained
when a pod is counted or discounted (trials included), so that a cycle only sums them over domains (`plugins.domains`):

    counter = counters.counter(key, lambda shape: int(selector.matches(shape.labels)))   # .data[row]

Which counters a shape belongs to is decided once and remembered on the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from control.scheduler.columns import Column, IntArray
from control.scheduler.pods import PodInfo, Shape
from control.scheduler.table import NodeTable

Belongs: TypeAlias = Callable[[Shape], int]
"""How often a pod of this shape counts (0: not at all)."""


@dataclass
class Counter:
    """`column.data[row]`: the count of the pods on a row. Not `live`: terminating pods count, too."""

    number: int
    belongs: Belongs
    live: bool
    column: Column
    asked: float = 0.0
    total: int = 0

    @property
    def data(self) -> IntArray:
        found: IntArray = self.column.data
        return found


@dataclass
class _Membership:
    """Which counters a shape counts in, as far as `upto` counters were known."""

    upto: int = 0
    generation: int = 0
    members: list[tuple[Counter, int]] = field(default_factory=list)


class PodCounters:
    """The counters of one table. `generation` changes when what `belongs` reads changed (labels of namespaces)."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._by_key: dict[Hashable, Counter] = {}
        self._counters: list[Counter] = []
        self._placed: dict[Shape, dict[int, int]] = {}
        """Shape -> row -> how many pods; ~row for those being deleted. A new counter asks each shape, not each pod."""
        self._generation = 0
        table.listen(self)

    def __len__(self) -> int:
        return len(self._counters)

    def counter(self, key: Hashable, belongs: Belongs, *, live: bool = False) -> Counter:
        """The counter named `key`; made, over the pods that there are, when it is new.

        `live`: terminating pods don't count (spreading; spec 05 §4).
        """
        found = self._by_key.get(key)
        if found is None:
            found = Counter(len(self._counters), belongs, live, self._table.column(np.int64))
            self._by_key[key] = found
            self._counters.append(found)
            self._fill(found)
        return found

    def rebuild(self) -> None:
        """Count everything anew: what some `belongs` reads has changed (labels of a namespace)."""
        self._generation += 1
        for counter in self._counters:
            self._fill(counter)

    def pod_added(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, 1)

    def pod_removed(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, -1)

    def _count(self, row: int, pod: PodInfo, sign: int) -> None:
        self._place(row, pod, sign)
        for counter, times in self._members(pod.shape):
            if not (counter.live and pod.terminating):
                counter.column.data[row] += sign * times
                counter.total += sign * times

    def _place(self, row: int, pod: PodInfo, sign: int) -> None:
        shape = pod.shape
        pods = self._placed.get(shape)
        if pods is None:
            pods = self._placed[shape] = {}
        where = ~row if pod.terminating else row
        number = pods.get(where, 0) + sign
        if number:
            pods[where] = number
            return
        del pods[where]
        if not pods:
            del self._placed[shape]

    def _members(self, shape: Shape) -> list[tuple[Counter, int]]:
        membership: _Membership | None = shape.memo.get("counters")
        if membership is None or membership.generation != self._generation:
            membership = shape.memo["counters"] = _Membership(generation=self._generation)
        if membership.upto < len(self._counters):
            for counter in self._counters[membership.upto :]:
                times = counter.belongs(shape)
                if times:
                    membership.members.append((counter, times))
            membership.upto = len(self._counters)
        return membership.members

    def _fill(self, counter: Counter) -> None:
        counter.column.data[:] = 0
        counter.total = 0
        data = counter.column.data
        for shape, pods in self._placed.items():
            times = counter.belongs(shape)
            for where, number in pods.items() if times else ():
                if where >= 0 or not counter.live:
                    data[where if where >= 0 else ~where] += number * times
                    counter.total += number * times
