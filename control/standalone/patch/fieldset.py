"""Sets of field paths and their `fieldsV1` form, which managedFields and server-side apply use.

A path is a tuple of elements written as in fieldsV1: `f:name` for a field or map key, `k:{"name":"x"}` for
an item of a keyed list, `v:"x"` for a member of a set. A field set is a plain `set` of paths, with the
interpreter's union, difference and intersection. In fieldsV1 a member without members below it is `{}`;
one with members below it has `".": {}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Path = tuple[str, ...]
FieldSet = set[Path]


class FieldSetError(ValueError):
    """An invalid fieldsV1 value."""


def parse(fields_v1: Mapping[str, Any]) -> FieldSet:
    """fieldsV1 -> set of paths; raises FieldSetError, which names the invalid element."""
    out: FieldSet = set()
    _parse(fields_v1, (), out)
    return out


def _parse(node: Any, path: Path, out: FieldSet) -> None:
    if not isinstance(node, dict):
        raise FieldSetError(f"fieldsV1 at {format_path(path)!r}: expected an object")
    if path and (not node or "." in node):
        out.add(path)
    for element, child in node.items():
        if element == ".":
            continue
        if element[:2] not in ("f:", "k:", "v:", "i:"):
            raise FieldSetError(f"fieldsV1 at {format_path(path)!r}: unknown path element {element!r}")
        _parse(child, (*path, element), out)


def to_fields_v1(paths: Iterable[Path]) -> dict[str, Any]:
    """Set of paths -> fieldsV1, with sorted keys, so that equal sets have equal encodings."""
    root: dict[str, Any] = {}
    for path in sorted(paths):  # a member comes before the members below it
        node = root
        for element in path:
            child = node.get(element)
            if child is None:
                child = node[element] = {}
            elif not child:  # a member without members below it so far
                child["."] = {}
            node = child
    return root


def prefixes(paths: Iterable[Path]) -> FieldSet:
    """Every proper prefix of the paths: the containers of the members."""
    out: FieldSet = set()
    for path in paths:
        for length in range(len(path) - 1, 0, -1):
            head = path[:length]
            if head in out:
                break
            out.add(head)
    return out


def format_path(path: Path) -> str:
    """`.spec.containers[name="web"].image`, for conflict messages."""
    text = ""
    for element in path:
        kind, value = element[:2], element[2:]
        if kind == "f:":
            text += "." + value
        elif kind == "k:":
            keys = json.loads(value)
            text += "[" + ",".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in sorted(keys.items())) + "]"
        elif kind == "v:":
            text += f"[={value}]"
        else:
            text += f"[{value}]"
    return text
