"""Parses scalars in the syntax of Go's strconv, as used in labels, annotations and flags (spec 01 §2)."""

from __future__ import annotations

import math
import re
from typing import Final

_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)


def parse_bool(text: str) -> bool:
    """The spellings of Go's ParseBool; ValueError for any other."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f'invalid boolean value "{text}"')


def parse_decimal(text: str) -> float:
    """A finite number in decimal notation; ValueError for anything else (hexadecimal, infinity, blanks)."""
    if _DECIMAL.fullmatch(text):
        value = float(text)
        if math.isfinite(value):
            return value
    raise ValueError(f"{text!r} is not a number")
