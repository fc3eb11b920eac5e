"""Names of facts that one module stores and another reads, and their types (spec 02 §4.4).

A reader gives the age that it still believes: a producer that stopped must not speak on.
"""

from __future__ import annotations

from dataclasses import dataclass

FACT_GPU = "GPU"
"""tuple[GpuInfo, ...]"""
FACT_COLD_MEMORY = "cold_memory_started"
"""str, not empty: where the cold-memory collector has its figures from; stored with each round that gave some"""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU; its series carry the labels (str(minor), uuid)."""

    minor: int
    uuid: str
    memory_total: int
    """bytes"""
