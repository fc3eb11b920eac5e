"""A value that a test needs and that its type lets be None."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value without None in its type; AssertionError for None."""
    assert value is not None
    return value
