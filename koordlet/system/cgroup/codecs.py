"""Conversions between koordlet's values (v1 units, integers) and the content of files (spec 03 §1.4). Pure.

All integer divisions truncate. Unlimited is `UNLIMITED` in koordlet, and `max` or `-1` only in files. A codec is a pair
of functions; `registry` assigns codecs to files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from koordlet.system.cgroup.validators import INT64_MAX, parse_classid, parse_int64
from koordlet.system.errors import InvalidValue

UNLIMITED = -1
CFS_PERIOD_US = 100_000
MIN_QUOTA_US = 1_000
SHARES_MIN, SHARES_MAX = 2, 262_144
WEIGHT_MIN, WEIGHT_MAX = 1, 10_000
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
V1_MEMORY_UNLIMITED = INT64_MAX // _PAGE_SIZE * _PAGE_SIZE
"""Content of a v1 limit file without a limit: 0x7FFFFFFFFFFFF000 with 4 KiB pages."""


def milli_to_shares(milli_cpu: int) -> int:
    """CPU request in milli-cores -> `cpu.shares`."""
    if milli_cpu <= 0:
        return SHARES_MIN
    return _clamp(milli_cpu * 1024 // 1000, SHARES_MIN, SHARES_MAX)


def milli_to_quota(milli_cpu: int) -> int:
    """CPU limit in milli-cores -> µs of `cpu.cfs_quota_us` at the default period; no limit -> UNLIMITED."""
    if milli_cpu <= 0:
        return UNLIMITED
    return max(milli_cpu * CFS_PERIOD_US // 1000, MIN_QUOTA_US)


def shares_to_weight(shares: int) -> int:
    if not SHARES_MIN <= shares <= SHARES_MAX:
        raise InvalidValue("cpu.shares", shares, f"outside {SHARES_MIN}..{SHARES_MAX}")
    return _clamp(1 + (shares - 2) * 9999 // 262142, WEIGHT_MIN, WEIGHT_MAX)


def weight_to_shares(weight: int) -> int:
    if not WEIGHT_MIN <= weight <= WEIGHT_MAX:
        raise InvalidValue("cpu.weight", weight, f"outside {WEIGHT_MIN}..{WEIGHT_MAX}")
    return _clamp((weight - 1) * 262142 // 9999 + 2, SHARES_MIN, SHARES_MAX)


def _clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


@dataclass(frozen=True, slots=True)
class Codec:
    """`decode(text)` returns the integer in v1 units. `encode(value, current)` returns the text to write, where
    `current` is the file's content before (only `cpu.max` needs it). Both raise InvalidValue or ValueError on bad
    input."""

    name: str
    decode: Callable[[str], int]
    encode: Callable[[int, str], str]


def decode_integer(text: str) -> int:
    """`max` is UNLIMITED."""
    number = UNLIMITED if text == "max" else parse_int64(text)
    if number is None:
        raise ValueError(f"{text!r} is not an integer")
    return number


def decode_maximum(text: str) -> int:
    """Like `decode_integer` for files whose `max` means the largest value, e.g. `memory.high`."""
    return INT64_MAX if text == "max" else decode_integer(text)


def decode_v1_limit(text: str) -> int:
    """v1 memory limits without a limit hold the largest multiple of the page size."""
    number = decode_integer(text)
    return UNLIMITED if number >= V1_MEMORY_UNLIMITED else number


def parse_cpu_max(text: str) -> tuple[int, int]:
    """(quota, period) in µs; exactly two fields."""
    fields = text.split()
    if len(fields) != 2:
        raise ValueError(f"expected two fields, got {text!r}")
    return decode_integer(fields[0]), decode_integer(fields[1])


def format_cpu_max(quota: int, period: int | None = None) -> str:
    """Text for `cpu.max`; without `period` the kernel keeps the current one."""
    return _or_max(quota) if period is None else f"{_or_max(quota)} {period}"


def _or_max(value: int) -> str:
    return "max" if value == UNLIMITED else str(value)


def _encode_period(period: int, current: str) -> str:
    if period == UNLIMITED:
        return "max"
    quota = parse_cpu_max(current)[0] if current else UNLIMITED
    return format_cpu_max(quota, period)


def _encode_maximum(value: int, current: str) -> str:
    return "max" if value == INT64_MAX else str(value)


def _decode_weight(text: str) -> int:
    """Kernels before 6.2 show the weight of a `cpu.idle` group as 0, which cannot be written: the lowest shares."""
    weight = decode_integer(text)
    return SHARES_MIN if weight == 0 else weight_to_shares(weight)


def _decode_classid(text: str) -> int:
    number = parse_classid(text)
    if number is None:
        raise ValueError(f"{text!r} is not a class id")
    return number


INTEGER = Codec("integer", decode_integer, lambda value, current: str(value))
MAXIMUM = Codec("maximum", decode_maximum, _encode_maximum)
V1_LIMIT = Codec("v1 limit", decode_v1_limit, lambda value, current: str(value))
V2_LIMIT = Codec("v2 limit", decode_integer, lambda value, current: _or_max(value))
WEIGHT = Codec(
    "weight",
    _decode_weight,
    lambda shares, current: str(shares_to_weight(shares)),
)
QUOTA = Codec("cpu.max quota", lambda text: parse_cpu_max(text)[0], lambda quota, current: format_cpu_max(quota))
PERIOD = Codec("cpu.max period", lambda text: parse_cpu_max(text)[1], _encode_period)
CLASSID = Codec("class id", _decode_classid, lambda value, current: str(value))


def parse_blkio(text: str) -> dict[str, str]:
    """Device (`MAJ:MIN`) -> the rest of its line. Lines without a device (`Total 0`, `default 100`) are left out."""
    devices = {}
    for line in text.splitlines():
        device, _, rest = line.partition(" ")
        major, colon, minor = device.partition(":")
        if colon and major.isdigit() and minor.isdigit():
            devices[device] = rest
    return devices


def format_blkio(device: str, value: int | str) -> str:
    return f"{device} {value}"
