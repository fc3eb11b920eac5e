"""Times and durations in Kubernetes' formats.

`Time` is RFC 3339 in UTC with whole seconds, `MicroTime` always has six decimals (Leases), `Duration` has Go's syntax
and Go's normalised output (spec 01 §2). Both times are datetimes, so they can be compared with and subtracted from any
aware datetime. Re-exported by `koordlet.api.encoding.wire`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import total_ordering
from typing import ClassVar, Self

_UNITS: dict[str, int] = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PIECE = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_MAX_NS = 2**63 - 1
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?P<fraction>[.,]\d+)?(?P<zone>[Zz]|[+-]\d\d:\d\d)", re.ASCII)


class Time(datetime):
    """A moment in UTC, written with whole seconds (`2024-03-05T08:00:00Z`)."""

    _timespec: ClassVar[str] = "seconds"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse RFC 3339 with any offset; digits of the second that the type does not write are truncated."""
        match = _TIME.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an RFC 3339 time")
        fraction, zone = match["fraction"] or "", match["zone"]
        body = text[: len(text) - len(fraction) - len(zone)]
        try:
            moment = datetime.fromisoformat(body + "." + (fraction[1:7] or "0").ljust(6, "0") + zone.upper())
            return cls.of(moment)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{text!r} is not an RFC 3339 time") from error

    @classmethod
    def of(cls, moment: datetime) -> Self:
        """`moment` (aware) in UTC, truncated to the resolution of the type."""
        if moment.tzinfo is None:
            raise ValueError(f"{moment!r} has no time zone")
        m = moment.astimezone(UTC)
        micro = m.microsecond if cls._timespec == "microseconds" else 0
        return cls(m.year, m.month, m.day, m.hour, m.minute, m.second, micro, tzinfo=UTC)

    @classmethod
    def from_unix(cls, seconds: float) -> Self:
        """The Unix time `seconds`, truncated to the resolution of the type."""
        return cls.of(datetime.fromtimestamp(seconds, UTC))

    @property
    def unix(self) -> float:
        """The Unix time."""
        return self.timestamp()

    def __str__(self) -> str:
        naive = self.astimezone(UTC).replace(tzinfo=None)
        return datetime.isoformat(naive, timespec=self._timespec) + "Z"


class MicroTime(Time):
    """A moment in UTC, written with microseconds (`2024-03-05T08:00:00.000000Z`)."""

    _timespec = "microseconds"


@total_ordering
class Duration:
    """An immutable duration in whole nanoseconds. `Duration("1h30m")` parses Go's syntax."""

    __slots__ = ("_ns",)
    _ns: int

    def __new__(cls, text: str) -> Self:
        """Parse `300s`, `1h30m`, `1.5h`, `-2m`, `0`. Raises ValueError."""
        return cls.of(nanoseconds=_parse_duration(text))

    @classmethod
    def of(
        cls, *, hours: int = 0, minutes: int = 0, seconds: int = 0, milliseconds: int = 0, nanoseconds: int = 0
    ) -> Self:
        """The sum of the parts."""
        self = object.__new__(cls)
        total = ((hours * 60 + minutes) * 60 + seconds) * 10**9 + milliseconds * 10**6 + nanoseconds
        object.__setattr__(self, "_ns", total)
        return self

    @property
    def nanoseconds(self) -> int:
        """The duration in nanoseconds."""
        return self._ns

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self._ns / 10**9

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Duration is immutable, cannot set {name}")

    def __bool__(self) -> bool:
        return self._ns != 0

    def __hash__(self) -> int:
        return hash(self._ns)

    def __eq__(self, other: object) -> bool:
        return self._ns == other._ns if isinstance(other, Duration) else NotImplemented

    def __lt__(self, other: Duration) -> bool:
        return self._ns < other._ns if isinstance(other, Duration) else NotImplemented

    def __str__(self) -> str:
        return _format_duration(self._ns)

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (str(self),)


def _parse_duration(text: str) -> int:
    body = text[1:] if text[:1] in ("+", "-") else text
    sign = -1 if text[:1] == "-" else 1
    if body == "0":
        return 0
    total, at = 0, 0
    while at < len(body):
        piece = _PIECE.match(body, at)
        if piece is None or not (piece[1] or piece[2]) or len(piece[0]) > 64:
            raise ValueError(f"{text!r} is not a duration")
        unit, part = _UNITS[piece[3]], piece[2] or ""
        total += int(piece[1] or 0) * unit + (int(part) * unit // 10 ** len(part) if part else 0)
        at = piece.end()
    if not body or total > _MAX_NS:
        raise ValueError(f"{text!r} is not a duration")
    return sign * total


def _format_duration(ns: int) -> str:
    if ns == 0:
        return "0s"
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    for unit in ("ns", "µs", "ms"):
        if ns < _UNITS[unit] * 1000:
            return f"{sign}{_decimal(ns, _UNITS[unit])}{unit}"
    minutes, ns = divmod(ns, _UNITS["m"])
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(ns, _UNITS['s'])}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(n: int, unit: int) -> str:
    whole, rest = divmod(n, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).zfill(len(str(unit)) - 1).rstrip('0')}"
