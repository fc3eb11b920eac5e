"""Rows of a probe's snapshot by key."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from koordlet.probes.columns import Ints


class Keyed(Protocol):
    """A snapshot whose row i belongs to the i-th of its sorted keys."""

    @property
    def keys(self) -> Ints: ...


def row_of(snapshot: Keyed, key: int) -> int | None:
    """The index of `key`, None if the snapshot has no such row."""
    index = int(np.searchsorted(snapshot.keys, key))
    return index if index < len(snapshot.keys) and snapshot.keys[index] == key else None
