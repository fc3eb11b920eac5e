"""Unschedulable pods that wait for an event, indexed by rejecting plugin and by shape.

There may be thousands of equal pods and thousands of events per second. An event is evaluated per shape, and only the
pods that it helps are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from control.scheduler.queue.record import QueuedPod, QueuePlace
from control.scheduler.state.pods import Shape

_Group = dict[str, QueuedPod]

ANY_PLUGIN = ""
"""The index key of pods without a rejecting plugin. Every event wakes them."""


class UnschedulablePods:
    """Records by uid, grouped by (plugin, shape)."""

    def __init__(self) -> None:
        self._records: dict[str, QueuedPod] = {}
        self._groups: dict[str, dict[Shape, _Group]] = {}
        self.gated = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[QueuedPod]:
        return iter(self._records.values())

    def put(self, record: QueuedPod) -> None:
        record.place = QueuePlace.WAITING
        self._records[record.pod.uid] = record
        self.gated += bool(record.gated_by)
        for plugin in record.wakers or (ANY_PLUGIN,):
            self._groups.setdefault(plugin, {}).setdefault(record.pod.shape, {})[record.pod.uid] = record

    def remove(self, record: QueuedPod) -> None:
        uid, shape = record.pod.uid, record.pod.shape
        del self._records[uid]
        self.gated -= bool(record.gated_by)
        for plugin in record.wakers or (ANY_PLUGIN,):
            shapes = self._groups[plugin]
            group = shapes[shape]
            del group[uid]
            if not group:
                del shapes[shape]
                if not shapes:
                    del self._groups[plugin]
        record.place = QueuePlace.OUT

    def plugins(self) -> Iterable[str]:
        """The plugins that pods wait for; `ANY_PLUGIN` for pods that no plugin rejected."""
        return tuple(self._groups)

    def groups(self, plugin: str) -> list[_Group]:
        """The pods that wait for a plugin, grouped by shape. The groups are live."""
        return list(self._groups.get(plugin, {}).values())

    def counts(self) -> dict[tuple[str, str], int]:
        """(plugin, profile) -> pods that wait for it, without gated pods."""
        counts: dict[tuple[str, str], int] = {}
        for record in self._records.values():
            if not record.gated_by:
                for plugin in record.rejected_by:
                    key = (plugin, record.pod.shape.scheduler)
                    counts[key] = counts.get(key, 0) + 1
        return counts
