"""The last minutes of every container's symptoms, at low resolution, and the changes of its states. Bounded.

A ring of `POINTS` steps of `STEP` seconds, float32 by container, resource and cause: 2 MB for 256 containers. Each
step keeps the largest value, so that nothing worth seeing is averaged away. The last `CHANGES` changes of a container
are kept as long as the container is, packed, for hardly anybody asks: as objects they are 3 KB each, with all who were
named, and so 8 MB for 220 containers in a storm; packed a quarter of that.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordlet.interference.model import CAUSES, RESOURCES, Change, Floats
from koordlet.statesinformer.pods.model import Subject

STEP = 5.0
POINTS = 180
CHANGES = 12
_FASTEST = 1
_unpacked = msgspec.msgpack.Decoder(Change)


class History:
    """`note` once a step; `series` and `changes` when somebody asks."""

    def __init__(self, step: float = STEP, points: int = POINTS) -> None:
        self.step = step
        self._points = points
        self._row_of: dict[str, int] = {}
        self._subjects: tuple[Subject, ...] = ()
        self._rows: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._ring = np.full((0, points, len(RESOURCES), len(CAUSES)), np.nan, dtype=np.float32)
        self._slot: int | None = None
        self._changes: dict[str, deque[bytes]] = {}

    @property
    def bytes(self) -> int:
        """Memory of the ring."""
        return self._ring.nbytes

    def note(self, subjects: tuple[Subject, ...], symptoms: Floats, changes: tuple[Change, ...], now: float) -> None:
        """Take `symptoms[container, resource, cause]` of this moment."""
        self._seat(subjects)
        slot = int(now // self.step)
        if self._slot is None or slot - self._slot >= self._points:
            self._ring[...] = np.nan
        else:
            for passed in range(self._slot + 1, slot + 1):
                self._ring[:, passed % self._points] = np.nan
        self._slot = slot
        at = slot % self._points
        self._ring[self._rows, at] = np.fmax(self._ring[self._rows, at], symptoms.astype(np.float32))
        for change in changes:
            self._changes.setdefault(change.verdict.victim.key, deque(maxlen=CHANGES)).append(_packed(change))

    def series(self, key: str) -> Floats:
        """[points, resources, causes] of a container, oldest first; NaN where nothing is known."""
        row = self._row_of.get(key)
        if row is None or self._slot is None:
            return np.full((0, len(RESOURCES), len(CAUSES)), np.nan)
        order = (np.arange(self._slot + 1, self._slot + 1 + self._points)) % self._points
        found: Floats = self._ring[row, order].astype(np.float64)
        return found

    def changes(self, key: str) -> tuple[Change, ...]:
        """Changes of a container's states, oldest first; culprits by name, without their subjects."""
        return tuple(_unpacked.decode(zlib.decompress(one)) for one in self._changes.get(key, ()))

    def _seat(self, subjects: tuple[Subject, ...]) -> None:
        if subjects is self._subjects:
            return
        keys = [subject.key for subject in subjects]
        gone = self._row_of.keys() - set(keys)
        for key in gone:
            del self._row_of[key]
            self._changes.pop(key, None)
        fresh = [key for key in keys if key not in self._row_of]
        used = set(self._row_of.values())
        free = sorted(set(range(len(self._ring))) - used, reverse=True)
        if len(fresh) > len(free):
            rows = len(self._ring) + max(len(fresh) - len(free), 32)
            ring = np.full((rows, *self._ring.shape[1:]), np.nan, dtype=np.float32)
            ring[: len(self._ring)] = self._ring
            free = sorted(set(range(rows)) - used, reverse=True)
            self._ring = ring
        for key in fresh:
            row = self._row_of[key] = free.pop()
            self._ring[row] = np.nan
        self._subjects = subjects
        self._rows = np.array([self._row_of[key] for key in keys], dtype=np.intp)


def _packed(change: Change) -> bytes:
    """Culprits keep their names only."""
    culprits = tuple(replace(one, owner=replace(one.owner, subject=None)) for one in change.verdict.culprits)
    told = replace(change, verdict=msgspec.structs.replace(change.verdict, culprits=culprits))
    return zlib.compress(msgspec.msgpack.encode(told), _FASTEST)
