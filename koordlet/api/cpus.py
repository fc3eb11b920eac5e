"""CPU lists in the protocol's format: `0-3,8,10-11`, sorted, ranges collapsed, empty for none (spec 01 §2). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from koordlet.api.encoding.quoting import quoted

MAX_CPU: Final = 1 << 13
"""CPU numbers from this one are refused; no Linux kernel has more CPUs (NR_CPUS on x86-64)."""
MAX_NAMED_CPUS: Final = 2 * MAX_CPU
"""CPUs that a list may name, repeats included: bounds the time of parsing."""
MAX_RANGES: Final = 1024
"""Ranges of a list: every second of 2048 CPUs."""
MAX_LIST_CHARS: Final = 16 << 10
"""Characters of a list of `MAX_RANGES` ranges."""

_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)


class CPUListError(ValueError):
    """A text is not a CPU list; the message quotes it."""


def parse_cpus(text: str) -> frozenset[int]:
    """The CPUs of a list, in time linear in its length. Raises CPUListError."""
    if len(text) > MAX_LIST_CHARS:
        raise CPUListError(f"{quoted(text)} is not a CPU list: it has more than {MAX_LIST_CHARS} characters")
    if text.count(",") >= MAX_RANGES:
        raise CPUListError(f"{quoted(text)} is not a CPU list: it has more than {MAX_RANGES} ranges")
    cpus: set[int] = set()
    named = 0
    for part in text.split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise CPUListError(f"{quoted(text)} is not a CPU list")
        low = int(match[1])
        high = int(match[2]) if match[2] else low
        if low > high or high >= MAX_CPU:
            raise CPUListError(f"{quoted(text)} is not a CPU list: range {part.strip()}")
        named += high - low + 1
        if named > MAX_NAMED_CPUS:
            raise CPUListError(f"{quoted(text)} is not a CPU list: it names more than {MAX_NAMED_CPUS} CPUs")
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
