"""The slots of a probe's tables and their owners: the reading side of ``bpf/slots.h``.

The kernel assigns a slot to a cgroup at first sight. User space frees it once the cgroup was missing from two listings:
only then can nothing be charged to it any more. Every probe with a ``tags`` map has a `SlotTable`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from koordlet.probes import layouts
from koordlet.probes.columns import Ints

TAG = np.dtype("u8")
SPECIALS = layouts.SPECIAL_SLOT["SPECIALS"]
SPECIAL_NAMES = tuple(name.removeprefix("SLOT_").lower() for name in layouts.SPECIAL_SLOT if name != "SPECIALS")
"""By ``enum special_slot``. *overflow*: a cgroup that got no slot; *older*: the wait began before the remembered
slices; *moved*: the task waited on another CPU first, and its move was missed."""


def special_key(index: int) -> int:
    """The number that stands for a special slot where a cgroup id could stand: -1, -2, …"""
    return -1 - index


SPECIAL_KEYS = {name: special_key(index) for index, name in enumerate(SPECIAL_NAMES)}
_ALL_SPECIAL_KEYS = np.array([special_key(index) for index in range(SPECIALS)], dtype=np.int64)


def key_name(key: int) -> str | None:
    """The name of a special key, None for a cgroup id."""
    return SPECIAL_NAMES[-1 - key] if -len(SPECIAL_NAMES) <= key < 0 else None


class SlotTable:
    """`tags` is the mapped table: cgroup id by slot, 0 = free."""

    def __init__(self, tags: npt.NDArray[np.uint64]) -> None:
        self.tags = tags
        self._suspects: frozenset[int] = frozenset()

    def keys(self) -> Ints:
        """Slot -> key, special slots behind those of the cgroups; 0 = free."""
        return np.concatenate([self.tags.astype(np.int64), _ALL_SPECIAL_KEYS])

    def dead(self, live: Collection[int]) -> npt.NDArray[np.intp]:
        """Slots whose cgroup is not in `live` now and was not at the previous call.

        List the cgroups *after* reading the snapshot that is kept. A cgroup made since then is only suspected, and
        cleared at the next call. Zero the rows of the returned slots, then `free` them.
        """
        tags = self.tags.tolist()
        missing = {tag for tag in tags if tag} - set(live)
        certain = missing & self._suspects
        self._suspects = frozenset(missing - certain)
        # Not `np.isin`: with many values it imports what `columns.distinct` avoids.
        return np.flatnonzero([tag in certain for tag in tags])

    def free(self, slots: npt.NDArray[np.intp]) -> None:
        """The kernel may assign these slots again."""
        self.tags[slots] = 0
