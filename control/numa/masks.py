"""Sets of small numbers as bit masks in Python integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from koordlet.api.cpus import format_cpus


def mask_of(numbers: Iterable[int]) -> int:
    """The mask of a set of numbers, each 0 or more."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def numbers_of(mask: int) -> Iterator[int]:
    """The numbers in a mask, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def cpu_list(mask: int) -> str:
    """The CPUs of a mask in the protocol's format, e.g. `0-3,8`."""
    return format_cpus(numbers_of(mask))


def union(masks: Iterable[int]) -> int:
    """The numbers that are in any of the masks."""
    mask = 0
    for other in masks:
        mask |= other
    return mask
