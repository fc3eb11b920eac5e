"""The cluster as a table: a row per node, with what is allocatable, requested and said of the node (design §3.6).

Everything in a scheduling cycle reads this table as it stands: cycles are synchronous and nothing else runs in them,
so there is no snapshot. What changes a row is written to a log of rows, and whoever remembers results by row (see
`shapes`) reads the log from where it was: `node_log` for the node object, `pod_log` for the pods counted on it.

Trying things out (nominated pods, preemption, restored reservations) is done on the table itself and taken back:

    with table.what_if() as trial:
        trial.remove(victim); trial.add(pod, row)
        … ask the plugins about `row` …

Quantities are integers: cpu in milli-cores, the rest in whole units (spec 05 §3.1). A removed node that still has pods
keeps its row, without a node object, until they are gone (spec 05 §3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

import numpy as np

from control.scheduler.state.columns import Column, IntArray, LabelColumns, Mask, RowArray, Rows
from control.scheduler.state.pods import LIMIT, PodInfo, Shape, amounts
from koordlet.api.core import Node
from koordlet.api.core.selectors import Taint

CPU, MEMORY, STORAGE, PODS = range(4)
_FIXED: Final = ("cpu", "memory", "ephemeral-storage", "pods")


class PodListener(Protocol):
    """Told of every pod that begins or ends to count on a row; also in trials, so what it keeps must be invertible."""

    def pod_added(self, row: int, pod: PodInfo) -> None: ...

    def pod_removed(self, row: int, pod: PodInfo) -> None: ...


class Log:
    """Rows in the order in which they changed. A reader keeps the position that it has read up to."""

    LIMIT: Final = 1 << 16

    def __init__(self) -> None:
        self._base = 0
        self._rows: list[int] = []

    @property
    def end(self) -> int:
        return self._base + len(self._rows)

    def note(self, row: int) -> None:
        self._rows.append(row)
        if len(self._rows) > self.LIMIT:
            del self._rows[: self.LIMIT // 2]
            self._base += self.LIMIT // 2

    def last(self, row: int) -> int:
        """Where the row's last change ends; 0 when it is too long ago to know, or there was none. Slow."""
        back = next((at for at, noted in enumerate(reversed(self._rows)) if noted == row), None)
        return 0 if back is None else self.end - back

    def since(self, position: int) -> list[int] | None:
        """The rows changed since, perhaps repeatedly; None when that is too long ago to know."""
        if position < self._base:
            return None
        return self._rows[position - self._base :] if position < self.end else []


