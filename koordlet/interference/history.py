"""The last minutes of every container's symptoms at low resolution, and the changes of its alarms. Bounded.

A ring of `POINTS` steps of `STEP_SECONDS`, float32 per container, resource and cause: 2 MB for 256 containers. Each
step keeps the largest value, so that short peaks are not averaged away. The last `MAX_CHANGES` changes of a container
are kept as long as the container exists. They are stored compressed, as they are rarely read: as objects, with all
culprits, they take 3 KB each, so 8 MB for 220 containers with many alarms; compressed, a quarter of that.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordlet.interference.model import CAUSES, RESOURCES, Floats, StateChange
from koordlet.statesinformer.pods.model import Subject

STEP_SECONDS = 5.0
POINTS = 180
MAX_CHANGES = 12
_FASTEST_COMPRESSION = 1
_FIRST_ROWS = 32
_decoder = msgspec.msgpack.Decoder(StateChange)


class History:
    """`record` once per evaluation; `series` and `changes` on request."""

    def __init__(self, step: float = STEP_SECONDS, points: int = POINTS) -> None:
        self.step = step
        self._points = points
        self._row_of: dict[str, int] = {}
        self._subjects: tuple[Subject, ...] = ()
        self._rows: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._ring = np.full((0, points, len(RESOURCES), len(CAUSES)), np.nan, dtype=np.float32)
        self._slot: int | None = None
        self._changes: dict[str, deque[bytes]] = {}

    def record(
        self, subjects: tuple[Subject, ...], symptoms: Floats, changes: tuple[StateChange, ...], now: float
    ) -> None:
        """Add `symptoms[container, resource, cause]` of this moment."""
        self._assign_rows(subjects)
        slot = int(now // self.step)
        if self._slot is None or slot - self._slot >= self._points:
            self._ring[...] = np.nan
        else:
            for passed in range(self._slot + 1, slot + 1):
                self._ring[:, passed % self._points] = np.nan
        self._slot = slot
        column = slot % self._points
        self._ring[self._rows, column] = np.fmax(self._ring[self._rows, column], symptoms.astype(np.float32))
        for change in changes:
            self._changes.setdefault(change.verdict.victim.key, deque(maxlen=MAX_CHANGES)).append(_compressed(change))

    def series(self, key: str) -> Floats:
        """[points, resources, causes] of a container, oldest first; NaN where nothing is known."""
        row = self._row_of.get(key)
        if row is None or self._slot is None:
            return np.full((0, len(RESOURCES), len(CAUSES)), np.nan)
        order = (np.arange(self._slot + 1, self._slot + 1 + self._points)) % self._points
        series: Floats = self._ring[row, order].astype(np.float64)
        return series

    def changes(self, key: str) -> tuple[StateChange, ...]:
        """State changes of a container, oldest first; culprits by name, without their subjects."""
        return tuple(_decoder.decode(zlib.decompress(change)) for change in self._changes.get(key, ()))

    def _assign_rows(self, subjects: tuple[Subject, ...]) -> None:
        if subjects is self._subjects:
            return
        keys = [subject.key for subject in subjects]
        for key in self._row_of.keys() - set(keys):
            del self._row_of[key]
            self._changes.pop(key, None)
        new_keys = [key for key in keys if key not in self._row_of]
        used = set(self._row_of.values())
        free = sorted(set(range(len(self._ring))) - used, reverse=True)
        if len(new_keys) > len(free):
            rows = len(self._ring) + max(len(new_keys) - len(free), _FIRST_ROWS)
            ring = np.full((rows, *self._ring.shape[1:]), np.nan, dtype=np.float32)
            ring[: len(self._ring)] = self._ring
            free = sorted(set(range(rows)) - used, reverse=True)
            self._ring = ring
        for key in new_keys:
            row = self._row_of[key] = free.pop()
            self._ring[row] = np.nan
        self._subjects = subjects
        self._rows = np.array([self._row_of[key] for key in keys], dtype=np.intp)


def _compressed(change: StateChange) -> bytes:
    """With the culprits' names only."""
    culprits = tuple(
        replace(culprit, owner=replace(culprit.owner, subject=None)) for culprit in change.verdict.culprits
    )
    named = replace(change, verdict=msgspec.structs.replace(change.verdict, culprits=culprits))
    return zlib.compress(msgspec.msgpack.encode(named), _FASTEST_COMPRESSION)
