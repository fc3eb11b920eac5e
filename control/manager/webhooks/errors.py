"""Error texts in apimachinery's format: `path: Invalid value: "v": detail`, several as `[e1, e2]` (spec 04 §10). Pure.

Validators return lists of such texts. A failed mutation raises `MutationError` instead (HTTP 500).
"""

from __future__ import annotations

from collections.abc import Sequence

from koordlet.api.encoding.wire import encode


class MutationError(ValueError):
    """An object cannot be mutated; the message names the profile or the field."""


def invalid(path: str, value: object, detail: str) -> str:
    """The value is not allowed in this field."""
    return f"{path}: Invalid value: {encode(value).decode()}: {detail}"


def required(path: str, detail: str) -> str:
    """The field must be set."""
    return f"{path}: Required value: {detail}"


def forbidden(path: str, detail: str) -> str:
    """The field, or this combination of fields, must not be used."""
    return f"{path}: Forbidden: {detail}"


def aggregate(errors: Sequence[str]) -> str:
    """One error as it is, several in brackets without duplicates; empty for none."""
    unique = list(dict.fromkeys(errors))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]" if unique else ""
