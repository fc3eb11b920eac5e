"""merge_diff: applying the difference gives the new object, and nothing smaller would."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.api.core import ConfigMap
from koordlet.kube import merge_diff, pointer

SCALARS = st.one_of(st.booleans(), st.integers(-2, 2), st.sampled_from(["", "a"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def apply(target: Any, patch: Any) -> Any:
    """RFC 7386, word for word."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = apply(target.get(key), value)
    return target


def typed(value: Any) -> dict[str, Any] | Sequence[Any]:
    """Values with their JSON types: in Python True == 1."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return [typed(item) for item in value] if isinstance(value, list) else (type(value).__name__, value)


@given(OBJECTS, OBJECTS)
def test_applying_the_difference_gives_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert typed(apply(old, merge_diff(old, new))) == typed(new)


@given(OBJECTS)
def test_equal_objects_differ_by_nothing(obj: dict[str, Any]) -> None:
    assert merge_diff(obj, obj) == {}


@given(OBJECTS, OBJECTS)
def test_every_entry_is_needed(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = merge_diff(old, new)
    for key in patch:
        rest = {k: v for k, v in patch.items() if k != key}
        assert typed(apply(old, rest)) != typed(new)


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, {"b": None}),
        ({"l": {"x": "1", "y": "2"}}, {"l": {"x": "1", "y": "3"}}, {"l": {"y": "3"}}),
        ({"l": [1, 2]}, {"l": [1]}, {"l": [1]}),
        ({"l": {"x": 1}}, {"l": {}}, {"l": {"x": None}}),
        ({}, {"l": {}}, {"l": {}}),
        ({"l": "text"}, {"l": {"x": 1}}, {"l": {"x": 1}}),
        ({"a": 1}, {"a": True}, {"a": True}),
        (ConfigMap(data={"a": "1"}), ConfigMap(data={"a": "2"}), {"data": {"a": "2"}}),
    ],
)
def test_examples(old: dict[str, Any] | ConfigMap, new: dict[str, Any] | ConfigMap, patch: dict[str, Any]) -> None:
    assert merge_diff(old, new) == patch


@pytest.mark.parametrize(("old", "new"), [({"a": 1}, {"a": None}), ({}, {"a": {"b": None}})])
def test_null_cannot_be_expressed(old: dict[str, int], new: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="null"):
        merge_diff(old, new)


def test_pointer_escapes() -> None:
    assert pointer("metadata", "labels", "a/b~c", 0) == "/metadata/labels/a~1b~0c/0"
