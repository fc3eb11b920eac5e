"""The cluster as a table: one row per node with allocatable and requested resources, labels, taints and pods.

A scheduling cycle reads this table directly, without a snapshot: cycles are synchronous, so nothing changes it during a
cycle. Every changed row is appended to a log. Readers that cache results by row (`cycle.equivalence`) read the log from
their last position: `node_log` for changes of the node object, `pod_log` for changes of the pods counted on it.

Trials (nominated pods, preemption, restored reservations) are made on the table itself and reverted:

    with table.what_if() as trial:
        trial.remove(victim); trial.add(pod, row)
        … evaluate `row` with the plugins …

Quantities are integers: cpu in milli-cores, other resources in whole units (spec 05 §3.1). A removed node that still
has pods keeps its row as a placeholder, without a node object, until they are gone (spec 05 §3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias

import numpy as np

from control.component.amounts import MAX_AMOUNT, amounts
from control.scheduler.state.columns import IntArray, LabelColumns, Mask, RowArray, RowColumn, RowMatrix, Rows
from control.scheduler.state.pods import PodInfo, Shape
from koordlet.api.core import Node
from koordlet.api.core.selectors import Taint
from koordlet.app.logging import get_logger

log = get_logger(__name__)

MAX_RESOURCES: Final = 256
CPU, MEMORY, STORAGE, PODS = range(4)
_FIXED: Final = ("cpu", "memory", "ephemeral-storage", "pods")


Vector: TypeAlias = Sequence[tuple[int, int]]
"""(column of `NodeTable.resource`, amount)"""


class PodListener(Protocol):
    """Called for every pod that is added to or removed from a row, also in trials; so its effects must be
    invertible."""

    def pod_added(self, row: int, pod: PodInfo) -> None: ...

    def pod_removed(self, row: int, pod: PodInfo) -> None: ...


class RowLog:
    """Rows in the order of their changes. A reader keeps the position up to which it has read."""

    MAX_ROWS: Final = 1 << 16

    def __init__(self) -> None:
        self._base = 0
        self._rows: list[int] = []

    @property
    def end(self) -> int:
        return self._base + len(self._rows)

    def note(self, row: int) -> None:
        self._rows.append(row)
        if len(self._rows) > self.MAX_ROWS:
            del self._rows[: self.MAX_ROWS // 2]
            self._base += self.MAX_ROWS // 2

    def last(self, row: int) -> int:
        """The position after the row's last change; 0 if there was none or the log does not reach back. Slow."""
        back = next((at for at, noted in enumerate(reversed(self._rows)) if noted == row), None)
        return 0 if back is None else self.end - back

    def since(self, position: int) -> list[int] | None:
        """The rows changed since `position`, possibly repeated; None if the log does not reach back to it."""
        if position < self._base:
            return None
        return self._rows[position - self._base :] if position < self.end else []


