"""Go durations (`90s`, `1h30m`, `1.5h`, `-100ms`) to seconds and back, for flags and configuration files."""

from __future__ import annotations

import re

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5 micro sign
    "μs": 1_000,  # U+03BC Greek mu; Go takes both
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_MAX_NS = 2**63 - 1


def parse_duration(text: str) -> float:
    """Seconds of a Go duration; ValueError names the text. A bare number is refused, except `0`, as in Go."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return 0.0
    total_ns, position = 0.0, 0
    for part in _PART.finditer(body):
        if part.start() != position:
            break
        number, unit = part.groups()
        total_ns += (int(number) if number.isdigit() else float(number)) * _UNITS_NS[unit]
        position = part.end()
    if not body or position != len(body):
        hint = f' (did you mean "{text}s"?)' if re.fullmatch(r"\d+(\.\d+)?", body) else ""
        raise ValueError(f'invalid duration "{text}"{hint}')
    if total_ns > _MAX_NS:
        raise ValueError(f'invalid duration "{text}": longer than 290 years')
    return (-total_ns if text[0] == "-" else total_ns) / 1e9


def format_duration(seconds: float) -> str:
    """The text Go prints: `1h30m0s`, `1.5s`, `250ms`, `0s`."""
    ns = round(abs(seconds) * 1e9)
    sign = "-" if seconds < 0 and ns else ""
    if ns < 1_000_000_000:
        for unit in ("ms", "µs", "ns"):
            if ns >= _UNITS_NS[unit]:
                return f"{sign}{_decimal(ns, _UNITS_NS[unit])}{unit}"
        return "0s"
    minutes, rest = divmod(ns, _UNITS_NS["m"])
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, _UNITS_NS['s'])}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else f"{sign}{text}"


def _decimal(amount: int, unit: int) -> str:
    """`amount / unit` as an exact decimal without trailing zeros; `unit` is a power of ten."""
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).zfill(len(str(unit)) - 1).rstrip('0')}"
