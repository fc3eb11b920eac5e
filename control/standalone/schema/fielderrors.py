"""Constructors of `FieldError`s with Kubernetes' wording."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from control.standalone.errors import FieldError


def show(value: Any) -> str:
    """A value as messages show it: as JSON, so that strings are quoted and numbers are not."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def required(path: str, detail: str = "") -> FieldError:
    return FieldError("FieldValueRequired", path, "Required value" + (f": {detail}" if detail else ""))


def invalid(path: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueInvalid", path, f"Invalid value: {show(value)}: {detail}")


def type_invalid(path: str, value: Any, detail: str) -> FieldError:
    return FieldError("FieldValueTypeInvalid", path, f"Invalid value: {show(value)}: {detail}")


def not_supported(path: str, value: Any, supported: Iterable[Any]) -> FieldError:
    values = ", ".join(show(item) for item in supported)
    return FieldError("FieldValueNotSupported", path, f"Unsupported value: {show(value)}: supported values: {values}")


def forbidden(path: str, detail: str) -> FieldError:
    return FieldError("FieldValueForbidden", path, f"Forbidden: {detail}")


def duplicate(path: str, value: Any) -> FieldError:
    return FieldError("FieldValueDuplicate", path, f"Duplicate value: {show(value)}")


def too_long(path: str, limit: int) -> FieldError:
    return FieldError("FieldValueTooLong", path, f"Too long: may not be more than {limit} bytes")


def too_many(path: str, actual: int, limit: int) -> FieldError:
    return FieldError(
        "FieldValueTooMany", path, f"Too many: {actual}: must have at most {limit} item{'s'[: limit != 1]}"
    )


def not_found(path: str, value: Any, detail: str = "") -> FieldError:
    return FieldError("FieldValueNotFound", path, f"Not found: {show(value)}" + (f": {detail}" if detail else ""))