class NodeTable:
    """See the module text. For one thread."""

    def __init__(self, capacity: int = 64) -> None:
        self.capacity = capacity
        self.size = 0
        """Number of rows that are or were in use. Columns are valid up to here."""
        self.rows: dict[str, int] = {}
        """Row of each node, placeholders included."""
        self.names: list[str] = []
        self.nodes: list[Node | None] = []
        self.pods: list[dict[str, PodInfo]] = []
        """[row]: the pods counted there, by uid."""
        self.nodes_alive = 0
        self.node_log = RowLog()
        """Changes of node objects."""
        self.pod_log = RowLog()
        """Changes of the pods counted on a row, and of plugin data (`touch`)."""
        self.labels = LabelColumns(capacity)
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        """The distinct sets of taints; `taint_set` has the number of each node's set."""
        self._taint_numbers: dict[tuple[tuple[str, str, str], ...], int] = {(): 0}
        self._valid = RowColumn(capacity, np.bool_, False)
        self._unschedulable = RowColumn(capacity, np.bool_, False)
        self._taint_set = RowColumn(capacity, np.int32)
        self.resources: dict[str, int] = {name: column for column, name in enumerate(_FIXED)}
        """Column of each resource in `allocatable` and `requested`."""
        self.allocatable: IntArray = np.zeros((len(_FIXED), capacity), np.int64)
        """[resource, row]; a node that does not list a resource has 0 of it."""
        self.requested: IntArray = np.zeros((len(_FIXED), capacity), np.int64)
        """[resource, row]; the `PODS` column is the number of pods."""
        self.nonzero: IntArray = np.zeros((2, capacity), np.int64)
        """[CPU or MEMORY, row]: requests with defaults for containers without requests, for scores."""
        self._adjustments: dict[str, Vector] = {}
        """By uid: see `adjust`."""
        self._free_rows: list[int] = []
        self._listeners: list[PodListener] = []
        self._columns: list[RowColumn] = [self._valid, self._unschedulable, self._taint_set]

    # Reading

    @property
    def all(self) -> slice:
        """Every row, including unused ones."""
        return slice(0, self.size)

    @property
    def valid(self) -> Mask:
        """[row]: whether there is a node object."""
        column: Mask = self._valid.data[: self.size]
        return column

    @property
    def unschedulable(self) -> Mask:
        column: Mask = self._unschedulable.data[: self.size]
        return column

    @property
    def taint_set(self) -> IntArray:
        """[row]: index of the node's taints in `taint_sets`."""
        column: IntArray = self._taint_set.data[: self.size]
        return column

    def resource(self, name: str) -> int:
        """The column of a resource. A new resource gets a new column.

        Pods may name any resource. Names after the first `MAX_RESOURCES` share the last column, of which nodes have 0.
        """
        column = self.resources.get(name)
        if column is not None:
            return column
        if len(self.resources) == MAX_RESOURCES:
            log.once("resources", "Resources beyond the limit are not schedulable", resource=name, limit=MAX_RESOURCES)
            return MAX_RESOURCES
        column = self.resources[name] = len(self.resources)
        # The last resource brings the shared column with it.
        rows = np.zeros((2 if column == MAX_RESOURCES - 1 else 1, self.capacity), np.int64)
        self.allocatable = np.concatenate((self.allocatable, rows))
        self.requested = np.concatenate((self.requested, rows))
        return column

    def vector(self, shape: Shape) -> list[tuple[int, int]]:
        """(column, amount) of the non-zero requests of the shape."""
        vector: list[tuple[int, int]] | None = shape.memo.get("vector")
        if vector is None:
            vector = [(self.resource(name), amount) for name, amount in shape.requests.items() if amount]
            shape.memo["vector"] = vector
        return vector

    def node(self, row: int) -> Node:
        """The node object of a valid row."""
        node = self.nodes[row]
        if node is None:
            raise KeyError(f"row {row} has no node")
        return node

    def row(self, name: str) -> int | None:
        """The row of an existing node; None also for placeholders."""
        row = self.rows.get(name)
        return row if row is not None and self._valid.data[row] else None

    def column(self, dtype: type, fill: object = 0) -> RowColumn:
        """A new column for a plugin. It grows with the table."""
        column = RowColumn(self.capacity, dtype, fill)
        self._columns.append(column)
        return column

    def matrix(self, *lead: int, dtype: type, fill: object = 0) -> RowMatrix:
        """New columns [*lead, row] for a plugin. They grow with the table."""
        matrix = RowMatrix(self.capacity, dtype, fill, lead)
        self._columns.append(matrix)
        return matrix

    def drop_column(self, column: RowColumn) -> None:
        """Stop growing a column that is not used any more."""
        self._columns = [kept for kept in self._columns if kept is not column]

    def listen(self, listener: PodListener) -> None:
        """Call `listener` for pods from now on, and once for every pod that is already counted."""
        self._listeners.append(listener)
        for row, pods in enumerate(self.pods):
            for pod in pods.values():
                listener.pod_added(row, pod)

    # Nodes

    def set_node(self, node: Node) -> int:
        """Add a node, or apply its new version. Returns its row."""
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

    def _set_allocatable(self, row: int, allocatable: Mapping[str, int]) -> None:
        columns = [(self.resource(name), amount) for name, amount in allocatable.items()]
        self.allocatable[:, row] = 0
        for column, amount in columns:
            if column < MAX_RESOURCES:
                self.allocatable[column, row] = min(amount, MAX_AMOUNT - 1)

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

    # Pods

    def add_pod(self, pod: PodInfo, node: str) -> int:
        """Count a pod on a node, which need not exist yet. Raises ValueError if the pod is counted already."""
        if pod.row >= 0:
            raise ValueError(f"pod {pod.key} is already counted on {self.names[pod.row]}")
        row = self.rows.get(node)
        if row is None:
            row = self._take_row(node)
        self._count(pod, row)
        return row

    def remove_pod(self, pod: PodInfo) -> None:
        """Stop counting a pod. Raises ValueError if it is not counted."""
        if pod.row < 0:
            raise ValueError(f"pod {pod.key} is not counted")
        row = pod.row
        self._discount(pod)
        self._drop_empty_placeholder(row)

    def adjust(self, pod: PodInfo, vector: Vector) -> Vector:
        """Count `vector` in addition to the pod's requests, also after it was removed and added again; () ends that.

        Amounts may be negative. Returns the previous vector: `adjust(pod, previous)` reverts the call."""
        previous = self._adjustments.get(pod.uid, ())
        if pod.row >= 0:
            self._apply(previous, pod.row, -1)
            self._apply(vector, pod.row, 1)
            self.pod_log.note(pod.row)
        if vector:
            self._adjustments[pod.uid] = vector
        else:
            self._adjustments.pop(pod.uid, None)
        return previous

    def touch(self, row: int) -> None:
        """Plugin data for the row changed: cached results for it are stale."""
        self.pod_log.note(row)

    def _count(self, pod: PodInfo, row: int) -> None:
        self._change(pod, row, 1)
        self.pods[row][pod.uid] = pod
        pod.row = row
        for listener in self._listeners:
            listener.pod_added(row, pod)

    def _discount(self, pod: PodInfo) -> None:
        row = pod.row
        for listener in self._listeners:
            listener.pod_removed(row, pod)
        self._change(pod, row, -1)
        del self.pods[row][pod.uid]
        pod.row = -1

    def _change(self, pod: PodInfo, row: int, sign: int) -> None:
        shape = pod.shape
        vector = self.vector(shape)
        requested = self.requested
        for column, amount in vector:
            requested[column, row] += sign * amount
        requested[PODS, row] += sign
        self.nonzero[CPU, row] += sign * shape.nonzero_cpu
        self.nonzero[MEMORY, row] += sign * shape.nonzero_memory
        if self._adjustments:
            self._apply(self._adjustments.get(pod.uid, ()), row, sign)
        self.pod_log.note(row)

    def _apply(self, vector: Vector, row: int, sign: int) -> None:
        for column, amount in vector:
            self.requested[column, row] += sign * amount
            if column in (CPU, MEMORY):
                self.nonzero[column, row] += sign * amount

    @contextmanager
    def what_if(self) -> Iterator[Trial]:
        """Changes that are reverted, last first, when the block ends."""
        trial = Trial(self)
        try:
            yield trial
        finally:
            trial.undo()


class Trial:
    """Pods added and removed tentatively, in any order. `undo` reverts everything."""

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
    """The selected rows as an index array."""
    return np.arange(*rows.indices(size)) if isinstance(rows, slice) else rows
