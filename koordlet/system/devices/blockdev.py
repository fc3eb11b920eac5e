"""Numbers and names of block devices."""

from __future__ import annotations

from pathlib import Path

MINOR_BITS = 20


def device_number(name: str) -> int:
    """The kernel's internal number (dev_t) of ``major:minor``."""
    major, _, minor = name.partition(":")
    return int(major) << MINOR_BITS | int(minor)


def device_name(number: int) -> str:
    """``major:minor``; ``-`` for a negative number."""
    return f"{number >> MINOR_BITS}:{number & (1 << MINOR_BITS) - 1}" if number >= 0 else "-"


def disk_name(sys: Path, number: int) -> str:
    """``vda``; ``major:minor`` of a device that is gone."""
    link = sys / "dev/block" / device_name(number)
    return link.resolve().name if link.exists() else device_name(number)
