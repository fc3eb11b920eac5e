"""Columns with a row per node: growing arrays, and node labels as interned numbers.

A row is an index into every column. Rows of removed nodes are used again; `NodeTable.valid` tells which are alive.
`Rows` selects rows: the whole table as a slice (no copy), or an index array.
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


class Column:
    """An array over the rows that grows with the table; `data` is replaced when it does, so ask for it each time."""

    __slots__ = ("data", "fill")

    def __init__(self, capacity: int, dtype: Any, fill: Any = 0) -> None:
        self.fill = fill
        self.data: NDArray[Any] = np.full(capacity, fill, dtype)

    def grow(self, capacity: int) -> None:
        grown = np.full(capacity, self.fill, self.data.dtype)
        grown[: len(self.data)] = self.data
        self.data = grown


class LabelColumn:
    """The values of one label key: `ids.data[row]` is 0 where the node lacks the key, else the number of its value."""

    __slots__ = ("ids", "numbers", "values")

    def __init__(self, capacity: int) -> None:
        self.ids = Column(capacity, np.int32)
        self.values: list[str] = [""]
        """Value of each number; 0 is absence."""
        self.numbers: dict[str, int] = {}

    def put(self, row: int, value: str | None) -> None:
        self.ids.data[row] = 0 if value is None else self.number(value)

    def number(self, value: str) -> int:
        """The number of a value; given when it is new."""
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.values)
            self.values.append(value)
        return found

    def select(self, rows: Rows, wanted: Callable[[str | None], bool]) -> Mask:
        """Where the value (None: absent) satisfies `wanted`, which is asked once a value, not once a node."""
        table = np.fromiter(
            (wanted(None if number == 0 else value) for number, value in enumerate(self.values)), np.bool_
        )
        chosen: Mask = table[self.ids.data[rows]]
        return chosen


class LabelColumns:
    """Label columns, made when first asked for and kept current ever after."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns: dict[str, LabelColumn] = {}
        self._labels: dict[int, Mapping[str, str]] = {}

    def column(self, key: str) -> LabelColumn:
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = LabelColumn(self._capacity)
            for row, labels in self._labels.items():
                found.put(row, labels.get(key))
        return found

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
    """How many rows a selection has in a table of `size` rows."""
    return len(range(*rows.indices(size))) if isinstance(rows, slice) else len(rows)
