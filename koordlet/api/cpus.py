"""CPU lists in the protocol's format: `0-3,8,10-11`, sorted, ranges collapsed, empty for none (spec 01 §2). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MAX_CPU: Final = 1 << 16
"""CPU numbers from this one are refused: a typing error must not create a set with a billion elements."""

_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)


class CPUListError(ValueError):
    """A text is not a CPU list; the message quotes it."""


def parse_cpus(text: str) -> frozenset[int]:
    """The CPUs of a list. Raises CPUListError."""
    cpus: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise CPUListError(f"{text!r} is not a CPU list")
        low = int(match[1])
        high = int(match[2]) if match[2] else low
        if low > high or high >= MAX_CPU:
            raise CPUListError(f"{text!r} is not a CPU list: range {part.strip()}")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """The canonical text of a set of CPUs."""
    parts: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1] = parts[-1][0], cpu
        else:
            parts.append((cpu, cpu))
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in parts)
