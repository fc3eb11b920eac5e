"""JSON patches contain exactly the changes between two objects."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.manager.webhookserver import jsonpatch
from control.manager.webhookserver.admission import (
    AllowResponse,
    PatchResponse,
    UndecodableObject,
    WebhookRequest,
    patch_response,
)
from control.standalone.patch.json_patch import apply
from koordlet.api.core import Pod

KEYS = st.sampled_from(["a", "b", "c/d", "e~f", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "x", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


def applied(document: Any, operations: list[dict[str, Any]]) -> Any:
    return apply(copy.deepcopy(document), operations)


@given(OBJECTS, OBJECTS)
def test_a_difference_applied_gives_the_other(old: Any, new: Any) -> None:
    assert jsonpatch.same(applied(old, jsonpatch.diff(old, new)), new)


@given(OBJECTS)
def test_the_same_needs_no_operation(value: Any) -> None:
    assert jsonpatch.diff(value, copy.deepcopy(value)) == []


def request(document: Any) -> WebhookRequest:
    return WebhookRequest(uid="u", name="web", namespace="ns", object=msgspec.Raw(json.dumps(document).encode()))


def test_the_response_to_a_changed_object_holds_only_the_change() -> None:
    before: dict[str, Any] = {
        "metadata": {"name": "web", "managedFields": [{"manager": "kubectl"}]},
        "spec": {"unknown": {"a": 1}},
    }
    after = copy.deepcopy(before)
    after["metadata"]["labels"] = {"koordinator.sh/qosClass": "BE"}
    response = patch_response(before, after)
    assert isinstance(response, PatchResponse)
    assert list(response.operations) == [
        {"op": "add", "path": "/metadata/labels", "value": {"koordinator.sh/qosClass": "BE"}}
    ]


def test_an_unchanged_object_needs_no_patch() -> None:
    assert patch_response({"a": [1]}, {"a": [1]}) == AllowResponse()


@pytest.mark.parametrize(
    ("document", "message"),
    [({"spec": {"containers": [{"name": 7}]}}, r"Pod ns/web: spec.containers\[0\].name"), (None, "no object")],
    ids=["wrong type", "absent"],
)
def test_the_error_of_a_malformed_object_names_the_field(document: Any, message: str) -> None:
    with pytest.raises(UndecodableObject, match=message):
        request(document).decode(Pod)
