"""Clock ticks: the unit of ``/proc/stat`` and ``/proc/<pid>/stat`` (spec 02 §1.7)."""

from __future__ import annotations

import os

FALLBACK_JIFFY_NS = 10_000_000


def ticks_per_second() -> int:
    """USER_HZ; 100 where the C library cannot tell (10 ms a jiffy)."""
    try:
        ticks = os.sysconf("SC_CLK_TCK")
    except (ValueError, OSError):
        ticks = 0
    return ticks if ticks > 0 else 1_000_000_000 // FALLBACK_JIFFY_NS


def jiffy_ns(ticks: int) -> int:
    """Nanoseconds of one tick, integer division."""
    return 1_000_000_000 // ticks if ticks > 0 else FALLBACK_JIFFY_NS


def period_ticks(start_ns: int, end_ns: int, jiffy: int) -> float:
    """How many ticks a wall period has; the divisor that turns delta ticks into cores."""
    return (end_ns - start_ns) / jiffy
