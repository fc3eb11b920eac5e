"""Server-side apply: ownership, conflicts, removal, and properties that hold for all objects."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from control.standalone.patch import fieldset
from control.standalone.patch.apply import LAST_APPLIED, ApplyConflict, ApplyError, server_side_apply
from control.standalone.patch.managed_fields import ManagedFieldsError, update_on_write
from control.standalone.patch.patches import conflict_error
from control.standalone.schema.builtin import Builtins
from control.standalone.schema.walk import Schema
from tests.present import present

BUILTINS = Builtins()
DEPLOYMENT = present(BUILTINS.schema("apps", "v1", "Deployment"))
CONFIG_MAP = BUILTINS.schema("", "v1", "ConfigMap")
T1, T2, T3 = "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z"


def apply(
    live: dict[str, Any] | None,
    applied: dict[str, Any],
    manager: str = "me",
    *,
    force: bool = False,
    schema: Schema = CONFIG_MAP,  # type: ignore[assignment]
    sub: str = "",
    version: str = "v1",
    now: str = T1,
) -> tuple[dict[str, Any], list[ApplyConflict]]:
    return server_side_apply(live, applied, manager, force, schema, sub, version, now)


def config_map(data: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", **metadata}}
    return obj if data is None else {**obj, "data": data}


def owners(obj: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    """manager -> set of field paths as text."""
    return {
        (e["manager"], e["operation"]): {fieldset.format_path(p) for p in fieldset.parse(e["fieldsV1"])}
        for e in obj["metadata"].get("managedFields", [])
    }


def test_creating_owns_what_was_applied() -> None:
    obj, conflicts = apply(None, config_map({"a": "1"}, labels={"x": "y"}))
    assert not conflicts
    assert obj["data"] == {"a": "1"}
    assert owners(obj) == {("me", "Apply"): {".data.a", ".metadata.labels.x"}}
    entry = obj["metadata"]["managedFields"][0]
    assert entry == {
        "manager": "me",
        "operation": "Apply",
        "apiVersion": "v1",
        "time": T1,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}}, "f:metadata": {"f:labels": {"f:x": {}}}},
    }


def test_keyed_lists_are_owned_by_item() -> None:
    container = {"name": "web", "image": "i:1", "ports": [{"containerPort": 80}]}
    applied = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    obj, _ = apply(None, applied, schema=DEPLOYMENT, version="apps/v1")
    fields = obj["metadata"]["managedFields"][0]["fieldsV1"]
    assert fields["f:spec"]["f:template"]["f:spec"]["f:containers"] == {
        'k:{"name":"web"}': {
            ".": {},
            "f:image": {},
            "f:name": {},
            "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
        }
    }


def test_two_managers_may_each_own_a_container() -> None:
    def deployment(*containers: dict[str, str], **spec: Any) -> dict[str, Any]:
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
                "spec": {**spec, "template": {"spec": {"containers": list(containers)}}}}  # fmt: skip

    first, _ = apply(None, deployment({"name": "a", "image": "a:1"}, replicas=1), "one", schema=DEPLOYMENT)
    two, conflicts = apply(first, deployment({"name": "b", "image": "b:1"}), "two", schema=DEPLOYMENT)
    assert not conflicts
    assert [c["name"] for c in two["spec"]["template"]["spec"]["containers"]] == ["a", "b"]
    gone, _ = apply(two, deployment(replicas=1), "one", schema=DEPLOYMENT)
    assert [c["name"] for c in gone["spec"]["template"]["spec"]["containers"]] == ["b"]


def test_removing_an_item_removes_its_unowned_fields() -> None:
    applied = {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "i"}]}}, "replicas": 1}}
    live, _ = apply(None, applied, schema=DEPLOYMENT)
    live["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Always"  # a default without an owner
    obj, _ = apply(live, {"spec": {"replicas": 1}}, schema=DEPLOYMENT)
    assert obj["spec"] == {"replicas": 1}


def test_a_conflict_names_manager_and_field_and_changes_nothing() -> None:
    live = update_on_write(None, config_map({"a": "1", "b": "1"}), "editor", "Update", CONFIG_MAP, "", T1)
    obj, conflicts = apply(live, config_map({"a": "2"}), now=T2)
    assert obj == live
    error = conflict_error(conflicts)
    assert (error.code, error.reason) == (409, "Conflict")
    assert error.message == 'Apply failed with 1 conflict: conflict with "editor" using v1: .data.a'
    assert error.details["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "editor" using v1', "field": ".data.a"}
    ]
    _, both = apply(live, config_map({"a": "2", "b": "2"}), now=T2)
    assert conflict_error(both).message == (
        'Apply failed with 2 conflicts: conflicts with "editor" using v1:\n- .data.a\n- .data.b'
    )


def test_a_conflict_with_an_applier_and_a_subresource() -> None:
    live, _ = apply(None, config_map({"a": "1"}), "first")
    _, conflicts = apply(live, config_map({"a": "2"}), "second")
    assert str(conflicts[0]) == 'conflict with "first": .data.a'
    scaled = update_on_write({"spec": {"replicas": 1}}, {"apiVersion": "apps/v1", "spec": {"replicas": 3}},
                             "hpa", "Update", DEPLOYMENT, "scale", T1)  # fmt: skip
    _, conflicts = apply(scaled, {"spec": {"replicas": 1}}, schema=DEPLOYMENT)
    assert str(conflicts[0]) == 'conflict with "hpa" with subresource "scale" using apps/v1: .spec.replicas'


def test_force_takes_the_field_over() -> None:
    live, _ = apply(None, config_map({"a": "1", "b": "1"}), "first")
    obj, conflicts = apply(live, config_map({"a": "2"}), "second", force=True)
    assert not conflicts
    assert obj["data"] == {"a": "2", "b": "1"}
    assert owners(obj) == {("first", "Apply"): {".data.b"}, ("second", "Apply"): {".data.a"}}


def test_the_same_value_is_shared_and_outlives_one_owner() -> None:
    live, _ = apply(None, config_map({"a": "1"}), "first")
    live, conflicts = apply(live, config_map({"a": "1"}), "second")
    assert not conflicts
    assert owners(live) == {("first", "Apply"): {".data.a"}, ("second", "Apply"): {".data.a"}}
    obj, _ = apply(live, config_map(), "first")
    assert obj["data"] == {"a": "1"}
    assert owners(obj) == {("second", "Apply"): {".data.a"}}
    last, _ = apply(obj, config_map(), "second")
    assert "data" not in last
    assert "managedFields" not in last["metadata"]


def test_an_update_takes_ownership_from_appliers() -> None:
    live, _ = apply(None, config_map({"a": "1", "b": "1"}))
    live = update_on_write(live, {**live, "data": {"a": "2"}}, "editor", "Update", CONFIG_MAP, "", T2)
    assert owners(live) == {("editor", "Update"): {".data.a"}}


def test_before_first_apply_owns_the_existing_fields() -> None:
    obj, conflicts = apply(config_map({"a": "1"}), config_map({"b": "1"}), now=T2)
    assert not conflicts
    assert owners(obj)[("before-first-apply", "Update")] == {".data", ".data.a"}
    _, conflicts = apply(config_map({"a": "1"}), config_map({"a": "2"}), now=T2)
    assert conflicts[0].manager.name == "before-first-apply"


def test_applying_the_same_again_keeps_the_time() -> None:
    live, _ = apply(None, config_map({"a": "1"}), now=T1)
    again, _ = apply(live, config_map({"a": "1"}), now=T2)
    assert again == live
    other, _ = apply(live, config_map({"a": "2"}), now=T3)
    assert other["metadata"]["managedFields"][0]["time"] == T3


def test_nulls_are_not_applied() -> None:
    obj, _ = apply(None, config_map({"a": "1"}, creationTimestamp=None, labels=None))
    assert owners(obj) == {("me", "Apply"): {".data.a"}}


def test_status_is_applied_separately() -> None:
    live = {"apiVersion": "apps/v1", "metadata": {"name": "d"}, "spec": {"replicas": 1}}
    body = {"metadata": {"name": "d", "labels": {"no": "no"}}, "spec": {"replicas": 9}, "status": {"replicas": 1}}
    obj, _ = apply(live, body, schema=DEPLOYMENT, sub="status", version="apps/v1")
    assert (obj["spec"], obj["status"]) == ({"replicas": 1}, {"replicas": 1})
    assert "labels" not in obj["metadata"]
    mine = [e for e in obj["metadata"]["managedFields"] if e["manager"] == "me"]
    assert mine[0]["subresource"] == "status"
    assert mine[0]["fieldsV1"] == {"f:status": {"f:replicas": {}}}


def test_atomic_parts_are_replaced() -> None:
    live, _ = apply(None, {"spec": {"selector": {"matchLabels": {"a": "1"}}}}, schema=DEPLOYMENT)
    obj, _ = apply(live, {"spec": {"selector": {"matchLabels": {"b": "1"}}}}, schema=DEPLOYMENT)
    assert obj["spec"]["selector"] == {"matchLabels": {"b": "1"}}
    assert owners(obj) == {("me", "Apply"): {".spec.selector"}}


BAD = {
    "no manager": (config_map(), {"manager": ""}, "is required for apply patch"),
    "long manager": (config_map(), {"manager": "x" * 129}, "may not be more than 128 bytes"),
    "managed fields": (config_map(managedFields=[{"manager": "x"}]), {}, "metadata.managedFields must be nil"),
    "duplicate items": (
        {"spec": {"template": {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}}},
        {"schema": DEPLOYMENT},
        r'.spec.template.spec.containers: duplicate entries for key \[{"name":"a"}\]',
    ),
    "item without key": (
        {"spec": {"template": {"spec": {"containers": [{"image": "a"}]}}}},
        {"schema": DEPLOYMENT},
        "lacks its key field",
    ),
}


@pytest.mark.parametrize(("applied", "how", "message"), BAD.values(), ids=BAD.keys())
def test_invalid_applied_objects_are_rejected(applied: dict[str, Any], how: dict[str, Any], message: str) -> None:
    with pytest.raises(ApplyError, match=message):
        apply(None, applied, **how)


def client_side(data: dict[str, str]) -> dict[str, Any]:
    obj = config_map(data)
    obj["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(config_map(data))}
    return update_on_write(None, obj, "kubectl-client-side-apply", "Update", CONFIG_MAP, "", T1)


def test_kubectl_moves_from_client_side_to_server_side() -> None:
    live = client_side({"a": "1", "b": "1"})
    obj, conflicts = apply(live, config_map({"a": "2"}), "kubectl", now=T2)
    assert not conflicts
    assert obj["data"] == {"a": "2"}
    kept = json.loads(obj["metadata"]["annotations"][LAST_APPLIED])
    assert kept["data"] == {"a": "2"}
    again, _ = apply(obj, config_map({"a": "2"}), "kubectl", now=T3)
    assert again == obj


def test_another_manager_still_conflicts_with_client_side_apply() -> None:
    _, conflicts = apply(client_side({"a": "1"}), config_map({"a": "2"}), "flux")
    assert [str(c) for c in conflicts] == ['conflict with "kubectl-client-side-apply" using v1: .data.a']


def test_a_client_may_rewrite_managed_fields() -> None:
    live = client_side({"a": "1"})
    moved = copy.deepcopy(live)
    entry = moved["metadata"]["managedFields"][0]
    entry |= {"manager": "kubectl", "operation": "Apply"}
    obj = update_on_write(live, moved, "kubectl", "Update", CONFIG_MAP, "", T2)
    assert set(owners(obj)) == {("kubectl", "Apply")}
    cleared = {**live, "metadata": {**live["metadata"], "managedFields": [{}]}}
    assert "managedFields" not in update_on_write(live, cleared, "x", "Update", CONFIG_MAP, "", T2)["metadata"]
    silent = {**live, "metadata": {k: v for k, v in live["metadata"].items() if k != "managedFields"}}
    assert update_on_write(live, silent, "x", "Update", CONFIG_MAP, "", T2)["metadata"] == live["metadata"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("x", r"managedFields\[0\]: expected an object"),
        ({"operation": "Mangle"}, r"managedFields\[0\].operation: Invalid value"),
        ({"operation": "Apply", "fieldsType": "X"}, r"managedFields\[0\].fieldsType"),
        ({"operation": "Apply", "fieldsV1": {"spec": {}}}, "unknown path element 'spec'"),
        ({"operation": "Apply", "fieldsV1": {"f:spec": 1}}, "'.spec': expected an object"),
    ],
)
def test_invalid_managed_fields_are_rejected(entry: str | dict[str, Any], message: str) -> None:
    new = config_map({}, managedFields=[entry])
    with pytest.raises(ManagedFieldsError, match=message):
        update_on_write(config_map(), new, "x", "Update", CONFIG_MAP, "", T1)


def test_old_update_managers_are_merged() -> None:
    live = config_map({})
    for n in range(20):
        new = {**live, "data": {**live["data"], f"k{n}": "1"}}
        live = update_on_write(live, new, f"m{n:02}", "Update", CONFIG_MAP, "", f"2026-01-01T00:00:{n:02}Z")
    names = [entry["manager"] for entry in live["metadata"]["managedFields"]]
    assert len(names) == 10
    assert "ancient-changes" in names
    assert {path for paths in owners(live).values() for path in paths} >= {f".data.k{n}" for n in range(20)}


SCHEMA = Schema(
    {
        "type": "object",
        "properties": {
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "atoms": {"type": "array", "items": {"type": "string"}},
            "items": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["id"],
                "items": {
                    "type": "object",
                    "properties": {"id": {"type": "string"}, "x": {"type": "string"}, "y": {"type": "string"}},
                },
            },
            "struct": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
        },
    }
)
VALUES = st.sampled_from(["1", "2"])


def objects(keys: str) -> SearchStrategy[Any]:
    """Objects whose map keys, set members and item ids come from `keys`."""
    letters = st.sampled_from(keys)
    item = st.fixed_dictionaries({"id": letters}, optional={"x": VALUES, "y": VALUES})
    return st.fixed_dictionaries(
        {},
        optional={
            "map": st.dictionaries(letters, VALUES, max_size=3),
            "set": st.lists(letters, unique=True, max_size=3),
            "items": st.lists(item, unique_by=lambda i: i["id"], max_size=3),
        },
    )


def full_objects() -> SearchStrategy[Any]:
    more = st.fixed_dictionaries(
        {},
        optional={
            "atoms": st.lists(VALUES, max_size=2),
            "struct": st.fixed_dictionaries({}, optional={"a": VALUES, "b": VALUES}),
        },
    )
    return st.builds(lambda a, b: {**a, **b}, objects("abcd"), more)


def put(
    live: dict[str, Any] | None, obj: dict[str, Any], manager: str, force: bool = False, now: str = T1
) -> tuple[dict[str, Any], list[Any]]:
    return server_side_apply(live, copy.deepcopy(obj), manager, force, SCHEMA, "", "v1", now)


@settings(max_examples=150, deadline=None)
@given(full_objects(), full_objects(), full_objects())
def test_applying_twice_is_a_no_op(first: dict[str, Any], other: dict[str, Any], second: dict[str, Any]) -> None:
    live, _ = put(None, first, "one")
    live, _ = put(live, other, "two", force=True)
    once, _ = put(live, second, "one", force=True, now=T2)
    twice, conflicts = put(once, second, "one", now=T3)
    assert not conflicts
    assert twice == once


@settings(max_examples=150, deadline=None)
@given(objects("ab"), objects("cd"), objects("ab"))
def test_disjoint_managers_never_conflict(first: dict[str, Any], second: dict[str, Any], later: dict[str, Any]) -> None:
    live, _ = put(None, {k: v for k, v in first.items() if v}, "one")
    live, conflicts = put(live, {k: v for k, v in second.items() if v}, "two")
    assert not conflicts
    live, conflicts = put(live, {k: v for k, v in later.items() if v}, "one")
    assert not conflicts


@settings(max_examples=150, deadline=None)
@given(objects("ab"), objects("cd"))
def test_removing_a_managers_fields_keeps_the_others(first: dict[str, Any], second: dict[str, Any]) -> None:
    first, second = ({k: v for k, v in each.items() if v} for each in (first, second))
    live, _ = put(None, first, "one")
    live, _ = put(live, second, "two")
    rest, conflicts = put(live, {}, "one")
    assert not conflicts
    alone, _ = put(None, second, "two")
    assert {k: v for k, v in rest.items() if k != "metadata"} == {k: v for k, v in alone.items() if k != "metadata"}
    assert "one" not in {e["manager"] for e in rest["metadata"].get("managedFields", [])}


@settings(max_examples=150, deadline=None)
@given(full_objects(), full_objects())
def test_the_result_has_the_applied_fields(before: dict[str, Any], applied: dict[str, Any]) -> None:
    live, _ = put(None, before, "one")
    obj, _ = put(live, applied, "two", force=True)
    for name in ("map", "struct"):
        assert applied.get(name, {}).items() <= obj.get(name, {}).items()
    assert applied.get("atoms", []) in ([], obj.get("atoms"))
    assert set(applied.get("set", [])) <= set(obj.get("set", []))


@settings(deadline=None)
@given(st.sets(st.lists(st.sampled_from(["f:a", "f:b", 'k:{"n":"x"}', 'v:"1"']), min_size=1, max_size=4).map(tuple)))
def test_fields_v1_round_trips(paths: set[tuple[str, ...]]) -> None:
    assert fieldset.parse(fieldset.to_fields_v1(paths)) == paths
