"""Versions of objects in memory: an entry, an event between two entries, a resource's live objects and history.

Only `store` changes these; others read the entries and events that it returns. Nothing here touches the disk.
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
        self.cache: dict[Any, bytes] | None = None  # other encodings of this version, made on demand

    @property
    def obj(self) -> Json:
        """Shared, read only."""
        return self._obj if self._obj is not None else self.copy()

    def drop_decoded(self) -> None:
        """Keep only the bytes, a fifth of the memory: for replaced versions."""
        self._obj = self.cache = None

    def copy(self) -> Json:
        """A private copy. Decoding the bytes is several times faster than `copy.deepcopy`."""
        copied: Json = _decoder.decode(self.raw)
        return copied


class StoreEvent:
    """One write. `entry` is the state after it; for DELETED the last state, with the version of the deletion."""

    __slots__ = ("at", "entry", "prev", "rv", "type")

    def __init__(self, rv: int, type: EventType, entry: Entry, prev: Entry | None, at: float) -> None:
        self.rv = rv
        self.type = type
        self.entry = entry
        self.prev = prev
        self.at = at

    def drop_decoded(self) -> None:
        if self.prev is not None:
            self.prev.drop_decoded()
        if self.type == "DELETED":
            self.entry.drop_decoded()


class ResourceState:
    """The live objects of one resource, their names in order, and the events since compaction."""

    __slots__ = ("dropped_rv", "log", "log_rvs", "objects", "order", "undecoded_rv", "waiters")

    def __init__(self, dropped_rv: int) -> None:
        self.objects: dict[Address, Entry] = {}
        self.order: list[Address] = []  # the keys of `objects`, sorted: lists and pages need an order
        self.log: list[StoreEvent] = []
        self.log_rvs: list[int] = []  # the versions of `log`, for bisection
        self.dropped_rv = dropped_rv  # the newest compacted event; a watcher before it has missed events
        self.undecoded_rv = 0  # up to this version replaced objects are kept as bytes only
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

    def drop_decoded(self, before: float) -> None:
        """Free the dicts of objects that were replaced before `before` (wall-clock seconds)."""
        for event in self.log[bisect_right(self.log_rvs, self.undecoded_rv) :]:
            if event.at >= before:
                break
            event.drop_decoded()
            self.undecoded_rv = event.rv

    def undo(self, event: StoreEvent) -> None:
        address = event.entry.address
        if event.prev is None:
            del self.objects[address]
            del self.order[bisect_right(self.order, address) - 1]
        else:
            if event.type == "DELETED":
                insort(self.order, address)
            self.objects[address] = event.prev
