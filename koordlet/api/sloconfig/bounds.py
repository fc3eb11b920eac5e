"""Numeric bounds of strategy fields as tables, used at run time and by the webhook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class Bound(NamedTuple):
    """The bounds of a number. `path` is its wire path from the strategy (`beClass.cpuQOS.schedIdle`)."""

    path: str
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None

    def problem(self, value: float) -> str | None:
        """The reason why `value` is invalid, or None."""
        if self.minimum is not None and value < self.minimum:
            return f"{_number(value)} is less than {_number(self.minimum)}"
        if self.above is not None and value <= self.above:
            return f"{_number(value)} is not greater than {_number(self.above)}"
        if self.maximum is not None and value > self.maximum:
            return f"{_number(value)} is greater than {_number(self.maximum)}"
        return None


def field_at(strategy: msgspec.Struct | None, path: str) -> object:
    """The value at a wire path, or None if any part of the path is absent."""
    value: object = strategy
    for part in path.split("."):
        if not isinstance(value, msgspec.Struct):
            return None
        attribute = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))[part]
        value = getattr(value, attribute)
    return value


def broken(strategy: msgspec.Struct | None, bounds: Iterable[Bound]) -> dict[str, str]:
    """Field path -> reason for every number out of its bounds; absent fields are skipped."""
    reasons = {}
    for bound in bounds:
        value = field_at(strategy, bound.path)
        if isinstance(value, int | float):
            reason = bound.problem(value)
            if reason:
                reasons[bound.path] = reason
    return reasons


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
