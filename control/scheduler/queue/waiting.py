"""Pods that wait for an event, found by the plugin that it would have to convince, and by shape.

Thousands of equal pods may wait, and thousands of events a second may come: an event is held against shapes, and only
pods that it helps are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from control.scheduler.queue.record import Place, Record
from control.scheduler.state.pods import Shape

_Group = dict[str, Record]

ANYTHING = ""
"""Stands for a plugin where none is known: such a pod is woken by any event."""


class Waiting:
    """Records by uid, grouped by (plugin, shape)."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._groups: dict[str, dict[Shape, _Group]] = {}
        self.gated = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def put(self, record: Record) -> None:
        record.place = Place.WAITING
        self._records[record.pod.uid] = record
        self.gated += bool(record.gated_by)
        for plugin in record.wakers or (ANYTHING,):
            self._groups.setdefault(plugin, {}).setdefault(record.pod.shape, {})[record.pod.uid] = record

    def remove(self, record: Record) -> None:
        uid, shape = record.pod.uid, record.pod.shape
        del self._records[uid]
        self.gated -= bool(record.gated_by)
        for plugin in record.wakers or (ANYTHING,):
            shapes = self._groups[plugin]
            group = shapes[shape]
            del group[uid]
            if not group:
                del shapes[shape]
                if not shapes:
                    del self._groups[plugin]
        record.place = Place.OUT

    def plugins(self) -> Iterable[str]:
        """Plugins that pods wait for; `ANYTHING` among them for pods that no plugin rejected."""
        return tuple(self._groups)

    def groups(self, plugin: str) -> list[_Group]:
        """The pods that wait for a plugin, those of one shape together. The groups are live."""
        return list(self._groups.get(plugin, {}).values())

    def counts(self) -> dict[tuple[str, str], int]:
        """(plugin, profile) -> pods that wait for it, gated ones not counted."""
        found: dict[tuple[str, str], int] = {}
        for record in self._records.values():
            if not record.gated_by:
                for plugin in record.rejected_by:
                    key = (plugin, record.pod.shape.scheduler)
                    found[key] = found.get(key, 0) + 1
        return found
