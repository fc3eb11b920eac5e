"""The part of Kubernetes' JSONPath that CRDs use: printer columns, selectable fields, scale paths.

`.a.b`, `.a[0]`, `.a[*].b`, `.a['b.c']`, `.a.b\\.c`, `.a[?(@.type=="Ready")].status`. Compiled once per column.
Pure; a path outside this part raises JsonPathError with the path in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

Step = Callable[[list[Any]], list[Any]]

_TOKEN = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])+)
      | \[(?P<index>-?\d+)\]
      | \[(?P<all>\*)\]
      | \[(?P<quote>['"])(?P<key>.*?)(?P=quote)\]
      | \[\?\(\s*@(?P<field>(?:\.[\w\-/]+)+)\s*(?P<op>==|!=)\s*(?P<q>['"]?)(?P<value>[^'")]*?)(?P=q)\s*\)\]""",
    re.VERBOSE,
)


class JsonPathError(ValueError):
    """The path uses something outside the supported part."""


@lru_cache(maxsize=4096)
def compile_path(path: str) -> Callable[[Any], list[Any]]:
    """A function from a document to all values at `path` (empty list: absent)."""
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = text.removeprefix("$")
    if text and text[0] not in ".[":
        text = "." + text
    steps: list[Step] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise JsonPathError(f"unsupported JSONPath {path!r} at {text[at:]!r}")
        steps.append(_step(found))
        at = found.end()

    def values(document: Any) -> list[Any]:
        current = [document]
        for step in steps:
            current = step(current)
        return current

    return values


def _step(found: re.Match[str]) -> Step:
    if found["all"]:
        return lambda vs: [x for v in vs for x in _items(v)]
    if found["index"] is not None:
        i = int(found["index"])
        return lambda vs: [v[i] for v in vs if isinstance(v, list) and -len(v) <= i < len(v)]
    if found["field"]:
        fields, equal, want = found["field"].lstrip(".").split("."), found["op"] == "==", found["value"]
        return lambda vs: [x for v in vs for x in _items(v) if (_text(_dig(x, fields)) == want) is equal]
    name = found["key"] if found["key"] is not None else re.sub(r"\\(.)", r"\1", found["name"])
    if name == "*":
        return lambda vs: [x for v in vs for x in _items(v)]
    return lambda vs: [v[name] for v in vs if isinstance(v, dict) and v.get(name) is not None]


def _items(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return list(value.values()) if isinstance(value, dict) else []


def _dig(value: Any, fields: list[str]) -> Any:
    for name in fields:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
