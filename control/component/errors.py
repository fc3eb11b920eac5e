"""Errors of a configuration, reported together with kube-scheduler's texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class ConfigurationError(ValueError):
    """`errors`: one text per error, preceded by the path of the field if there is one."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__(errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")
        self.errors = tuple(errors)


def invalid(path: str, value: Any, detail: str) -> str:
    """The error for an unusable value."""
    return f"{path}: Invalid value: {shown(value)}: {detail}"


def required(path: str, detail: str = "") -> str:
    """The error for a missing value."""
    return f"{path}: Required value" + (f": {detail}" if detail else "")


def duplicate(path: str, value: Any) -> str:
    """The error for a value that may occur only once."""
    return f"{path}: Duplicate value: {shown(value)}"


def unusable_name(path: str, name: str, seen: set[str]) -> list[str]:
    """The error of a name that is empty or among those in `seen`, to which it is added."""
    errors = [required(path)] if not name else [duplicate(path, name)] if name in seen else []
    seen.add(name)
    return errors


def unsupported(path: str, value: Any, known: Sequence[str]) -> str:
    """The error for a value that is not one of `known`."""
    return f"{path}: Unsupported value: {shown(value)}: supported values: {', '.join(map(shown, sorted(known)))}"


def shown(value: Any) -> str:
    """A value as shown in a message."""
    return json.dumps(value, default=str, ensure_ascii=False)
