"""Facts about the node that are not series (CPU layout, NUMA nodes, disks, device lists), with their age.

A stopped producer leaves its last value behind; the time stamp lets a reader reject it when it is too old (spec 02
§4.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Stamped:
    """A value and the time when it was stored (seconds of CLOCK_BOOTTIME)."""

    value: Any
    at: float


class KeyValue:
    """The latest value by key."""

    def __init__(self) -> None:
        self._values: dict[str, Stamped] = {}

    def set(self, key: str, value: Any, at: float) -> None:
        """Replace the value of `key`."""
        self._values[key] = Stamped(value, at)

    def get(self, key: str, *, newer_than: float | None = None) -> Any | None:
        """The value, or None if there is none or it was stored before `newer_than`."""
        stamped = self._values.get(key)
        if stamped is None or (newer_than is not None and stamped.at < newer_than):
            return None
        return stamped.value
