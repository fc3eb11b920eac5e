"""An ordered container of records: a heap from which anything can be removed.

Removed entries stay in the heap, emptied, until they come up or outnumber the rest.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Any

from control.scheduler.queue.record import Place, Record

_SLACK = 64


class Lane:
    """Records by a key given when they are put in; equal keys in the order of putting."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._heap: list[list[Any]] = []
        self._live = 0
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return self._live

    def __iter__(self) -> Iterator[Record]:
        """In no particular order."""
        return (entry[2] for entry in self._heap if entry[2] is not None)

    def put(self, record: Record, key: Any) -> None:
        entry = [key, next(self._sequence), record]
        record.entry = entry
        record.place = self.place
        heapq.heappush(self._heap, entry)
        self._live += 1

    def remove(self, record: Record) -> None:
        """Take a record out that is in this lane."""
        record.entry[2] = None
        record.entry = []
        record.place = Place.OUT
        self._live -= 1
        if len(self._heap) > 2 * self._live + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2] is not None]
            heapq.heapify(self._heap)

    def head(self) -> Record | None:
        """The first record, left in."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def head_key(self) -> Any:
        """Key of the first record; None when empty."""
        return None if self.head() is None else self._heap[0][0]

    def pop(self) -> Record | None:
        """The first record, taken out."""
        record = self.head()
        if record is not None:
            heapq.heappop(self._heap)
            record.entry = []
            record.place = Place.OUT
            self._live -= 1
        return record
