"""Typed access to one annotation, common to all annotations.

Reading: a missing key gives None (or the stated default). Malformed text raises WireError with the key and the field;
callers log it and treat the key as missing, unless documented otherwise. Writing returns text or a new map and does not
modify the argument, because the API server gets a patch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from koordlet.api.encoding.gosyntax import parse_bool
from koordlet.api.encoding.wire import WireError, decode, encode

T = TypeVar("T")
Map = Mapping[str, str]

_DECIMAL = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


def absent() -> None:
    """For `Annotation(empty=...)`: an empty annotation counts as missing."""


class Annotation(Generic[T]):
    """A JSON annotation of type T; None when it is missing."""

    def __init__(self, key: str, type: Any, *, empty: Callable[[], T | None] | None = None) -> None:
        """`empty` creates the value of an annotation that is present but the empty string; None: that is malformed."""
        self.key = key
        self._type = type
        self._empty = empty

    def get(self, annotations: Map | None) -> T | None:
        """The value, or None when the key (or the whole map) is missing. Raises WireError."""
        text = annotations.get(self.key) if annotations else None
        if text is None:
            return None
        if not text and self._empty is not None:
            return self._empty()
        value: T = decode(text, self._type, where=f"annotation {self.key}")
        return value

    def text(self, value: T) -> str:
        """The text of the annotation."""
        return encode(value).decode()

    def put(self, annotations: Map | None, value: T) -> dict[str, str]:
        """A copy of the map with the annotation set."""
        return {**(annotations or {}), self.key: self.text(value)}


class DefaultAnnotation(Generic[T]):
    """A JSON annotation of type T with a default for a missing key."""

    def __init__(self, key: str, type: Any, missing: Callable[[], T]) -> None:
        self._inner: Annotation[T] = Annotation(key, type)
        self.key = key
        self._missing = missing

    def get(self, annotations: Map | None) -> T:
        """The value, or the default when the key is missing. Raises WireError."""
        value = self._inner.get(annotations)
        return self._missing() if value is None else value

    def text(self, value: T) -> str:
        """The text of the annotation."""
        return self._inner.text(value)

    def put(self, annotations: Map | None, value: T) -> dict[str, str]:
        """A copy of the map with the annotation set."""
        return self._inner.put(annotations, value)


def integer(values: Map, key: str, *, bits: int = 64, low: int | None = None, high: int | None = None) -> int | None:
    """A decimal integer, None when missing. Raises WireError when malformed or out of range."""
    text = values.get(key)
    if text is None:
        return None
    low = -(2 ** (bits - 1)) if low is None else low
    high = 2 ** (bits - 1) - 1 if high is None else high
    if not _DECIMAL.fullmatch(text) or not low <= int(text) <= high:
        raise WireError(f"{text!r} is not an integer from {low} to {high}", where=key)
    return int(text)


def boolean(values: Map, key: str) -> bool | None:
    """A boolean in the syntax of Go's ParseBool, None when missing. Raises WireError."""
    text = values.get(key)
    if text is None:
        return None
    try:
        return parse_bool(text)
    except ValueError as error:
        raise WireError(f"{text!r} is not a boolean", where=key) from error
