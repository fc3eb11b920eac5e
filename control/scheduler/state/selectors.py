"""Counting pods by what they carry: a column of counts for each selector, current as pods come and go.

Spreading and inter-pod affinity ask how many pods on every node match a selector. Those are counts by row, maintained
when a pod is counted or discounted (trials included), so that a cycle only sums them over domains (`plugins.domains`):

    counter = counters.counter(key, lambda shape: int(selector.matches(shape.labels)))   # .data[row]

Which counters a shape belongs to is decided once and remembered on the shape. A counter is kept as long as whoever
asked for it keeps it: selectors come and go with workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import ReferenceType, WeakValueDictionary, ref

import numpy as np

from control.scheduler.state.columns import Column, IntArray
from control.scheduler.state.pods import PodInfo, Shape
from control.scheduler.state.table import NodeTable

Belongs: TypeAlias = Callable[[Shape], int]
"""How often a pod of this shape counts (0: not at all)."""


@dataclass(eq=False)
class _Tally:
    """`column.data[row]`: the count of the pods on a row. Not `live`: terminating pods count, too."""

    belongs: Belongs
    live: bool
    column: Column
    total: int = 0
    counter: ReferenceType[Counter] | None = None


class Counter:
    """What is counted, for those who asked; nobody counts any more when they let go of it."""

    __slots__ = ("__weakref__", "_tally")

    def __init__(self, tally: _Tally) -> None:
        self._tally = tally
        tally.counter = ref(self)

    @property
    def data(self) -> IntArray:
        """[row]"""
        found: IntArray = self._tally.column.data
        return found

    @property
    def total(self) -> int:
        return self._tally.total


@dataclass
class _Membership:
    """Which counters a shape counts in, as far as `upto` counters were known."""

    upto: int = 0
    generation: int = 0
    members: list[tuple[_Tally, int]] = field(default_factory=list)


class PodCounters:
    """The counters of one table. `generation` changes when what `belongs` reads changed (labels of namespaces)."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._by_key: WeakValueDictionary[Hashable, Counter] = WeakValueDictionary()
        self._tallies: list[_Tally] = []
        self._placed: dict[Shape, dict[int, int]] = {}
        """Shape -> row -> how many pods; ~row for those being deleted. A new counter asks each shape, not each pod."""
        self._generation = 0
        table.listen(self)

    def __len__(self) -> int:
        return len(self._tallies)

    def counter(self, key: Hashable, belongs: Belongs, *, live: bool = False) -> Counter:
        """The counter named `key`; made, over the pods that there are, when it is new. It lives as long as it is held.

        `live`: terminating pods don't count (spreading; spec 05 §4).
        """
        found = self._by_key.get(key)
        if found is None:
            tally = _Tally(belongs, live, self._table.column(np.int64))
            found = self._by_key[key] = Counter(tally)
            self._tallies.append(tally)
            self._fill(tally)
        return found

    def drop_unused(self) -> None:
        """Forget what nobody asks for any more; due every few minutes."""
        unused = [one for one in self._tallies if one.counter is None or one.counter() is None]
        if not unused:
            return
        self._tallies = [one for one in self._tallies if one.counter is not None and one.counter() is not None]
        for one in unused:
            self._table.drop_column(one.column)
        self._generation += 1  # shapes must not count in them any more

    def rebuild(self) -> None:
        """Count everything anew: what some `belongs` reads has changed (labels of a namespace)."""
        self._generation += 1
        for tally in self._tallies:
            self._fill(tally)

    def pod_added(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, 1)

    def pod_removed(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, -1)

    def _count(self, row: int, pod: PodInfo, sign: int) -> None:
        self._place(row, pod, sign)
        for tally, times in self._members(pod.shape):
            if not (tally.live and pod.terminating):
                tally.column.data[row] += sign * times
                tally.total += sign * times

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

    def _members(self, shape: Shape) -> list[tuple[_Tally, int]]:
        membership: _Membership | None = shape.memo.get("counters")
        if membership is None or membership.generation != self._generation:
            membership = shape.memo["counters"] = _Membership(generation=self._generation)
        if membership.upto < len(self._tallies):
            for tally in self._tallies[membership.upto :]:
                times = tally.belongs(shape)
                if times:
                    membership.members.append((tally, times))
            membership.upto = len(self._tallies)
        return membership.members

    def _fill(self, tally: _Tally) -> None:
        data = tally.column.data
        data[:] = 0
        tally.total = 0
        for shape, pods in self._placed.items():
            times = tally.belongs(shape)
            for where, number in pods.items() if times else ():
                if where >= 0 or not tally.live:
                    data[where if where >= 0 else ~where] += number * times
                    tally.total += number * times
