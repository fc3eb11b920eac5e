"""Versions of objects in memory: an entry, an event between two entries, a resource's live objects and history.

Used by `store` alone to keep state and by readers of what it hands out. Nothing here knows of the disk.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from typing import Any, Literal

import msgspec

Json = dict[str, Any]
Address = tuple[str, str]  # namespace ("" when cluster-scoped), name
EventType = Literal["ADDED", "MODIFIED", "DELETED"]

_decoder = msgspec.json.Decoder()


class Entry:
    """One version of one object: the shared dict, its bytes, and its version."""

    __slots__ = ("_obj", "address", "cache", "raw", "rv")

    def __init__(self, obj: Json, raw: bytes, rv: int, address: Address) -> None:
        self._obj: Json | None = obj
        self.raw = raw
        self.rv = rv
        self.address = address
        self.cache: dict[Any, bytes] | None = None  # other encodings of the same version, made on demand

    @property
    def obj(self) -> Json:
        """Shared, read only."""
        return self._obj if self._obj is not None else self.copy()

    def cool(self) -> None:
        """Keep the bytes alone, a fifth of the memory: for versions that are history."""
        self._obj = self.cache = None

    def copy(self) -> Json:
        """A private copy; decoding the bytes is several times cheaper than deepcopy."""
        copied: Json = _decoder.decode(self.raw)
        return copied


class StoreEvent:
    """What one write did. `entry` is the state after it; for DELETED the last state under the new version."""

    __slots__ = ("at", "entry", "prev", "rv", "type")

    def __init__(self, rv: int, type: EventType, entry: Entry, prev: Entry | None, at: float) -> None:
        self.rv = rv
        self.type = type
        self.entry = entry
        self.prev = prev
        self.at = at

    def cool(self) -> None:
        if self.prev is not None:
            self.prev.cool()
        if self.type == "DELETED":
            self.entry.cool()


class ResourceState:
    """The live objects of one resource, their names in order, and the events since compaction."""

    __slots__ = ("cold", "dropped", "log", "log_rvs", "objects", "order", "waiters")

    def __init__(self, dropped: int) -> None:
        self.objects: dict[Address, Entry] = {}
        self.order: list[Address] = []  # the keys of `objects`, sorted: lists and pages need an order
        self.log: list[StoreEvent] = []
        self.log_rvs: list[int] = []  # the versions of `log`, for bisection
        self.dropped = dropped  # the newest event that was compacted away; who is behind it has missed something
        self.cold = 0  # versions up to this one were cooled
        self.waiters: list[asyncio.Future[bool]] = []

    def apply(self, event: StoreEvent) -> None:
        address = event.entry.address
        if event.type == "DELETED":
            del self.objects[address]
            index = bisect_right(self.order, address) - 1
            del self.order[index]
        else:
            if event.prev is None:
                insort(self.order, address)
            self.objects[address] = event.entry

    def cool(self, before: float) -> None:
        """Let go of the dicts that events older than `before` (wall seconds) replaced."""
        for event in self.log[bisect_right(self.log_rvs, self.cold) :]:
            if event.at >= before:
                break
            event.cool()
            self.cold = event.rv

    def undo(self, event: StoreEvent) -> None:
        address = event.entry.address
        if event.prev is None:
            del self.objects[address]
            del self.order[bisect_right(self.order, address) - 1]
        else:
            if event.type == "DELETED":
                insort(self.order, address)
            self.objects[address] = event.prev
