"""Numbers of pods per node that match a selector: one column of counts per selector, updated with every pod.

Topology spreading and inter-pod affinity need the number of matching pods on every node. The counts are maintained when
a pod is added to or removed from a row (trials included), so that a cycle only sums them by domain (`plugins.domains`):

    counter = counters.counter(key, lambda shape: int(selector.matches(shape.labels)))   # .data[row]

The counters that a shape belongs to are determined once and kept on the shape. A counter lives as long as a caller of
`counter` references it: selectors come and go with workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import ReferenceType, WeakValueDictionary, ref

import numpy as np

from control.scheduler.state.columns import IntArray, RowColumn
from control.scheduler.state.pods import PodInfo, Shape
from control.scheduler.state.table import NodeTable

Weight: TypeAlias = Callable[[Shape], int]
"""By how much a pod of this shape increases the count (0: it does not match)."""


@dataclass(eq=False)
class _Tally:
    """`column.data[row]`: the count for a row. With `live`, terminating pods are not counted."""

    weight: Weight
    live: bool
    column: RowColumn
    counter: ReferenceType[PodCounter] | None = None


class PodCounter:
    """A reference to a counter. Counting stops when the last reference is dropped."""

    __slots__ = ("__weakref__", "_tally")

    def __init__(self, tally: _Tally) -> None:
        self._tally = tally
        tally.counter = ref(self)

    @property
    def data(self) -> IntArray:
        """[row]"""
        counts: IntArray = self._tally.column.data
        return counts


@dataclass
class _Membership:
    """The counters among the first `upto` ones that a shape belongs to, with its weight."""

    upto: int = 0
    generation: int = 0
    members: list[tuple[_Tally, int]] = field(default_factory=list)


class PodCounters:
    """The counters of one table."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._by_key: WeakValueDictionary[Hashable, PodCounter] = WeakValueDictionary()
        self._tallies: list[_Tally] = []
        self._placed: dict[Shape, dict[int, int]] = {}
        """Shape -> row -> number of pods; ~row for terminating pods. A new counter evaluates shapes, not pods."""
        self._generation = 0
        """Changes when the memberships of all shapes become invalid."""
        table.listen(self)

    def __len__(self) -> int:
        return len(self._tallies)

    def counter(self, key: Hashable, weight: Weight, *, live: bool = False) -> PodCounter:
        """The counter named `key`. A new one starts with the present pods. It lives as long as it is referenced.

        `live`: terminating pods are not counted (topology spreading; spec 05 §4).
        """
        counter = self._by_key.get(key)
        if counter is None:
            tally = _Tally(weight, live, self._table.column(np.int64))
            counter = self._by_key[key] = PodCounter(tally)
            self._tallies.append(tally)
            self._fill(tally)
        return counter

    def drop_unused(self) -> None:
        """Drop counters without references. Called every few minutes."""
        unused = [tally for tally in self._tallies if tally.counter is None or tally.counter() is None]
        if not unused:
            return
        self._tallies = [tally for tally in self._tallies if tally.counter is not None and tally.counter() is not None]
        for unused_tally in unused:
            self._table.drop_column(unused_tally.column)
        self._generation += 1  # invalidates the memberships of all shapes

    def rebuild(self) -> None:
        """Count all pods again, because data that a `weight` reads has changed (labels of a namespace)."""
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

    def _place(self, row: int, pod: PodInfo, sign: int) -> None:
        shape = pod.shape
        pods = self._placed.get(shape)
        if pods is None:
            pods = self._placed[shape] = {}
        place = ~row if pod.terminating else row
        number = pods.get(place, 0) + sign
        if number:
            pods[place] = number
            return
        del pods[place]
        if not pods:
            del self._placed[shape]

    def _members(self, shape: Shape) -> list[tuple[_Tally, int]]:
        membership: _Membership | None = shape.memo.get("counters")
        if membership is None or membership.generation != self._generation:
            membership = shape.memo["counters"] = _Membership(generation=self._generation)
        if membership.upto < len(self._tallies):
            for tally in self._tallies[membership.upto :]:
                times = tally.weight(shape)
                if times:
                    membership.members.append((tally, times))
            membership.upto = len(self._tallies)
        return membership.members

    def _fill(self, tally: _Tally) -> None:
        data = tally.column.data
        data[:] = 0
        for shape, pods in self._placed.items():
            times = tally.weight(shape)
            for place, number in pods.items() if times else ():
                if place >= 0 or not tally.live:
                    data[place if place >= 0 else ~place] += number * times
