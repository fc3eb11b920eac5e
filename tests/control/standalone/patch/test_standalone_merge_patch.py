"""RFC 7386: the RFC's table and the properties of merge patches."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from control.standalone.patch import merge_patch

TABLE = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("doc", "patch", "want"), TABLE)
def test_rfc_table(
    doc: dict[str, Any] | list[str | int],
    patch: dict[str, Any] | list[str] | str | None,
    want: dict[str, Any] | list[str] | str | None,
) -> None:
    before = copy.deepcopy(doc)
    assert merge_patch.apply(doc, patch) == want
    assert doc == before


def trees(nulls: bool) -> SearchStrategy[Any]:
    leaves = st.integers(-3, 3) | st.sampled_from(["", "x"]) | st.booleans()
    if nulls:
        leaves |= st.none()  # type: ignore[operator]
    keys = st.sampled_from("abcd")
    return st.recursive(leaves, lambda t: st.dictionaries(keys, t, max_size=4) | st.lists(t, max_size=2), max_leaves=12)


@settings(deadline=None)
@given(trees(nulls=False), trees(nulls=True))
def test_applying_twice_is_applying_once(doc: Any, patch: Any) -> None:
    once = merge_patch.apply(doc, patch)
    assert merge_patch.apply(once, patch) == once


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), trees(nulls=False)))
def test_the_empty_patch_changes_nothing(doc: dict[str, Any]) -> None:
    assert merge_patch.apply(doc, {}) == doc


@settings(deadline=None)
@given(trees(nulls=False), trees(nulls=True))
def test_no_null_survives_in_maps(doc: Any, patch: Any) -> None:
    def nulls(value: Any) -> bool:
        return isinstance(value, dict) and any(v is None or nulls(v) for v in value.values())

    assert not nulls(merge_patch.apply(doc, patch)) or not isinstance(patch, dict)
