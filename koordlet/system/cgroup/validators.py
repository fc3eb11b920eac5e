"""What a cgroup or node file accepts, checked before anything is written (spec 03 §1.4). Pure.

A validator is data with one method, `check(name, text)`, which raises `InvalidValue` with the resource and the value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from koordlet.system.cpu.cpuset import CPUSet, CPUSetError
from koordlet.system.errors import InvalidValue

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
UINT32_MAX = 2**32 - 1
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class Validator(Protocol):
    def check(self, name: str, text: str) -> None:
        """Raise InvalidValue unless `text` may be written to `name`."""


def parse_int64(text: str) -> int | None:
    """A base-10 int64 without surrounding space, or None."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if INT64_MIN <= number <= INT64_MAX else None


@dataclass(frozen=True, slots=True)
class Range:
    """Base-10 int64 within bounds, both included. `max` counts as 2^63-1; an empty text is invalid."""

    low: int
    high: int

    def check(self, name: str, text: str) -> None:
        number = INT64_MAX if text == "max" else parse_int64(text)
        if number is None:
            raise InvalidValue(name, text, "not a base-10 64-bit integer")
        if not self.low <= number <= self.high:
            raise InvalidValue(name, text, f"outside {self.low}..{self.high}")


@dataclass(frozen=True, slots=True)
class CpuList:
    """A Linux CPU list; the empty list is valid."""

    def check(self, name: str, text: str) -> None:
        try:
            CPUSet.parse(text)
        except CPUSetError as error:
            raise InvalidValue(name, text, str(error)) from error


@dataclass(frozen=True, slots=True)
class BlkioLine:
    """One line per device. In a line with exactly `parts` space-separated parts, the numbers (`N` or `key=N`) after the
    device must be in range. Lines with another number of parts are left to the kernel."""

    parts: int
    low: int
    high: int = INT64_MAX

    def check(self, name: str, text: str) -> None:
        for line in text.split("\n"):
            fields = line.split(" ")
            if len(fields) != self.parts:
                continue
            for field in fields[1:]:
                key, equals, value = field.rpartition("=")
                if key == "ctrl":
                    continue
                number = parse_int64(value if equals else field)
                if number is None or not self.low <= number <= self.high:
                    raise InvalidValue(name, text, f"{field!r} is not a number in {self.low}..{self.high}")


@dataclass(frozen=True, slots=True)
class ClassId:
    """`0x…` or decimal, 0..0xFFFFFFFF."""

    def check(self, name: str, text: str) -> None:
        number = parse_classid(text)
        if number is None:
            raise InvalidValue(name, text, "neither 0x<hex> nor decimal in 0..0xFFFFFFFF")


def parse_classid(text: str) -> int | None:
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,8}", text):
        return int(text, 16)
    number = parse_int64(text)
    return number if number is not None and 0 <= number <= UINT32_MAX else None
