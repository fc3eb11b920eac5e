"""The periodic task of a collector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollectorTask:
    """`collect` runs every `interval_s` seconds."""

    name: str
    interval_s: float
    collect: Callable[[], object]
    """One round; may return an awaitable."""
