"""Numbers with a panel's unit, as Grafana names it."""

from __future__ import annotations

import math

_SHORT = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_TIME = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SI = (*_SHORT, (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_PER_SECOND = {"cps": "c/s", "reqps": "req/s", "pps": "p/s"}
SI = "si:"
"""A unit that takes prefixes."""


def digits(value: float) -> str:
    """Three significant digits, without trailing zeros."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def formatted(value: float, unit: str) -> str:
    """Raises ValueError for a unit that no dashboard uses."""
    match unit:
        case "none":
            return digits(value)
        case "short":
            return _scaled(value, _SHORT, "")
        case "percent":
            return f"{digits(value)}%"
        case "percentunit":
            return f"{digits(value * 100)}%"
        case "bytes":
            return _scaled(value, _BINARY, "B")
        case "Bps":
            return f"{_scaled(value, _DECIMAL, 'B')}/s"
        case "s":
            return _scaled(value, _TIME, "s")
        case "ms":
            return _scaled(value / 1000, _TIME, "s")
        case "cps" | "reqps" | "pps":
            return f"{digits(value)} {_PER_SECOND[unit]}"
    if unit.startswith(SI):
        base = unit.removeprefix(SI)
        prefixed = _scaled(value, tuple((factor, name + base) for factor, name in _SI), base)
        return "0" if value == 0 else prefixed
    raise ValueError(f"unknown unit {unit!r}")


def _scaled(value: float, factors: tuple[tuple[float, str], ...], base: str) -> str:
    """By the largest factor that is not above the value."""
    for factor, name in factors:
        if abs(value) >= factor:
            return f"{digits(value / factor)} {name}"
    return f"{digits(value)} {base}".rstrip()


def ticks(largest: float, unit: str, count: int = 4) -> list[float]:
    """About `count` round values from 0 to at least `largest`, which is above 0."""
    base = 1024.0 if unit == "bytes" else 10.0
    rough = largest / count
    power = base ** math.floor(math.log(rough, base))
    steps = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if unit == "bytes" else (1, 2, 2.5, 5, 10)
    step = next(named * power for named in steps if named * power >= rough * 0.999)
    return [number * step for number in range(math.ceil(largest / step * 0.999) + 1)]
