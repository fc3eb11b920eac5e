"""Typed access to one annotation, common to all annotations.

Reading: a missing key gives None (or the stated default). Malformed text raises WireError with the key and the field;
callers log it and treat the key as missing, unless documented otherwise. Writing returns text or a new map and does not
modify the argument, because the API server gets a patch.

Annotations of pods are written by tenants and read by root in every round. They have `TextLimits`, and their values are
remembered by text: an unchanged annotation is decoded once. Values are shared and must not be modified.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from koordlet.api.encoding.gosyntax import parse_bool
from koordlet.api.encoding.quoting import quoted
from koordlet.api.encoding.remembered import RememberedTexts
from koordlet.api.encoding.wire import WireError, convert, decode, encode

T = TypeVar("T")
Map = Mapping[str, str]

_DECIMAL = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


def absent() -> None:
    """For `Annotation(empty=...)`: an empty annotation counts as missing."""


class TextLimits(NamedTuple):
    """Bounds of an annotation that tenants can write."""

    chars: int
    """Characters of its text."""
    items: int
    """Members of all its objects and elements of all its lists together."""


SETTING: Final = TextLimits(chars=4 << 10, items=128)
"""A pod's setting: a few fixed fields, or a number per container or volume."""
PER_CONTAINER: Final = TextLimits(chars=16 << 10, items=512)
"""Resources per container, per NUMA node or per device: 512 items are 64 devices with their amounts."""


HOSTILE_PODS: Final = 128
"""Number of texts of maximal length that are remembered: more than a kubelet's default of 110 pods."""


class Annotation(Generic[T]):
    """A JSON annotation of type T; None when it is missing."""

    def __init__(
        self,
        key: str,
        type: Any,
        *,
        empty: Callable[[], T | None] | None = None,
        limits: TextLimits | None = None,
    ) -> None:
        """`empty` creates the value of an annotation that is present but the empty string; None: that is malformed.
        `limits`: bounds of a text that tenants write; None for objects that only trusted components write."""
        self.key = key
        self._type = type
        self._empty = empty
        self.limits = limits
        max_chars = 0 if limits is None else HOSTILE_PODS * limits.chars
        self.remembered: RememberedTexts[T] = RememberedTexts(self._decode, WireError, max_chars=max_chars)
        """Values by text; used only with `limits`."""

    def get(self, annotations: Map | None) -> T | None:
        """The value, or None when the key (or the whole map) is missing. Raises WireError."""
        text = annotations.get(self.key) if annotations else None
        if text is None:
            return None
        if not text and self._empty is not None:
            return self._empty()
        if self.limits is None:
            return self._decode(text)
        if len(text) > self.limits.chars:
            raise self._error(f"has {len(text)} characters, at most {self.limits.chars} are allowed")
        return self.remembered(text)

    def _decode(self, text: str) -> T:
        value: T
        if self.limits is None:
            value = decode(text, self._type, where=f"annotation {self.key}")
            return value
        document: Any = decode(text, Any, where=f"annotation {self.key}")
        if more_items(document, self.limits.items):
            raise self._error(f"has more than {self.limits.items} items")
        value = convert(document, self._type, where=f"annotation {self.key}")
        return value

    def _error(self, reason: str) -> WireError:
        return WireError(reason, where=f"annotation {self.key}")

    def text(self, value: T) -> str:
        """The text of the annotation."""
        return encode(value).decode()

    def put(self, annotations: Map | None, value: T) -> dict[str, str]:
        """A copy of the map with the annotation set."""
        return {**(annotations or {}), self.key: self.text(value)}


class DefaultAnnotation(Generic[T]):
    """A JSON annotation of type T with a default for a missing key."""

    def __init__(self, key: str, type: Any, missing: Callable[[], T], *, limits: TextLimits | None = None) -> None:
        self._inner: Annotation[T] = Annotation(key, type, limits=limits)
        self.key = key
        self._missing = missing

    def get(self, annotations: Map | None) -> T:
        """The value, or the default when the key is missing. Raises WireError."""
        value = self._inner.get(annotations)
        return self._missing() if value is None else value

    def text(self, value: T) -> str:
        """The text of the annotation."""
        return self._inner.text(value)


def more_items(document: object, limit: int) -> bool:
    """Whether a decoded JSON document has more than `limit` members and elements; visits at most that many."""
    count = 0
    containers = [document] if isinstance(document, dict | list) else []
    while containers:
        value = containers.pop()
        count += len(value)
        if count > limit:
            return True
        members = value.values() if isinstance(value, dict) else value
        containers += [member for member in members if member.__class__ in _CONTAINERS]
    return False


_CONTAINERS: Final = frozenset((dict, list))
"""The exact types that a JSON decoder makes."""


def integer(values: Map, key: str, *, bits: int = 64, low: int | None = None, high: int | None = None) -> int | None:
    """A decimal integer, None when missing. Raises WireError when malformed or out of range."""
    text = values.get(key)
    if text is None:
        return None
    low = -(2 ** (bits - 1)) if low is None else low
    high = 2 ** (bits - 1) - 1 if high is None else high
    if not _DECIMAL.fullmatch(text) or not low <= int(text) <= high:
        raise WireError(f"{quoted(text)} is not an integer from {low} to {high}", where=key)
    return int(text)


def boolean(values: Map, key: str) -> bool | None:
    """A boolean in the syntax of Go's ParseBool, None when missing. Raises WireError."""
    text = values.get(key)
    if text is None:
        return None
    try:
        return parse_bool(text)
    except ValueError as error:
        raise WireError(f"{quoted(text)} is not a boolean", where=key) from error
