"""Refusals in the words of Kubernetes: `path: Invalid value: "v": detail`, several as `[e1, e2]` (spec 04 §10)."""

from __future__ import annotations

import json
from collections.abc import Sequence


def invalid(path: str, value: object, detail: str) -> str:
    """A value that can't be. Strings are quoted, other values shown as JSON."""
    return f"{path}: Invalid value: {_shown(value)}: {detail}"


def required(path: str, detail: str = "") -> str:
    """A value that must be there."""
    return f"{path}: Required value" + (f": {detail}" if detail else "")


def forbidden(path: str, detail: str) -> str:
    """A value that must not be there, or must not change."""
    return f"{path}: Forbidden: {detail}"


def not_supported(path: str, value: object, known: Sequence[str]) -> str:
    """A value that is none of a few."""
    return f"{path}: Unsupported value: {_shown(value)}: supported values: " + ", ".join(f'"{one}"' for one in known)


def aggregate(errors: Sequence[str]) -> str:
    """One plainly, several in brackets, the same one once; "" for none."""
    unique = list(dict.fromkeys(errors))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]" if unique else ""


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
