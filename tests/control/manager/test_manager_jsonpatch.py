"""Patches say what was changed and nothing else, whatever the API server sent that the struct does not know."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.manager.webhookserver import jsonpatch
from control.manager.webhookserver.admission import AdmissionRequest, Allowed, Change, Patched, Undecodable
from control.standalone.patch.json_patch import apply
from koordlet.api.core import Container, Pod
from koordlet.api.encoding.quantity import Quantity

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


@given(OBJECTS, OBJECTS, OBJECTS)
def test_what_did_not_change_stays_as_it_came(raw: Any, before: Any, after: Any) -> None:
    kept = copy.deepcopy(raw)
    result = applied(raw, jsonpatch.patch(raw, before, after))
    assert raw == kept
    for key in raw.keys() - before.keys() - after.keys():
        assert jsonpatch.same(result[key], raw[key])
    for key in before.keys() & after.keys():
        if jsonpatch.same(before[key], after[key]):
            assert (key in result) == (key in raw)
            assert jsonpatch.same(result.get(key), raw.get(key))
    assert not (before.keys() - after.keys()) & result.keys()


@given(OBJECTS, OBJECTS)
def test_a_struct_that_knows_everything_is_followed_to_the_letter(before: Any, after: Any) -> None:
    assert jsonpatch.same(applied(before, jsonpatch.patch(before, before, after)), after)


def request(document: Any) -> AdmissionRequest:
    return AdmissionRequest(uid="u", name="web", namespace="ns", object=msgspec.Raw(json.dumps(document).encode()))


POD: dict[str, Any] = {
    "metadata": {"name": "web", "managedFields": [{"manager": "kubectl"}]},
    "spec": {
        "ephemeralNews": {"of": "the future"},
        "containers": [
            {"name": "a", "livenessProbe": {"exec": {}}, "resources": {"claims": [{"name": "gpu"}]}},
            {"name": "b", "lifecycle": {}, "resources": {"requests": {"cpu": "1000m"}}},
        ],
    },
}


def test_unknown_fields_survive_and_defaults_do_not_show() -> None:
    change = Change(request(POD), Pod)
    change.object.metadata.labels["koordinator.sh/qosClass"] = "BE"
    change.object.spec.containers[0].resources.limits["memory"] = Quantity("1Gi")
    change.object.spec.containers[1].resources.requests["cpu"] = Quantity("1")  # the same amount, another text
    answer = change.result()
    assert isinstance(answer, Patched)
    result = applied(POD, list(answer.operations))
    wanted = copy.deepcopy(POD)
    wanted["metadata"]["labels"] = {"koordinator.sh/qosClass": "BE"}
    wanted["spec"]["containers"][0]["resources"]["limits"] = {"memory": "1Gi"}
    assert result == wanted


@pytest.mark.parametrize("keep", [0, 1], ids=["the second goes", "the first goes"])
def test_elements_are_known_by_name(keep: int) -> None:
    change = Change(request(POD), Pod)
    del change.object.spec.containers[1 - keep]
    change.object.spec.containers.append(Container(name="c"))
    answer = change.result()
    assert isinstance(answer, Patched)
    containers = applied(POD, list(answer.operations))["spec"]["containers"]
    assert containers == [POD["spec"]["containers"][keep], {"name": "c", "resources": {}}]


def test_nothing_changed_is_no_patch() -> None:
    assert Change(request(POD), Pod).result() == Allowed()


@pytest.mark.parametrize(
    ("document", "said"),
    [({"spec": {"containers": [{"name": 7}]}}, r"Pod ns/web: spec.containers\[0\].name"), (None, "no object")],
    ids=["wrong type", "absent"],
)
def test_what_can_not_be_read_names_the_field(document: Any, said: str) -> None:
    with pytest.raises(Undecodable, match=said):
        Change(request(document), Pod)
