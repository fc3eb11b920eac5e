"""A priority queue of pods from which any element can be removed.

Removed entries stay in the heap, marked as empty, until they reach the head or outnumber the live entries.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Any

from control.scheduler.queue.record import QueuedPod, QueuePlace

_MAX_EXTRA_ENTRIES = 64
"""The heap is rebuilt when more than half of its entries, and this number more, are empty."""


class Lane:
    """Pods ordered by the key passed to `put`; pods with equal keys in the order of insertion."""

    def __init__(self, place: QueuePlace) -> None:
        self.place = place
        self._heap: list[list[Any]] = []
        self._live = 0
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return self._live

    def __iter__(self) -> Iterator[QueuedPod]:
        """In no particular order."""
        return (entry[2] for entry in self._heap if entry[2] is not None)

    def put(self, record: QueuedPod, key: Any) -> None:
        entry = [key, next(self._sequence), record]
        record.entry = entry
        record.place = self.place
        heapq.heappush(self._heap, entry)
        self._live += 1

    def remove(self, record: QueuedPod) -> None:
        """Remove a record that is in this lane."""
        record.entry[2] = None
        record.entry = []
        record.place = QueuePlace.OUT
        self._live -= 1
        if len(self._heap) > 2 * self._live + _MAX_EXTRA_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[2] is not None]
            heapq.heapify(self._heap)

    def head(self) -> QueuedPod | None:
        """The first record, which stays in the lane."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def pop(self) -> QueuedPod | None:
        """Remove and return the first record."""
        record = self.head()
        if record is not None:
            heapq.heappop(self._heap)
            record.entry = []
            record.place = QueuePlace.OUT
            self._live -= 1
        return record
