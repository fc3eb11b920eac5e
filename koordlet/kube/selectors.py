"""Label and field selectors as query strings."""

from __future__ import annotations

from collections.abc import Mapping

from koordlet.api.meta import LabelSelector

Selector = str | Mapping[str, str] | LabelSelector | None


def label_query(selector: Selector) -> str | None:
    """`a=b,c in (d,e),!f`; None for an empty selector. Strings are returned unchanged."""
    if selector is None or isinstance(selector, str):
        return selector or None
    if isinstance(selector, Mapping):
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or None
    parts = [f"{key}={value}" for key, value in sorted(selector.match_labels.items())]
    for expression in selector.match_expressions:
        match expression.operator:
            case "In" | "NotIn":
                parts.append(f"{expression.key} {expression.operator.lower()} ({','.join(expression.values)})")
            case "Exists":
                parts.append(expression.key)
            case "DoesNotExist":
                parts.append(f"!{expression.key}")
            case other:
                raise ValueError(f"{expression.key}: {other} is not a label selector operator")
    return ",".join(parts) or None


def field_query(selector: str | Mapping[str, str] | None) -> str | None:
    """`spec.nodeName=n1,status.phase!=Failed`; a key that ends in `!` means not equal. Strings stay unchanged."""
    if selector is None or isinstance(selector, str):
        return selector or None
    return ",".join(f"{key}={_escape(value)}" for key, value in sorted(selector.items())) or None


def by_name(name: str) -> str:
    """The field selector of one object."""
    return f"metadata.name={_escape(name)}"


def _escape(value: str) -> str:
    """Escape a value: field selectors escape their punctuation with a backslash."""
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