class NodeTable:
    """See the module text. Not for several threads."""

    def __init__(self, capacity: int = 64) -> None:
        self.capacity = capacity
        self.size = 0
        """Rows in use or used before: every column is meaningful up to here."""
        self.rows: dict[str, int] = {}
        """Row of each node, placeholders included."""
        self.names: list[str] = []
        self.nodes: list[Node | None] = []
        self.pods: list[dict[str, PodInfo]] = []
        """By row: the pods counted there, by uid."""
        self.nodes_alive = 0
        self.node_log, self.pod_log = Log(), Log()
        self.labels = LabelColumns(capacity)
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        """Distinct taints of nodes; `taint_set` holds each node's number."""
        self._taint_numbers: dict[tuple[tuple[str, str, str], ...], int] = {(): 0}
        self._valid = Column(capacity, np.bool_, False)
        self._unschedulable = Column(capacity, np.bool_, False)
        self._taint_set = Column(capacity, np.int32)
        self.resources: dict[str, int] = {name: column for column, name in enumerate(_FIXED)}
        """Column of each resource in `allocatable` and `requested`."""
        self.allocatable: IntArray = np.zeros((len(_FIXED), capacity), np.int64)
        """[resource, row]; a node that does not list a resource has 0 of it."""
        self.requested: IntArray = np.zeros((len(_FIXED), capacity), np.int64)
        """[resource, row]; `PODS` counts pods."""
        self.nonzero: IntArray = np.zeros((2, capacity), np.int64)
        """[CPU or MEMORY, row]: requests with defaults where a container has none, for scores."""
        self._free_rows: list[int] = []
        self._listeners: list[PodListener] = []
        self._columns: list[Column] = [self._valid, self._unschedulable, self._taint_set]

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def all(self) -> slice:
        """Every row, dead ones included."""
        return slice(0, self.size)

    @property
    def valid(self) -> Mask:
        """[row]: whether there is a node object."""
        found: Mask = self._valid.data[: self.size]
        return found

    @property
    def unschedulable(self) -> Mask:
        found: Mask = self._unschedulable.data[: self.size]
        return found

    @property
    def taint_set(self) -> IntArray:
        """[row]: number of the node's taints in `taint_sets`."""
        found: IntArray = self._taint_set.data[: self.size]
        return found

    def resource(self, name: str) -> int:
        """Column of a resource, made when it is new."""
        found = self.resources.get(name)
        if found is None:
            found = self.resources[name] = len(self.resources)
            row = np.zeros((1, self.capacity), np.int64)
            self.allocatable = np.concatenate((self.allocatable, row))
            self.requested = np.concatenate((self.requested, row))
        return found

    def vector(self, shape: Shape) -> list[tuple[int, int]]:
        """(column, amount) of everything that the shape requests; zeros are left out."""
        found: list[tuple[int, int]] | None = shape.memo.get("vector")
        if found is None:
            found = [(self.resource(name), amount) for name, amount in shape.requests.items() if amount]
            shape.memo["vector"] = found
        return found

    def node(self, row: int) -> Node:
        """The node object of a valid row."""
        node = self.nodes[row]
        if node is None:
            raise KeyError(f"row {row} has no node")
        return node

    def row(self, name: str) -> int | None:
        """Row of a node that exists; None also for placeholders."""
        row = self.rows.get(name)
        return row if row is not None and self._valid.data[row] else None

    def column(self, dtype: type, fill: object = 0) -> Column:
        """A column of a plugin's own, that grows with the table."""
        made = Column(self.capacity, dtype, fill)
        self._columns.append(made)
        return made

    def drop_column(self, column: Column) -> None:
        """A column that nobody reads any more."""
        self._columns = [one for one in self._columns if one is not column]

    def listen(self, listener: PodListener) -> None:
        """Tell `listener` of pods from now on; those already there are told at once."""
        self._listeners.append(listener)
        for row, pods in enumerate(self.pods):
            for pod in pods.values():
                listener.pod_added(row, pod)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def set_node(self, node: Node) -> int:
        """Add a node, or take over its new version. Returns its row."""
        name = node.metadata.name
        row = self.rows.get(name)
        if row is None:
            row = self._take_row(name)
        if not self._valid.data[row]:
            self.nodes_alive += 1
        self.nodes[row] = node
        self._valid.data[row] = True
        self._unschedulable.data[row] = node.spec.unschedulable
        self._taint_set.data[row] = self._taints(node.spec.taints)
        self.labels.put(row, node.metadata.labels)
        self._set_allocatable(row, amounts(node.status.allocatable))
        self.node_log.note(row)
        return row

    def remove_node(self, name: str) -> None:
        row = self.rows.get(name)
        if row is None or not self._valid.data[row]:
            return
        self.nodes_alive -= 1
        self.nodes[row] = None
        self._valid.data[row] = False
        self.labels.remove(row)
        self._set_allocatable(row, {})
        self.node_log.note(row)
        self._drop_empty_placeholder(row)

    def _take_row(self, name: str) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
            self.names[row] = name
        else:
            row = self.size
            if row == self.capacity:
                self._grow(2 * self.capacity)
            self.size += 1
            self.names.append(name)
            self.nodes.append(None)
            self.pods.append({})
        self.rows[name] = row
        return row

    def _drop_empty_placeholder(self, row: int) -> None:
        if not self._valid.data[row] and not self.pods[row]:
            del self.rows[self.names[row]]
            self.names[row] = ""
            self._free_rows.append(row)

    def _set_allocatable(self, row: int, found: Mapping[str, int]) -> None:
        columns = [(self.resource(name), amount) for name, amount in found.items()]
        self.allocatable[:, row] = 0
        for column, amount in columns:
            self.allocatable[column, row] = min(amount, LIMIT - 1)

    def _taints(self, taints: list[Taint]) -> int:
        key = tuple((taint.key, taint.value, taint.effect) for taint in taints)
        number = self._taint_numbers.get(key)
        if number is None:
            number = self._taint_numbers[key] = len(self.taint_sets)
            self.taint_sets.append(tuple(taints))
        return number

    def _grow(self, capacity: int) -> None:
        extra = capacity - self.capacity
        self.capacity = capacity
        for column in self._columns:
            column.grow(capacity)
        self.labels.grow(capacity)
        self.allocatable = np.pad(self.allocatable, ((0, 0), (0, extra)))
        self.requested = np.pad(self.requested, ((0, 0), (0, extra)))
        self.nonzero = np.pad(self.nonzero, ((0, 0), (0, extra)))

    # -- pods --------------------------------------------------------------------------------------------------------

    def add_pod(self, pod: PodInfo, node: str) -> int:
        """Count a pod on a node, which need not exist yet. Raises ValueError if it counts somewhere already."""
        if pod.row >= 0:
            raise ValueError(f"pod {pod.key} is already counted on {self.names[pod.row]}")
        row = self.rows.get(node)
        if row is None:
            row = self._take_row(node)
        self._count(pod, row)
        return row

    def remove_pod(self, pod: PodInfo) -> None:
        """Stop counting a pod. Raises ValueError if it does not count."""
        if pod.row < 0:
            raise ValueError(f"pod {pod.key} is not counted")
        row = pod.row
        self._discount(pod)
        self._drop_empty_placeholder(row)

    def touch(self, row: int) -> None:
        """Something that a plugin keeps about the row changed: remembered results for it are stale."""
        self.pod_log.note(row)

    def _count(self, pod: PodInfo, row: int) -> None:
        self._change(pod.shape, row, 1)
        self.pods[row][pod.uid] = pod
        pod.row = row
        for listener in self._listeners:
            listener.pod_added(row, pod)

    def _discount(self, pod: PodInfo) -> None:
        row = pod.row
        for listener in self._listeners:
            listener.pod_removed(row, pod)
        self._change(pod.shape, row, -1)
        del self.pods[row][pod.uid]
        pod.row = -1

    def _change(self, shape: Shape, row: int, sign: int) -> None:
        vector = self.vector(shape)
        requested = self.requested
        for column, amount in vector:
            requested[column, row] += sign * amount
        requested[PODS, row] += sign
        self.nonzero[CPU, row] += sign * shape.nonzero_cpu
        self.nonzero[MEMORY, row] += sign * shape.nonzero_memory
        self.pod_log.note(row)

    @contextmanager
    def what_if(self) -> Iterator[Trial]:
        """Changes that are taken back, last first, when the block ends."""
        trial = Trial(self)
        try:
            yield trial
        finally:
            trial.undo()


class Trial:
    """Pods added and removed on trial. Both can be called in any order; `undo` takes everything back."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._done: list[tuple[PodInfo, int]] = []
        """(pod, row it was removed from, or -1 when it was added)"""

    def add(self, pod: PodInfo, row: int) -> None:
        self._table._count(pod, row)
        self._done.append((pod, -1))

    def remove(self, pod: PodInfo) -> None:
        row = pod.row
        self._table._discount(pod)
        self._done.append((pod, row))

    def undo(self) -> None:
        while self._done:
            pod, row = self._done.pop()
            if row < 0:
                self._table._discount(pod)
            else:
                self._table._count(pod, row)


def selected(rows: Rows, size: int) -> RowArray:
    """A selection as an index array."""
    return np.arange(*rows.indices(size)) if isinstance(rows, slice) else rows
