"""What plugins answer with again and again: columns of one value, shared and read-only, and single rows as integers.

A plugin that reads pods is mostly asked about the one row that the last pod took, so `few` picks that case out: for a
handful of rows plain integers are several times faster than array operations.
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

FEW: Final = 12
"""Up to so many rows integers are faster; with more, arrays are."""
SKIP_FILTER: Final = PreFilterResult(SKIP)
PASS_ALL: Final = PreFilterResult()


def few(rows: Rows) -> list[int] | None:
    """The rows as integers when they are a handful, else None."""
    return rows.tolist() if not isinstance(rows, slice) and len(rows) <= FEW else None


def _constant(length: int, value: int, dtype: Any) -> Any:
    made = np.full(length, value, dtype)
    made.setflags(write=False)
    return made


_PASSES: Final[list[Reasons16]] = [_constant(length, 0, np.int16) for length in range(FEW + 1)]


def passes(rows: Rows, size: int) -> Reasons16:
    """All rows pass."""
    length = count(rows, size)
    return _PASSES[length] if length <= FEW else np.zeros(length, np.int16)


def reasons(numbers: list[int]) -> Reasons16:
    """A handful of answers as a column."""
    return np.array(numbers, np.int16) if any(numbers) else _PASSES[len(numbers)]


def scores(values: list[int]) -> IntArray:
    return np.array(values, np.int64)


def nothing(rows: Rows, size: int) -> IntArray:
    """A score of 0 everywhere."""
    return np.zeros(count(rows, size), np.int64)


def memo_key(name: str, handle: Handle) -> str:
    """Where a plugin keeps what it compiled for a shape: profiles have different arguments."""
    return f"{name}@{handle.profile}"


def as_pod(told: Any) -> Pod | None:
    """The pod that an event tells of."""
    if isinstance(told, PodInfo):
        return told.pod
    return told if isinstance(told, Pod) else None


def as_node(told: Any) -> Node | None:
    """The node that an event tells of."""
    return told if isinstance(told, Node) else None


def own_change(pod: PodInfo, old: Any, new: Any) -> Pod | None:
    """The new version of the waiting pod when the event is an update of that very pod."""
    changed = as_pod(new)
    return changed if old is not None and changed is not None and changed.metadata.uid == pod.uid else None
