"""Pressure stall information: `{cpu,memory,io}.pressure` of a cgroup and `/proc/pressure/*` (spec 03 §1.6). Pure.

The only parser of these files:

    some avg10=1.50 avg60=2.50 avg300=3.50 total=1000
    full avg10=0.50 avg60=0.25 avg300=0.12 total=500

`avg*` are percent of wall time, 0..100. `total` is the cumulative stall in microseconds; it shows short bursts that the
averages smooth away. Kernels before 5.13 have no `full` line for cpu. Source: Documentation/accounting/psi.rst.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from koordlet.system.errors import MalformedFile

RESOURCES = ("cpu", "memory", "io")
FIGURES = tuple(f"{kind}_{value}" for kind in ("some", "full") for value in ("avg10", "avg60", "avg300", "total"))
"""Names of the numbers that `figures` returns."""
_LINE = rb"%b avg10=([0-9.]+) avg60=([0-9.]+) avg300=([0-9.]+) total=([0-9]+)\n?"
_FILE = re.compile(_LINE % b"some" + rb"(?:" + _LINE % b"full" + rb")?")


@dataclass(frozen=True, slots=True)
class PressureLine:
    """One line of a pressure file."""

    avg10: float
    avg60: float
    avg300: float
    total: int
    """Microseconds stalled since the cgroup was created."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """One pressure file; `full` is None where the kernel shows no such line."""

    some: PressureLine
    full: PressureLine | None


def figures(content: bytes) -> list[float]:
    """The numbers of a pressure file, in the order of `FIGURES`; NaN for a missing `full` line.

    Raises ValueError for any other content. For passes over hundreds of cgroups: half the time of `parse_pressure`.
    """
    return [*map(float, _fields(content).groups(math.nan))]


def parse_pressure(text: str, path: str = "pressure") -> Pressure:
    """Raises `MalformedFile` for any other content than one `some` and at most one `full` line."""
    try:
        groups = _fields(text.encode()).groups()
        some = _line(groups[:4])
        return Pressure(some, None if groups[4] is None else _line(groups[4:]))
    except ValueError as error:
        raise MalformedFile(path, text, str(error)) from error


def _fields(content: bytes) -> re.Match[bytes]:
    match = _FILE.fullmatch(content)
    if match is None:
        raise ValueError("not pressure stall information: expected 'some avg10= avg60= avg300= total=' and 'full …'")
    return match


def _line(numbers: tuple[bytes, ...]) -> PressureLine:
    avg10, avg60, avg300, total = numbers
    return PressureLine(float(avg10), float(avg60), float(avg300), int(total))
