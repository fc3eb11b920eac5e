"""The rows of an equivalence class whose results are not current, because no pod needed them since they changed."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from control.scheduler.state.columns import RowArray, Rows


class LeftRows:
    """Rows that changed and were not needed since."""

    CURRENT: Final = 0
    PODS: Final = 1
    NODE: Final = 2
    """Everything may have changed."""

    def __init__(self) -> None:
        self._changed: NDArray[np.int8] = np.empty(0, np.int8)
        """[row]; empty while no row was ever left."""

    def __bool__(self) -> bool:
        return bool(self._changed.size)

    def due(
        self, nodes: Rows | list[int], pods: list[int], needed_rows: RowArray | None, size: int
    ) -> tuple[RowArray, bool]:
        """(the rows to evaluate of `needed_rows`, None: of all; whether a node changed). Leaves the others of those
        that changed now: by their node (`nodes`) or their pods (`pods`). `size`: of the table."""
        if len(self._changed) < size:
            self._changed = np.concatenate((self._changed, np.zeros(size - len(self._changed), np.int8)))
        self._changed[pods] |= self.PODS
        self._changed[nodes] = self.NODE
        changed = self._changed[:size] if needed_rows is None else self._changed[needed_rows]
        left = np.flatnonzero(changed)
        rows = left if needed_rows is None else needed_rows[left]
        nodes_changed = bool((changed >= self.NODE).any())
        if needed_rows is None:
            self.clear()
        else:
            self._changed[rows] = self.CURRENT
        return rows, nodes_changed

    def clear(self) -> None:
        self._changed = np.empty(0, np.int8)
