"""Columns with a row per node: growing arrays, and node labels as interned numbers.

A row is an index into every column. Rows of removed nodes are reused; `NodeTable.valid` marks rows with a node object.
`Rows` selects rows: a slice for the whole table (no copy), or an index array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
RowArray: TypeAlias = NDArray[np.intp]
Mask: TypeAlias = NDArray[np.bool_]
Reasons16: TypeAlias = NDArray[np.int16]
Rows: TypeAlias = "slice | RowArray"


class RowColumn:
    """An array over the rows that grows with the table. Growing replaces `data`: do not keep a reference to it."""

    __slots__ = ("data", "fill")

    def __init__(self, capacity: int, dtype: Any, fill: Any = 0, lead: tuple[int, ...] = ()) -> None:
        """`lead`: sizes of the axes before the rows, see `RowMatrix`."""
        self.fill = fill
        self.data: NDArray[Any] = np.full((*lead, capacity), fill, dtype)

    def grow(self, capacity: int) -> None:
        self._reshape((*self.data.shape[:-1], capacity))

    def _reshape(self, shape: tuple[int, ...]) -> None:
        grown = np.full(shape, self.fill, self.data.dtype)
        grown[tuple(map(slice, self.data.shape))] = self.data
        self.data = grown


class RowMatrix(RowColumn):
    """Several columns of one meaning, e.g. [zone, resource, row]: the last axis is the row and grows with the table."""

    __slots__ = ()

    def widen(self, *lead: int) -> None:
        """Grow the axes before the rows to at least these sizes; new elements have the fill value."""
        present = self.data.shape
        sizes = tuple(map(max, present[:-1], lead))
        if len(lead) != len(present) - 1:
            raise ValueError(f"{len(lead)} sizes for {len(present) - 1} axes before the rows")
        if sizes != present[:-1]:
            self._reshape((*sizes, present[-1]))


class LabelColumn:
    """The values of one label key. `ids.data[row]` is the number of the value, 0 if the node lacks the key."""

    __slots__ = ("ids", "numbers", "values")

    def __init__(self, capacity: int) -> None:
        self.ids = RowColumn(capacity, np.int32)
        self.values: list[str] = [""]
        """[number]: the value. Number 0 stands for a missing label."""
        self.numbers: dict[str, int] = {}

    def put(self, row: int, value: str | None) -> None:
        self.ids.data[row] = 0 if value is None else self.number(value)

    def number(self, value: str) -> int:
        """The number of a value. A new value gets the next number."""
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.values)
            self.values.append(value)
        return number

    def select(self, rows: Rows, predicate: Callable[[str | None], bool]) -> Mask:
        """The rows whose value (None: missing) satisfies `predicate`, which is called once per value, not per node."""
        table = np.fromiter(
            (predicate(None if number == 0 else value) for number, value in enumerate(self.values)), np.bool_
        )
        chosen: Mask = table[self.ids.data[rows]]
        return chosen


class LabelColumns:
    """Label columns. Each is created at its first use and kept current from then on."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns: dict[str, LabelColumn] = {}
        self._labels: dict[int, Mapping[str, str]] = {}

    def column(self, key: str) -> LabelColumn:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = LabelColumn(self._capacity)
            for row, labels in self._labels.items():
                column.put(row, labels.get(key))
        return column

    def put(self, row: int, labels: Mapping[str, str]) -> None:
        self._labels[row] = labels
        for key, column in self._columns.items():
            column.put(row, labels.get(key))

    def remove(self, row: int) -> None:
        self._labels.pop(row, None)
        for column in self._columns.values():
            column.put(row, None)

    def grow(self, capacity: int) -> None:
        self._capacity = capacity
        for column in self._columns.values():
            column.ids.grow(capacity)

    def keys(self) -> Iterable[str]:
        return self._columns.keys()


def count(rows: Rows, size: int) -> int:
    """The number of rows in a selection of a table with `size` rows."""
    return len(range(*rows.indices(size))) if isinstance(rows, slice) else len(rows)
