"""The subset of Kubernetes' JSONPath that CRDs use: printer columns, selectable fields, scale paths.

`.a.b`, `.a[0]`, `.a[*].b`, `.a['b.c']`, `.a.b\\.c`, `.a[?(@.type=="Ready")].status`. Compiled paths are cached.
Pure; a path outside this subset raises JsonPathError, which names the path.
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
    """The path is outside the supported subset."""


@lru_cache(maxsize=4096)
def compile_path(path: str) -> Callable[[Any], list[Any]]:
    """A function that returns all values at `path` of a document; an empty list when there is none."""
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = text.removeprefix("$")
    if text and text[0] not in ".[":
        text = "." + text
    steps: list[Step] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise JsonPathError(f"unsupported JSONPath {path!r} at {text[position:]!r}")
        steps.append(_step(token))
        position = token.end()

    def values(document: Any) -> list[Any]:
        current = [document]
        for step in steps:
            current = step(current)
        return current

    return values


def _step(token: re.Match[str]) -> Step:
    if token["all"]:
        return lambda vs: [x for v in vs for x in _items(v)]
    if token["index"] is not None:
        i = int(token["index"])
        return lambda vs: [v[i] for v in vs if isinstance(v, list) and -len(v) <= i < len(v)]
    if token["field"]:
        fields, equal, want = token["field"].lstrip(".").split("."), token["op"] == "==", token["value"]
        return lambda vs: [x for v in vs for x in _items(v) if (_text(_dig(x, fields)) == want) is equal]
    name = token["key"] if token["key"] is not None else re.sub(r"\\(.)", r"\1", token["name"])
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
