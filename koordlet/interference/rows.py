"""Maps cgroup ids to the rows of the evidence's arrays. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordlet.interference.model import Floats
from koordlet.probes.loading.mapped import by_last_bits, place_of

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ContainerRows:
    """Cgroup id -> row of the container that it belongs to."""

    keys: Ints
    """Sorted."""
    rows: NDArray[np.intp]
    """Row of each key; -1 for a cgroup that belongs to no container."""
    count: int
    """Number of containers."""

    def of(self, keys: Ints) -> NDArray[np.intp]:
        """Row of each of `keys`; -1 where there is none."""
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.intp)
        table, numbers, collisions = self._table
        slot = place_of(keys)
        rows: NDArray[np.intp] = np.where(table[slot] == keys, numbers[slot], -1)
        for key, row in collisions:
            rows[keys == key] = row
        return rows

    def sum(self, rows: NDArray[np.intp], values: Ints) -> Floats:
        """Sums by row, [count]; rows of -1 are skipped."""
        known = rows >= 0
        sums = np.bincount(rows[known], weights=values[known].astype(np.float64), minlength=self.count)
        return sums.astype(np.float64)

    @cached_property
    def _table(self) -> tuple[Ints, NDArray[np.intp], list[tuple[int, int]]]:
        """Keys and rows indexed by a key's low bits, and the few keys whose slot is taken by another key."""
        table, slots, collisions = by_last_bits(self.keys)
        numbers = np.full(len(table), -1, dtype=np.intp)
        numbers[slots] = self.rows
        return table, numbers, list(zip(self.keys[collisions].tolist(), self.rows[collisions].tolist(), strict=True))
