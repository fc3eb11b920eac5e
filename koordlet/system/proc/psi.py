"""Pressure stall information: ``{cpu,memory,io}.pressure`` of a cgroup and ``/proc/pressure/*`` (spec 03 §1.6).

``avg*`` are percent of wall time 0..100, ``total`` is the cumulative stall in microseconds, kept because short bursts
vanish in the averages. Kernels before 5.13 have no ``full`` line for cpu. Source: Documentation/accounting/psi.rst.
"""

from __future__ import annotations

from dataclasses import dataclass

from koordlet.system.errors import MalformedFile

RESOURCES = ("cpu", "memory", "io")


@dataclass(frozen=True, slots=True)
class PressureLine:
    avg10: float
    avg60: float
    avg300: float
    total: int
    """Stalled microseconds since the cgroup was made."""


_NO_PRESSURE = PressureLine(0.0, 0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Pressure:
    """One resource's pressure; without ``full_supported`` the full values are zeros."""

    some: PressureLine
    full: PressureLine
    full_supported: bool


@dataclass(frozen=True, slots=True)
class PressureSet:
    """All three resources of one cgroup; all three files must be readable for it to exist."""

    cpu: Pressure
    memory: Pressure
    io: Pressure


def parse_pressure(text: str, path: str = "pressure") -> Pressure:
    """Raises :class:`MalformedFile` for any other line and for a file without a ``some`` line."""
    lines: dict[str, PressureLine] = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind not in ("some", "full"):
            raise MalformedFile(path, line, "expected 'some' or 'full'")
        lines[kind] = _parse_line(rest, line, path)
    if "some" not in lines:
        raise MalformedFile(path, text, "no 'some' line")
    full = lines.get("full")
    return Pressure(lines["some"], full or _NO_PRESSURE, full is not None)


def _parse_line(rest: str, line: str, path: str) -> PressureLine:
    pairs = dict(field.split("=", 1) for field in rest.split() if "=" in field)
    try:
        return PressureLine(
            avg10=float(pairs["avg10"]),
            avg60=float(pairs["avg60"]),
            avg300=float(pairs["avg300"]),
            total=int(pairs["total"]),
        )
    except (KeyError, ValueError) as error:
        raise MalformedFile(path, line, f"expected avg10= avg60= avg300= total= numbers ({error})") from error
