"""Rows of reservations by configured labels, for pods that select reservations by label (spec 06 §4.12).

Only a pre-filter, for the first pod of a shape: the rows that it leaves are compared as usual. It is brought up to date
from the book's log when it is queried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np

from control.scheduler.config.args import ReservationSelectorIndex
from control.scheduler.plugins.reservation.book import ReservationBook
from koordlet.app.metrics import MetricSet, counter, histogram

Bucket = tuple[str, str | None]
"""(key, value) of a configured key, (prefix, None) of a configured prefix."""
HIT: Final = "hit"
MISS: Final = "miss"


class SelectorIndexMetrics(MetricSet):
    """Queries of pods with a reservationSelector."""

    queries = counter(
        "scheduler_reservation_selector_index_query_total", "Queries of the index of reservation labels.", "result"
    )
    candidates = histogram(
        "scheduler_reservation_selector_index_candidates_count",
        "Nodes that the index of reservation labels left, if any.",
        buckets=[2.0**step for step in range(16)],
    )


class LabelIndex:
    """The index of one profile."""

    def __init__(
        self,
        settings: ReservationSelectorIndex,
        book: ReservationBook,
        *,
        node_labels: bool,
        metrics: SelectorIndexMetrics | None = None,
    ) -> None:
        """`node_labels`: whether a reservation has the labels of its node, too."""
        self.enabled = settings.enabled
        self.prefixes = _cleaned(settings.key_prefixes)
        self.keys = _cleaned(settings.keys)
        self._exact = frozenset(self.keys)
        self._book = book
        self._node_labels = node_labels
        self._metrics = metrics
        self._position = -1
        self._buckets: dict[Bucket, dict[int, list[str]]] = {}
        """Bucket -> row -> uids."""
        self._of_row: dict[int, set[Bucket]] = {}

    def rows(self, selector: Mapping[str, str]) -> Collection[int] | None:
        """The only rows whose reservations the selector may match; None: the index knows none of its keys."""
        if not self.enabled or not selector:
            return None
        self._catch_up()
        known = [(key, value, bucket) for key, value in selector.items() if (bucket := self._bucket(key, value))]
        if self._metrics is not None:
            self._metrics.queries.labels(HIT if known else MISS).inc()
        if not known:
            return None
        smallest = min((self._candidates(key, value, bucket) for key, value, bucket in known), key=len)
        if smallest and self._metrics is not None:
            self._metrics.candidates.observe(len(smallest))
        return smallest

    def page(self, *, detail: bool) -> dict[str, Any]:
        """The page reservationSelectorIndex."""
        self._catch_up()
        by_prefix = {prefix: self._summary([(prefix, None)], detail) for prefix in self.prefixes}
        values: dict[str, list[str]] = {key: [] for key in self.keys}
        for key, value in self._buckets:
            if value is not None:
                values[key].append(value)
        indexed = {uid for rows in self._buckets.values() for uids in rows.values() for uid in uids}
        page: dict[str, Any] = {
            "enabled": self.enabled,
            "prefixes": list(self.prefixes),
            "keys": list(self.keys),
            "indexedReservations": len(indexed),
            "byPrefix": by_prefix,
            "byKey": {key: self._summary([(key, value) for value in values[key]], detail) for key in self.keys},
        }
        if detail:
            page["byKeyValue"] = {
                key: {value: self._summary([(key, value)], detail) for value in sorted(values[key])}
                for key in self.keys
            }
        return page

    def _summary(self, buckets: Collection[Bucket], detail: bool) -> dict[str, Any]:
        names = self._book.table.names
        by_node: dict[str, list[str]] = {}
        for bucket in buckets:
            for row, uids in self._buckets.get(bucket, {}).items():
                by_node.setdefault(names[row], []).extend(uids)
        counts = {"nodes": len(by_node), "reservations": sum(map(len, by_node.values()))}
        return (
            {**counts, "byNode": {node: sorted(uids) for node, uids in sorted(by_node.items())}} if detail else counts
        )

    def _bucket(self, key: str, value: str) -> Bucket | None:
        if key in self._exact:
            return (key, value)
        prefix = next((prefix for prefix in self.prefixes if key.startswith(prefix)), None)
        return None if prefix is None else (prefix, None)

    def _candidates(self, key: str, value: str, bucket: Bucket) -> Collection[int]:
        rows = self._buckets.get(bucket, {}).keys()
        if not self._node_labels:
            return rows
        table = self._book.table
        named = table.labels.column(key).select(table.all, lambda known: known == value)
        return rows | set(np.flatnonzero(named).tolist()) if named.any() else rows

    def _catch_up(self) -> None:
        log, by_row = self._book.log, self._book.by_row
        if self._position == log.end:
            return
        changed = log.since(self._position) if self._position >= 0 else None
        self._position = log.end
        if changed is None:
            self._buckets.clear()
            self._of_row.clear()
        for row in set(by_row if changed is None else changed):
            self._put(row)

    def _put(self, row: int) -> None:
        for bucket in self._of_row.pop(row, ()):
            rows = self._buckets[bucket]
            del rows[row]
            if not rows:
                del self._buckets[bucket]
        for room in self._book.by_row.get(row, {}).values():
            labels = (room.model.labels if room.model is not None else None) or {}
            for bucket in set(self._of(labels)):
                self._buckets.setdefault(bucket, {}).setdefault(row, []).append(room.uid)
                self._of_row.setdefault(row, set()).add(bucket)

    def _of(self, labels: Mapping[str, str]) -> Iterator[Bucket]:
        for key, value in labels.items():
            if key in self._exact:
                yield (key, value)
            yield from ((prefix, None) for prefix in self.prefixes if key.startswith(prefix))


def _cleaned(entries: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.strip() for entry in entries if entry.strip()))
