"""Maps cgroup ids to the rows of the evidence's arrays. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koordlet.interference.model import Floats
from koordlet.probes.culprits.lookup import KeyLookup

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
        return self._lookup.numbers_of(keys)

    def sum(self, rows: NDArray[np.intp], values: Ints) -> Floats:
        """Sums by row, [count]; rows of -1 are skipped."""
        known = rows >= 0
        sums = np.bincount(rows[known], weights=values[known].astype(np.float64), minlength=self.count)
        return sums.astype(np.float64)

    @cached_property
    def _lookup(self) -> KeyLookup:
        return KeyLookup(self.keys, self.rows)
