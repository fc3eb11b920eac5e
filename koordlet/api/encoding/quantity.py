"""Kubernetes resource quantities: exact amounts with a print format.

An amount is an integer number of nano-units, the smallest unit of Kubernetes; smaller fractions are rounded away from
zero when a text is parsed. Sums, differences and integer products are therefore exact and never overflow. The format
(`DECIMAL_SI`, `BINARY_SI`, `DECIMAL_EXPONENT`) only determines how the amount is printed; two quantities with equal
amounts are equal. Parsed texts are cached, because the same few hundred texts occur in all pods (spec 01 §2;
apimachinery `resource.Quantity`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, Self

Format = Literal["DecimalSI", "BinarySI", "DecimalExponent"]

DECIMAL_SI: Final[Format] = "DecimalSI"
BINARY_SI: Final[Format] = "BinarySI"
DECIMAL_EXPONENT: Final[Format] = "DecimalExponent"

_NANO = 10**9
_MICRO = 10**6
_KIBI_NANO = 1024 * _NANO
_MAX_BINARY = (2**63 - 1) * _NANO
"""Limit of texts with binary suffix, as in Kubernetes."""
_MAX_EXPONENT = 1000
"""A text with a larger exponent is refused: no resource needs it, and 10**n would use too much memory and time."""
_MAX_DIGITS = 1000

_TEXT = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?",
    re.ASCII,
)
_DECIMAL: dict[str, int] = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: dict[str, int] = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SHORT_CHARS = 32
"""Most texts are shorter integers with or without one of `_SHORT_SUFFIXES`; they are parsed without the pattern."""
_SHORT_SUFFIXES: dict[str, int] = {suffix: 10 ** (exponent + 9) for suffix, exponent in _DECIMAL.items() if suffix}
_DECIMAL_SUFFIXES = tuple(_DECIMAL)
_BINARY_SUFFIXES = ("", *_BINARY)


class QuantityError(ValueError):
    """A text or number is not a quantity; the message quotes it."""


class Quantity:
    """An immutable amount. `Quantity("1500m")` parses a text; `of` and `milli` convert integers."""

    __slots__ = ("_fmt", "_nano")
    _nano: int
    _fmt: Format

    def __new__(cls, text: str) -> Quantity:
        """Parse a text such as `1500m`, `2Gi`, `1e3`; equal texts may share one object. Raises QuantityError."""
        return _parsed(text)

    @classmethod
    def _make(cls, nano: int, fmt: Format) -> Self:
        self = object.__new__(cls)
        object.__setattr__(self, "_nano", nano)
        object.__setattr__(self, "_fmt", fmt)
        return self

    @classmethod
    def of(cls, n: int, fmt: Format = DECIMAL_SI) -> Self:
        """`n` whole units."""
        return cls._make(n * _NANO, fmt)

    @classmethod
    def milli(cls, n: int, fmt: Format = DECIMAL_SI) -> Self:
        """`n` thousandths of a unit."""
        return cls._make(n * _MICRO, fmt)

    @property
    def fmt(self) -> Format:
        """The print format."""
        return self._fmt

    def with_fmt(self, fmt: Format) -> Self:
        """The same amount with another print format."""
        return self._make(self._nano, fmt)

    def value(self) -> int:
        """Whole units, rounded away from zero (`50m` is 1)."""
        return _away(self._nano, _NANO)

    def milli_value(self) -> int:
        """Thousandths, rounded away from zero."""
        return _away(self._nano, _MICRO)

    @property
    def nano(self) -> int:
        """Billionths, exact."""
        return self._nano

    def is_zero(self) -> bool:
        """Whether the amount is 0."""
        return self._nano == 0

    def __bool__(self) -> bool:
        return self._nano != 0

    def __float__(self) -> float:
        return self._nano / _NANO

    def __str__(self) -> str:
        return _canonical(self._nano, self._fmt)

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Quantity is immutable, cannot set {name}")

    def __hash__(self) -> int:
        return hash(self._nano)

    def __eq__(self, other: object) -> bool:
        return self._nano == other._nano if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self._nano < other._nano if isinstance(other, Quantity) else NotImplemented

    def __le__(self, other: Quantity) -> bool:
        return self._nano <= other._nano if isinstance(other, Quantity) else NotImplemented

    def __gt__(self, other: Quantity) -> bool:
        return self._nano > other._nano if isinstance(other, Quantity) else NotImplemented

    def __ge__(self, other: Quantity) -> bool:
        return self._nano >= other._nano if isinstance(other, Quantity) else NotImplemented

    def __add__(self, other: Quantity) -> Self:
        if not isinstance(other, Quantity):
            return NotImplemented
        # If the first summand is zero, the sum has the format of the second, as in Kubernetes.
        return self._make(self._nano + other._nano, self._fmt if self._nano else other._fmt)

    def __sub__(self, other: Quantity) -> Self:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._make(self._nano - other._nano, self._fmt if self._nano else other._fmt)

    def __mul__(self, factor: int) -> Self:
        return self._make(self._nano * factor, self._fmt) if isinstance(factor, int) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Self:
        return self._make(-self._nano, self._fmt)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, tuple[int, Format]]:
        return type(self)._make, (self._nano, self._fmt)


def _away(nano: int, unit: int) -> int:
    """nano / unit, rounded away from zero."""
    return -(-nano // unit) if nano >= 0 else nano // unit


@lru_cache(maxsize=8192)
def _parsed(text: str) -> Quantity:
    return Quantity._make(*_parse(text))


def _parse(text: str) -> tuple[int, Format]:
    if text.isascii() and len(text) <= _SHORT_CHARS:
        if text.isdigit():
            return int(text) * _NANO, DECIMAL_SI
        factor = _SHORT_SUFFIXES.get(text[-1:])
        if factor is not None and text[:-1].isdigit():
            return int(text[:-1]) * factor, DECIMAL_SI
    match = _TEXT.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        raise QuantityError(
            f"{text!r} is not a quantity: it must be a number with one of the suffixes "
            "n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent such as e3"
        )
    part = match["part"] or ""
    digits = (match["whole"] or "") + part
    if len(digits) > _MAX_DIGITS:
        raise QuantityError(f"a quantity of {len(digits)} digits is too long")
    amount, shift = int(digits), -len(part)  # the amount is amount * 10**shift units
    suffix = match["suffix"] or ""
    fmt: Format
    if match["exponent"] is not None:
        exponent = match["exponent"]
        if len(exponent) > 6 or abs(int(exponent)) > _MAX_EXPONENT:
            raise QuantityError(f"{text!r} is not a quantity: its exponent is out of range")
        shift += int(exponent)
        fmt = DECIMAL_EXPONENT
    elif suffix in _BINARY:
        amount <<= _BINARY[suffix]
        fmt = BINARY_SI
    else:
        shift += _DECIMAL[suffix]
        fmt = DECIMAL_SI
    shift += 9
    nano = amount * 10**shift if shift >= 0 else _away(amount, 10**-shift)
    if fmt == BINARY_SI:
        nano = min(nano, _MAX_BINARY)
        if 0 < nano < _NANO:
            fmt = DECIMAL_SI
    return (-nano if match["sign"] == "-" else nano), fmt


def _canonical(nano: int, fmt: Format) -> str:
    if nano == 0:
        return "0"
    if fmt == BINARY_SI and not -_KIBI_NANO < nano < _KIBI_NANO and nano % _NANO == 0:
        mantissa, times = _strip(nano // _NANO, 1024, len(_BINARY_SUFFIXES) - 1)
        return f"{mantissa}{_BINARY_SUFFIXES[times]}"
    if fmt == DECIMAL_EXPONENT:
        mantissa, times = _strip(nano, 1000, None)
        exponent = 3 * times - 9
        return f"{mantissa}e{exponent}" if exponent else str(mantissa)
    mantissa, times = _strip(nano, 1000, len(_DECIMAL_SUFFIXES) - 1)
    return f"{mantissa}{_DECIMAL_SUFFIXES[times]}"


def _strip(n: int, factor: int, limit: int | None) -> tuple[int, int]:
    """Divide n by factor while there is no remainder, at most `limit` times; (quotient, number of divisions)."""
    times = 0
    while times != limit:
        quotient, rest = divmod(n, factor)
        if rest:
            break
        n, times = quotient, times + 1
    return n, times


ZERO: Final = Quantity.of(0)
"""0 in decimal format. As the start of a sum it takes the format of the first summand."""
