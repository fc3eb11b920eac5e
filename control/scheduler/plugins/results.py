"""Frequent results of plugins: shared read-only columns with one value, and results for single rows as integers.

A plugin that reads pods is usually called for the one row that the previous pod took. `scalar_rows` detects such calls:
for a few rows plain integers are several times faster than array operations.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from control.scheduler.framework.handle import Handle
from control.scheduler.framework.plugin import PreFilterResult
from control.scheduler.framework.status import SKIP
from control.scheduler.state.columns import IntArray, Reasons16, Rows, count
from control.scheduler.state.pods import PodInfo
from koordlet.api.core import Node, Pod

MAX_SCALAR_ROWS: Final = 12
"""Up to this number of rows integers are faster than arrays."""
SKIP_FILTER: Final = PreFilterResult(SKIP)
PASS_ALL: Final = PreFilterResult()


def scalar_rows(rows: Rows) -> list[int] | None:
    """The rows as integers if there are few, else None."""
    return rows.tolist() if not isinstance(rows, slice) and len(rows) <= MAX_SCALAR_ROWS else None


def _constant(length: int, value: int, dtype: Any) -> Any:
    column = np.full(length, value, dtype)
    column.setflags(write=False)
    return column


_PASSES: Final[list[Reasons16]] = [_constant(length, 0, np.int16) for length in range(MAX_SCALAR_ROWS + 1)]


def passes(rows: Rows, size: int) -> Reasons16:
    """The Filter result in which all rows pass."""
    length = count(rows, size)
    return _PASSES[length] if length <= MAX_SCALAR_ROWS else np.zeros(length, np.int16)


def reasons(numbers: list[int]) -> Reasons16:
    """Filter results for a few rows as a column."""
    return np.array(numbers, np.int16) if any(numbers) else _PASSES[len(numbers)]


def scores(values: list[int]) -> IntArray:
    return np.array(values, np.int64)


def zeros(rows: Rows, size: int) -> IntArray:
    """Score 0 for every row."""
    return np.zeros(count(rows, size), np.int64)


def memo_key(name: str, handle: Handle) -> str:
    """The key of a plugin's data in `Shape.memo`. It includes the profile, because profiles have different
    arguments."""
    return f"{name}@{handle.profile}"


def as_pod(event_object: Any) -> Pod | None:
    """The pod of a cluster event."""
    if isinstance(event_object, PodInfo):
        return event_object.pod
    return event_object if isinstance(event_object, Pod) else None


def as_node(event_object: Any) -> Node | None:
    """The node of a cluster event."""
    return event_object if isinstance(event_object, Node) else None


def own_change(pod: PodInfo, old: Any, new: Any) -> Pod | None:
    """The new version of the waiting pod if the event is an update of this pod."""
    changed = as_pod(new)
    return changed if old is not None and changed is not None and changed.metadata.uid == pod.uid else None
