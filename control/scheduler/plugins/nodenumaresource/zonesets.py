"""NUMA hints of many nodes at once: which sets of zones can serve a pod (spec 06 §2.6).

The rules are those of `control.numa.hints`: a set serves the pod if the rooms of its zones suffice for every published
resource, and it is a hint for a resource if each of its zones has some of it. With one provider of hints all resources
must agree on a set, so Restricted and SingleNUMANode admit a node if one set is a hint for all of them and does not
violate exclusivity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from control.numa.hints import REQUIRED, subsets
from control.numa.holdings import SHARED, SINGLE
from control.numa.masks import numbers_of
from control.scheduler.plugins.nodenumaresource.book import STATUS_CODES
from control.scheduler.plugins.nodenumaresource.columns import FULL, UNPUBLISHED, NumaColumns
from control.scheduler.plugins.nodenumaresource.needs import NumaNeed
from control.scheduler.state.columns import IntArray, Mask, RowArray


class ZoneSets:
    """The sets of zones of some rows. Arrays over rows have the order of `rows`."""

    def __init__(
        self, columns: NumaColumns, need: NumaNeed, rows: RowArray, bind: Mask, kind: IntArray, policy: IntArray
    ) -> None:
        """`bind`, `kind`, `policy` [row]: whether the pod gets CPUs of its own, the index in `zone_cpus` of those that
        it can get, and its bind policy if that is required, else 0."""
        self.rows = rows
        self.count = int(columns.zones.data[rows].max(initial=0))
        self._columns = columns
        at = np.arange(self.count)[:, None]
        self.exists: Mask = at < columns.zones.data[rows]
        """[zone, row]"""
        self.resources = [name for name in need.amounts if name in columns.resources]
        self._amounts = [need.amounts[name] for name in self.resources]
        self.room: list[IntArray] = []
        """By resource: [zone, row]"""
        self.published: list[Mask] = []
        """By resource: [row]"""
        for name in self.resources:
            index = columns.resources[name]
            total = columns.zone_total.data[: self.count, index, rows]
            available = np.where(total == UNPUBLISHED, 0, columns.zone_available.data[: self.count, index, rows])
            if name == "cpu" and bind.any():
                free = columns.zone_cpus.data[at, kind, rows]
                cpus = np.minimum(available // 1000, free)
                unit = np.where(policy == FULL, np.maximum(columns.cpus_per_core.data[rows], 1), 1)
                available = np.where(bind, 1000 * (cpus - cpus % unit), available)
            self.room.append(available)
            self.published.append((total != UNPUBLISHED).any(axis=0))
        self._status = columns.zone_status.data[: self.count, rows]
        self._exclusive = need.single_exclusive == REQUIRED

    def sets(self, *, single: bool) -> Sequence[int]:
        """The sets of positions to evaluate, smaller ones and lower bits first."""
        every = subsets(self.count) if self.count else ()
        return sorted(
            (zones for zones in every if not single or zones.bit_count() == 1), key=lambda s: (s.bit_count(), s)
        )

    def served(self, chosen: int) -> Mask:
        """[row]: the rooms of the zones suffice."""
        zones = list(numbers_of(chosen))
        ok: Mask = np.all(self.exists[zones], axis=0)
        for amount, room, published in zip(self._amounts, self.room, self.published, strict=True):
            ok = ok & (~published | (room[zones].sum(axis=0) >= amount))
        return ok

    def hint(self, chosen: int, resource: int, served: Mask) -> Mask:
        """[row]: the set is a hint for a resource (an index of `resources`)."""
        mask: Mask = served & self.published[resource]
        for zone in numbers_of(chosen):
            mask &= self.room[resource][zone] > 0
        return mask

    def agreed(self, chosen: int) -> Mask:
        """[row]: the set is a hint for every published resource, and exclusivity allows it."""
        served = self.served(chosen)
        ok = served.copy()
        for resource, published in enumerate(self.published):
            if published.any():
                ok &= ~published | self.hint(chosen, resource, served)
        return ok & ~self.violated(chosen)

    def violated(self, chosen: int) -> Mask:
        """[row]: see `control.numa.hints.violates_exclusivity`."""
        zones = list(numbers_of(chosen))
        if not self._exclusive or not zones:
            return np.zeros(len(self.rows), np.bool_)
        unwanted = STATUS_CODES[SHARED if len(zones) == 1 else SINGLE]
        violated: Mask = (self._status[zones] == unwanted).any(axis=0)
        return violated

    @property
    def indifferent(self) -> Mask:
        """[row]: no zone publishes any requested resource."""
        caring = np.zeros(len(self.rows), np.bool_)
        for published in self.published:
            caring |= published
        return ~caring

    def everything(self) -> IntArray:
        """[row]: the set of all zones of the node."""
        everything: IntArray = (1 << self.exists.sum(axis=0).astype(np.int64)) - 1
        return everything
