"""JSON patch (RFC 6902) on plain JSON values.

`apply` never changes its input: it patches a deep copy and returns it. Errors name the failed operation
and the reason, with kube-apiserver's wording.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode

MAX_OPERATIONS = 10_000
"""kube-apiserver's limit of the operations of one patch."""
MAX_COPIED_BYTES = 3 * 1024 * 1024
"""kube-apiserver's limit of the JSON that all copies of one patch add: N copies could multiply the size by 2**N."""


class JsonPatchError(ValueError):
    """The patch does not apply to the document (`invalid`, HTTP 422) or is malformed (HTTP 400)."""

    def __init__(self, message: str, *, invalid: bool = True) -> None:
        super().__init__(message)
        self.invalid = invalid


def apply(doc: Any, ops: Sequence[Mapping[str, Any]]) -> Any:
    """The document after all operations; raises JsonPatchError at the first that fails."""
    if not isinstance(ops, Sequence) or isinstance(ops, str | bytes):
        raise JsonPatchError("a JSON patch must be a list of operations", invalid=False)
    if len(ops) > MAX_OPERATIONS:
        raise JsonPatchError(
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(ops)}", invalid=False
        )
    result = copy.deepcopy(doc)
    copied_bytes = 0
    for index, op in enumerate(ops):
        if not isinstance(op, Mapping):
            raise JsonPatchError(f"operation {index} is not an object", invalid=False)
        if op.get("op") == "copy":
            copied_bytes += len(_encode(_get(result, parse_pointer(op.get("from"), index), "copy")))
            if copied_bytes > MAX_COPIED_BYTES:
                raise JsonPatchError(
                    f"Unable to complete the copy, the accumulated size increase of copy is {copied_bytes}, "
                    f"exceeding the limit {MAX_COPIED_BYTES}"
                )
        result = _apply_one(result, op, index)
    return result


def _apply_one(doc: Any, op: Mapping[str, Any], index: int) -> Any:
    name = op.get("op")
    if not isinstance(name, str) or name not in _OPERATIONS:
        raise JsonPatchError(f"operation {index}: unexpected kind: {name!r}", invalid=False)
    path = parse_pointer(op.get("path"), index)
    if name in ("add", "replace", "test") and "value" not in op:
        raise JsonPatchError(f"operation {index}: {name} operation needs a value", invalid=False)
    if name == "add":
        return _add(doc, path, copy.deepcopy(op["value"]))
    if name == "remove":
        return _remove(doc, path, name)[0]
    if name == "replace":
        return _replace(doc, path, copy.deepcopy(op["value"]))
    if name == "test":
        _test(doc, path, op["value"])
        return doc
    source = parse_pointer(op.get("from"), index)
    if name == "copy":
        return _add(doc, path, copy.deepcopy(_get(doc, source, name)))
    if path[: len(source)] == source and path != source:
        raise JsonPatchError(f"operation {index}: cannot move {_pointer(source)} into itself")
    doc, value = _remove(doc, source, name)
    return _add(doc, path, value)


_OPERATIONS = frozenset({"add", "remove", "replace", "move", "copy", "test"})


def parse_pointer(pointer: Any, index: int) -> tuple[str, ...]:
    """The unescaped tokens of an RFC 6901 pointer; `""` is the whole document."""
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise JsonPatchError(f"operation {index}: invalid path {pointer!r}", invalid=False)
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])


def _pointer(tokens: Sequence[str]) -> str:
    return "".join("/" + t.replace("~", "~0").replace("/", "~1") for t in tokens)


def _index(token: str, length: int, what: str, tokens: Sequence[str]) -> int:
    """A list index of an existing element."""
    if not token.isdecimal() or (len(token) > 1 and token[0] == "0") or int(token) >= length:
        raise JsonPatchError(
            f"{what} operation does not apply: doc is missing path: {_pointer(tokens)}: "
            f"Unable to access invalid index: {token}"
        )
    return int(token)


def _missing(what: str, tokens: Sequence[str]) -> JsonPatchError:
    return JsonPatchError(f"{what} operation does not apply: doc is missing path: {_pointer(tokens)}: missing value")


def _get(doc: Any, tokens: Sequence[str], what: str) -> Any:
    here = doc
    for token in tokens:
        if isinstance(here, dict):
            if token not in here:
                raise _missing(what, tokens)
            here = here[token]
        elif isinstance(here, list):
            here = here[_index(token, len(here), what, tokens)]
        else:
            raise _missing(what, tokens)
    return here


def _add(doc: Any, tokens: tuple[str, ...], value: Any) -> Any:
    if not tokens:
        return value
    parent = _get(doc, tokens[:-1], "add")
    last = tokens[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        at = len(parent) if last == "-" or last == str(len(parent)) else _index(last, len(parent), "add", tokens)
        parent.insert(at, value)
    else:
        raise _missing("add", tokens)
    return doc


def _replace(doc: Any, tokens: tuple[str, ...], value: Any) -> Any:
    if not tokens:
        return value
    parent = _get(doc, tokens[:-1], "replace")
    if isinstance(parent, dict):  # as in kube-apiserver's library: an absent key is added
        parent[tokens[-1]] = value
    else:
        _get(doc, tokens, "replace")
        parent[int(tokens[-1])] = value
    return doc


def _remove(doc: Any, tokens: tuple[str, ...], what: str) -> tuple[Any, Any]:
    value = _get(doc, tokens, what)
    if not tokens:
        return None, value
    parent = _get(doc, tokens[:-1], what)
    del parent[tokens[-1] if isinstance(parent, dict) else int(tokens[-1])]
    return doc, value


def _test(doc: Any, tokens: tuple[str, ...], expected: Any) -> None:
    try:
        actual = _get(doc, tokens, "test")
    except JsonPatchError:
        if expected is None:  # as in kube-apiserver's library: an absent value is equal to null
            return
        raise
    if not json_equal(actual, expected):
        raise JsonPatchError(f"testing value {_pointer(tokens)} failed: test failed")


def json_equal(a: Any, b: Any) -> bool:
    """Equality of JSON values: numbers by value; true is not equal to 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(json_equal(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(json_equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b if isinstance(a, str) or isinstance(b, str) else bool(a == b)
