"""Who owns which row of a probe's tables: the reading side of ``bpf/slots.h``.

The kernel gives a cgroup a slot at first sight; user space takes it back once the cgroup has been found dead twice,
because only then nobody can still be charged for it. Every probe with a ``tags`` map has one of these.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from koordlet.probes.loading.mapped import Ints
from koordlet.probes.schedlatency import layout

_SPECIAL_KEYS = np.array([layout.special_key(i) for i in range(layout.SPECIALS)], dtype=np.int64)


class Slots:
    """*tags* is the mapped table, cgroup ids by slot."""

    def __init__(self, tags: npt.NDArray[np.uint64]) -> None:
        self._tags = tags
        self._suspects: frozenset[int] = frozenset()

    def keys(self) -> Ints:
        """Slot -> key, special slots behind the cgroups'; 0 = free."""
        return np.concatenate([self._tags.astype(np.int64), _SPECIAL_KEYS])

    def used(self) -> int:
        return int(np.count_nonzero(self._tags))

    def dead(self, live: Collection[int]) -> Ints:
        """Slots of cgroups that are not in *live* now and were not at the last call.

        The caller lists the cgroups *after* taking the snapshot it keeps. A group made since then is only suspected,
        and forgiven at the next call. Zero the rows of these slots, then `free` them.
        """
        tags = self._tags.tolist()
        dead = {tag for tag in tags if tag} - set(live)
        certain = dead & self._suspects
        self._suspects = frozenset(dead - certain)
        return np.flatnonzero([tag in certain for tag in tags])  # `isin` of many loads what `rows.distinct` avoids

    def free(self, slots: Ints) -> None:
        self._tags[slots] = 0
