"""RFC 6902: every operation, pointer escapes, and failures that leave the document unchanged."""

import copy
from typing import Any

import pytest

from control.standalone.patch import json_patch
from control.standalone.patch.json_patch import JsonPatchError

CASES = {
    "add member": ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
    "add replaces member": ({"a": 1}, [{"op": "add", "path": "/a", "value": 2}], {"a": 2}),
    "add into list": ({"l": [1, 3]}, [{"op": "add", "path": "/l/1", "value": 2}], {"l": [1, 2, 3]}),
    "append": ({"l": [1]}, [{"op": "add", "path": "/l/-", "value": 2}], {"l": [1, 2]}),
    "append by length": ({"l": [1]}, [{"op": "add", "path": "/l/1", "value": 2}], {"l": [1, 2]}),
    "add null": ({}, [{"op": "add", "path": "/a", "value": None}], {"a": None}),
    "whole document": ({"a": 1}, [{"op": "add", "path": "", "value": {"b": 1}}], {"b": 1}),
    "remove": ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
    "remove item": ({"l": [1, 2]}, [{"op": "remove", "path": "/l/0"}], {"l": [2]}),
    "replace": ({"a": {"b": 1}}, [{"op": "replace", "path": "/a/b", "value": 2}], {"a": {"b": 2}}),
    "escapes": ({"a/b": {"~": 1}}, [{"op": "replace", "path": "/a~1b/~0", "value": 2}], {"a/b": {"~": 2}}),
    "move": ({"a": {"x": 1}, "b": {}}, [{"op": "move", "from": "/a/x", "path": "/b/y"}], {"a": {}, "b": {"y": 1}}),
    "copy": ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
    "test passes": ({"a": [1, {"b": None}]}, [{"op": "test", "path": "/a", "value": [1, {"b": None}]}], None),
    "test number by value": ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], None),
    "test absent is null": ({}, [{"op": "test", "path": "/a", "value": None}], None),
}


@pytest.mark.parametrize(("doc", "ops", "want"), CASES.values(), ids=CASES.keys())
def test_operations(doc: dict[str, Any], ops: list[dict[str, Any]], want: dict[str, Any] | None) -> None:
    before = copy.deepcopy(doc)
    assert json_patch.apply(doc, ops) == (doc if want is None else want)
    assert doc == before


BAD = {
    "test fails": ({"a": 1}, [{"op": "test", "path": "/a", "value": 2}], "testing value /a failed", True),
    "true is not one": ({"a": 1}, [{"op": "test", "path": "/a", "value": True}], "test failed", True),
    "remove missing": ({}, [{"op": "remove", "path": "/a"}], "doc is missing path: /a", True),
    "replace missing": ({"l": []}, [{"op": "replace", "path": "/l/0", "value": 1}], "missing path", True),
    "no parent": ({}, [{"op": "add", "path": "/a/b", "value": 1}], "missing path: /a", True),
    "index beyond": ({"l": []}, [{"op": "add", "path": "/l/1", "value": 1}], "invalid index: 1", True),
    "leading zero": ({"l": [1, 2]}, [{"op": "remove", "path": "/l/01"}], "invalid index: 01", True),
    "through scalar": ({"a": 1}, [{"op": "add", "path": "/a/b", "value": 1}], "missing", True),
    "into itself": ({"a": {"b": 1}}, [{"op": "move", "from": "/a", "path": "/a/c"}], "into itself", True),
    "unknown op": ({}, [{"op": "mangle", "path": "/a"}], "unexpected kind: 'mangle'", False),
    "op is a list": ({}, [{"op": [], "path": "/a"}], r"unexpected kind: \[\]", False),
    "copy from nowhere": ({}, [{"op": "copy", "path": "/a"}], "invalid path None", False),
    "no value": ({}, [{"op": "add", "path": "/a"}], "needs a value", False),
    "bad pointer": ({}, [{"op": "remove", "path": "a"}], "invalid path", False),
    "not a list": ({}, {"op": "remove"}, "list of operations", False),
    "not an object": ({}, ["x"], "operation 0", False),
}


@pytest.mark.parametrize(("doc", "ops", "message", "invalid"), BAD.values(), ids=BAD.keys())
def test_failures(doc: dict[str, Any], ops: list[Any] | dict[str, str], message: str, invalid: bool) -> None:
    before = copy.deepcopy(doc)
    with pytest.raises(JsonPatchError, match=message) as caught:
        json_patch.apply(doc, ops)  # type: ignore[arg-type]
    assert caught.value.invalid is invalid
    assert doc == before


def test_a_later_failure_undoes_earlier_operations() -> None:
    doc = {"a": [1]}
    with pytest.raises(JsonPatchError):
        json_patch.apply(doc, [{"op": "add", "path": "/a/-", "value": 2}, {"op": "remove", "path": "/b"}])
    assert doc == {"a": [1]}


def test_the_result_shares_nothing_with_the_patch() -> None:
    value: dict[str, Any] = {"x": []}
    result = json_patch.apply({}, [{"op": "add", "path": "/a", "value": value}])
    value["x"].append(1)
    assert result == {"a": {"x": []}}


def test_copies_that_multiply_the_document_are_rejected() -> None:
    doubling = [{"op": "copy", "from": "", "path": f"/c{i}"} for i in range(40)]
    with pytest.raises(JsonPatchError, match="accumulated size increase of copy") as caught:
        json_patch.apply({"a": "x" * 100}, doubling)
    assert caught.value.invalid


def test_copies_within_the_limit_are_applied() -> None:
    ops = [{"op": "copy", "from": "/a", "path": f"/c{i}"} for i in range(20)]
    result = json_patch.apply({"a": "x" * 100_000}, ops)
    assert len(result) == 21
