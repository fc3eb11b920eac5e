"""Formats figures for people. Pure; an absent figure (None) is always `-`."""

from __future__ import annotations

from math import isfinite

ABSENT = "-"
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi")


def cores(value: float | None) -> str:
    """CPU as kubectl prints it: `0m`, `250m`, from 10 cores on `12.5`."""
    if value is None or not isfinite(value):
        return ABSENT
    return f"{round(value * 1000)}m" if value < 9.9995 else f"{value:.1f}"


def size(value: float | None) -> str:
    """Bytes with a binary suffix and at most three digits before it: `512`, `1.5Ki`, `640Mi`."""
    if value is None or not isfinite(value):
        return ABSENT
    if value < 1024:
        return f"{value:.0f}"
    for suffix in _BINARY:
        value /= 1024
        if value < 1023.5 or suffix == _BINARY[-1]:
            return f"{value:.0f}{suffix}" if value >= 99.95 else f"{value:.1f}".removesuffix(".0") + suffix
    raise AssertionError("unreachable")


def seconds(value: float | None) -> str:
    """A latency with about three digits: `850ns`, `12.3µs`, `4.56ms`, `1.20s`."""
    if value is None or not isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    for scale, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms"), (1.0, "s")):
        scaled = value * scale
        if scaled < 999.5 or unit == "s":
            digits = 0 if unit == "ns" or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
            return f"{scaled:.{digits}f}{unit}"
    raise AssertionError("unreachable")


def percent(share: float | None) -> str:
    """A share of 1 as percent: `0`, `<0.1`, `3.4`, `57`, `180`; without the sign, which is in the column head."""
    if share is None or not isfinite(share):
        return ABSENT
    value = share * 100
    if value == 0:
        return "0"
    if value < 0.1:
        return "<0.1"
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0")


def age(value: float | None) -> str:
    """A duration as kubectl prints ages: `12s`, `3m5s`, `45m`, `2h5m`, `3d4h`."""
    if value is None or not isfinite(value):
        return ABSENT
    whole = max(int(value), 0)
    if whole < 120:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{rest}m" if rest and hours < 8 else f"{hours}h"
    days, rest = divmod(hours, 24)
    return f"{days}d{rest}h" if rest and days < 8 else f"{days}d"


def bar(share: float | None, width: int) -> str:
    """`|||||     `: a share of 1 as a bar."""
    filled = 0 if share is None else round(min(max(share, 0.0), 1.0) * width)
    return "|" * filled + " " * (width - filled)
