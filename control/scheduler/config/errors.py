"""Everything that is wrong with a configuration, told together and in kube-scheduler's words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class ConfigurationError(ValueError):
    """`errors`: one text each, with the path of the field in front where there is one."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__(errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")
        self.errors = tuple(errors)


def invalid(path: str, value: Any, detail: str) -> str:
    """A value that can't be used."""
    return f"{path}: Invalid value: {shown(value)}: {detail}"


def required(path: str, detail: str = "") -> str:
    """A value that is missing."""
    return f"{path}: Required value" + (f": {detail}" if detail else "")


def duplicate(path: str, value: Any) -> str:
    """A value that may occur once."""
    return f"{path}: Duplicate value: {shown(value)}"


def unsupported(path: str, value: Any, known: Sequence[str]) -> str:
    """A word that is none of those known."""
    return f"{path}: Unsupported value: {shown(value)}: supported values: {', '.join(map(shown, sorted(known)))}"


def shown(value: Any) -> str:
    """A value as it stands in a message."""
    return json.dumps(value, default=str, ensure_ascii=False)
