"""Structural schemas: pruning, defaulting, and the wording of every error."""

# ruff: noqa: E501 - tables of messages, one case per line

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.standalone.schema import structural
from control.standalone.schema.crd import check_crd
from control.standalone.schema.formats import conforms
from control.standalone.schema.walk import Schema, SchemaNodeError


def schema(**properties: Any) -> Schema:
    return Schema({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}})


def complaints(value: Any, **raw: Any) -> list[str]:
    return [str(e) for e in structural.validate({"spec": {"x": value}}, schema(x=raw))]


ITEMS = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
         "items": {"type": "object", "properties": {"name": {"type": "string"}}}}  # fmt: skip

WORDING = {
    "type": ("a", {"type": "integer"}, 'spec.x: Invalid value: "string": spec.x in body must be of type integer: "string"'),
    "object for string": ({}, {"type": "string"}, 'spec.x: Invalid value: "object": spec.x in body must be of type string: "object"'),
    "true is no integer": (True, {"type": "integer"}, 'spec.x: Invalid value: "boolean": spec.x in body must be of type integer: "boolean"'),
    "null": (None, {"type": "string"}, 'spec.x: Invalid value: "null": spec.x in body must be of type string: "null"'),
    "int or string": (1.5, {"x-kubernetes-int-or-string": True}, 'spec.x: Invalid value: "number": spec.x in body must be of type integer,string: "number"'),
    "enum": ("a", {"type": "string", "enum": ["b", "c"]}, 'spec.x: Unsupported value: "a": supported values: "b", "c"'),
    "required": ({}, {"type": "object", "required": ["y"]}, "spec.x.y: Required value"),
    "pattern": ("a", {"type": "string", "pattern": "^b$"}, "spec.x: Invalid value: \"a\": spec.x in body should match '^b$'"),
    "too short": ("", {"type": "string", "minLength": 1}, 'spec.x: Invalid value: "": spec.x in body should be at least 1 chars long'),
    "too long": ("abc", {"type": "string", "maxLength": 2}, "spec.x: Too long: may not be more than 2 bytes"),
    "maximum": (5, {"type": "integer", "maximum": 4}, "spec.x: Invalid value: 5: spec.x in body should be less than or equal to 4"),
    "exclusive maximum": (4, {"type": "integer", "maximum": 4, "exclusiveMaximum": True}, "spec.x: Invalid value: 4: spec.x in body should be less than 4"),
    "minimum": (0, {"type": "integer", "minimum": 1}, "spec.x: Invalid value: 0: spec.x in body should be greater than or equal to 1"),
    "exclusive minimum": (1, {"type": "number", "minimum": 1, "exclusiveMinimum": True}, "spec.x: Invalid value: 1: spec.x in body should be greater than 1"),
    "multiple": (3, {"type": "integer", "multipleOf": 2}, "spec.x: Invalid value: 3: spec.x in body should be a multiple of 2"),
    "too many items": ([1, 2], {"type": "array", "maxItems": 1, "items": {"type": "integer"}}, "spec.x: Too many: 2: must have at most 1 item"),
    "too few items": ([], {"type": "array", "minItems": 1, "items": {}}, "spec.x: Invalid value: 0: spec.x in body should have at least 1 items"),
    "item": ([1, "a"], {"type": "array", "items": {"type": "integer"}}, 'spec.x[1]: Invalid value: "string": spec.x[1] in body must be of type integer: "string"'),
    "too few properties": ({}, {"type": "object", "minProperties": 1}, "spec.x: Invalid value: 0: spec.x in body should have at least 1 properties"),
    "map value": ({"k": 1}, {"type": "object", "additionalProperties": {"type": "string"}}, 'spec.x.k: Invalid value: "integer": spec.x.k in body must be of type string: "integer"'),
    "set": (["a", "a"], {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}, 'spec.x[1]: Duplicate value: "a"'),
    "map list": ([{"name": "a"}, {"name": "a"}], ITEMS, 'spec.x[1]: Duplicate value: {"name":"a"}'),
    "date-time": ("then", {"type": "string", "format": "date-time"}, 'spec.x: Invalid value: "then": spec.x in body must be of type date-time: "then"'),
    "int32": (2**31, {"type": "integer", "format": "int32"}, "spec.x: Invalid value: 2147483648: spec.x in body must be of type int32: 2147483648"),
    "any of": (3, {"type": "integer", "anyOf": [{"maximum": 1}, {"minimum": 5}]}, 'spec.x: Invalid value: 3: "spec.x" must validate at least one schema (anyOf)'),
    "one of": (3, {"type": "integer", "oneOf": [{"minimum": 1}, {"minimum": 2}]}, 'spec.x: Invalid value: 3: "spec.x" must validate one and only one schema (oneOf). Found 2 valid alternatives'),
    "not": (3, {"type": "integer", "not": {"enum": [3]}}, 'spec.x: Invalid value: 3: "spec.x" must not validate the schema (not)'),
    "quantity": ("1x", {"type": "string", "format": "quantity"}, "spec.x: Invalid value: \"1x\": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "raw", "want"), WORDING.values(), ids=WORDING.keys())
def test_wording(value: Any, raw: dict[str, Any], want: str) -> None:
    assert complaints(value, **raw) == [want]


FINE = {
    "integral number": (2.0, {"type": "integer"}),
    "integer is a number": (2, {"type": "number"}),
    "nullable": (None, {"type": "string", "nullable": True, "enum": ["a"]}),
    "int": (1, {"x-kubernetes-int-or-string": True}),
    "string": ("1%", {"x-kubernetes-int-or-string": True}),
    "anything": ({"a": [1]}, {"x-kubernetes-preserve-unknown-fields": True}),
    "unknown format": ("x", {"type": "string", "format": "whatever"}),
    "set": (["a", "b"], {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
    "all of": (3, {"type": "integer", "allOf": [{"minimum": 1}, {"maximum": 3}]}),
}


@pytest.mark.parametrize(("value", "raw"), FINE.values(), ids=FINE.keys())
def test_valid_values_are_accepted(value: Any, raw: dict[str, Any]) -> None:
    assert complaints(value, **raw) == []


def test_the_number_of_errors_is_bounded() -> None:
    many = structural.validate({"spec": {"x": ["a"] * 1000}}, schema(x={"type": "array", "items": {"type": "integer"}}))
    assert len(many) == structural.MAX_ERRORS


FORMATS = [
    ("date-time", "2026-01-02T03:04:05Z", True),
    ("date-time", "2026-01-02T03:04:05.123456789+01:00", True),
    ("date-time", "2026-01-02 03:04:05Z", False),
    ("date-time", "2026-13-02T03:04:05Z", False),
    ("date", "2026-01-02", True),
    ("date", "20260102", False),
    ("duration", "1h30m", True),
    ("duration", "1.5s", True),
    ("duration", "3 days", True),
    ("duration", "soon", False),
    ("ipv4", "10.0.0.1", True),
    ("ipv4", "10.0.0.256", False),
    ("ipv6", "::1", True),
    ("cidr", "10.0.0.0/8", True),
    ("cidr", "10.0.0.0", False),
    ("byte", "aGk=", True),
    ("byte", "not base64!", False),
    ("uuid", "123e4567-e89b-12d3-a456-426614174000", True),
    ("uuid", "123", False),
    ("hostname", "a.example.org", True),
    ("hostname", "-", False),
    ("email", "a@b", True),
    ("uri", "https://example.org", True),
]


@pytest.mark.parametrize(("name", "text", "want"), FORMATS)
def test_formats(name: str, text: str, want: bool) -> None:
    assert conforms(text, name) is want


def test_unknown_fields_are_pruned_and_named() -> None:
    s = schema(
        known={"type": "string"},
        free={"type": "object", "x-kubernetes-preserve-unknown-fields": True,
              "properties": {"strict": {"type": "object", "properties": {}}}},
        map={"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}},
        list={"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
        embedded={"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": {"type": "object"}}},
    )  # fmt: skip
    obj = {
        "apiVersion": "v1", "kind": "K", "metadata": {"name": "x"}, "extra": 1,
        "spec": {"known": "a", "gone": 1, "free": {"kept": 1, "strict": {"gone": 1}}, "map": {"k": {"a": "1", "gone": 1}},
                 "list": [{"a": "1"}, {"gone": 1}],
                 "embedded": {"apiVersion": "v1", "kind": "X", "metadata": {}, "gone": 1}},
    }  # fmt: skip
    gone = structural.prune(obj, s)
    assert sorted(gone) == ["extra", "spec.embedded.gone", "spec.free.strict.gone", "spec.gone", "spec.list[1].gone",
                            "spec.map.k.gone"]  # fmt: skip
    assert obj["spec"]["free"] == {"kept": 1, "strict": {}}  # type: ignore[index]
    assert obj["spec"]["list"] == [{"a": "1"}, {}]  # type: ignore[index]
    assert structural.prune(obj, s) == []


def test_defaults_fill_what_is_absent() -> None:
    s = schema(
        a={"type": "string", "default": "x"},
        b={"type": "object", "default": {}, "properties": {"c": {"type": "integer", "default": 3}}},
        d={"type": "object", "properties": {"e": {"type": "integer", "default": 4}}},
        f={"type": "array", "items": {"type": "object", "properties": {"g": {"type": "integer", "default": 5}}}},
        n={"type": "string", "nullable": True, "default": "x"},
    )
    obj = {"spec": {"a": None, "f": [{}, {"g": 1}], "n": None}}
    structural.fill_defaults(obj, s)
    assert obj["spec"] == {"a": "x", "b": {"c": 3}, "f": [{"g": 5}, {"g": 1}], "n": None}


def test_defaults_are_not_shared() -> None:
    s = schema(b={"type": "array", "default": [], "items": {"type": "string"}})
    first: dict[str, Any] = {"spec": {}}
    second: dict[str, Any] = {"spec": {}}
    structural.fill_defaults(first, s)
    structural.fill_defaults(second, s)
    first["spec"]["b"].append("x")
    assert second["spec"]["b"] == []


LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
JSON = st.recursive(
    LEAVES, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.sampled_from("abcd"), t), max_leaves=10
)
LAW = schema(
    a={"type": "string", "default": "x"},
    b={"type": "object", "properties": {"a": {"type": "integer", "default": 1}}},
    c={"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["spec", "a"]), st.dictionaries(st.sampled_from("abcd"), JSON)))
def test_pruning_and_defaulting_are_idempotent(obj: dict[str, Any]) -> None:
    structural.prune(obj, LAW)
    structural.fill_defaults(obj, LAW)
    before = copy.deepcopy(obj)
    assert structural.prune(obj, LAW) == []
    structural.fill_defaults(obj, LAW)
    assert obj == before
    structural.validate(obj, LAW)
    assert obj == before


def test_a_missing_definition_is_named() -> None:
    with pytest.raises(SchemaNodeError, match="'Nowhere'"):
        Schema({"properties": {"x": {"$ref": "#/definitions/Nowhere"}}}).field("x")


def crd(schema: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema or {"type": "object"}},
    }
    return {
        "metadata": {"name": "things.example.org"},
        "spec": {"group": "example.org", "scope": "Namespaced", "names": {"kind": "Thing", "plural": "things"},
                 "versions": [version], **spec},
    }  # fmt: skip


def prop(**raw: Any) -> dict[str, Any]:
    return crd({"type": "object", "properties": {"x": raw}})


ROOT = "spec.versions[0].schema.openAPIV3Schema"
X = f"{ROOT}.properties[x]"
CRDS = {
    "fine": (crd(), []),
    "no group": (crd(group=""), ["spec.group: Required value"]),
    "no scope": (crd(scope=None), ["spec.scope: Required value"]),
    "odd scope": (crd(scope="Both"), ['spec.scope: Unsupported value: "Both": supported values: "Cluster", "Namespaced"']),
    "no plural": (crd(names={"kind": "Thing"}), ["spec.names.plural: Required value"]),
    "no versions": (crd(versions=[]), ["spec.versions: Required value: must have at least one version"]),
    "no storage": (crd(versions=[{"name": "v1", "served": True, "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}}]),
                   ['spec.versions: Invalid value: ["v1"]: must have exactly one version marked as storage version']),
    "no schema": (crd(versions=[{"name": "v1", "served": True, "storage": True}]), [f"{ROOT}: Required value: schemas are required"]),
    "no root type": (crd({"properties": {}}), [f"{ROOT}.type: Required value: must not be empty at the root"]),
    "no type": (prop(), [f"{X}.type: Required value: must not be empty for specified object fields"]),
    "free": (prop(**{"x-kubernetes-preserve-unknown-fields": True}), []),
    "odd type": (prop(type="float"), [f'{X}.type: Unsupported value: "float": supported values: "array", "boolean", "integer", "number", "object", "string"']),
    "int or string with type": (prop(type="string", **{"x-kubernetes-int-or-string": True}), [f'{X}.type: Invalid value: "string": must be empty when x-kubernetes-int-or-string is true']),
    "array without items": (prop(type="array"), [f"{X}.items: Required value: must be specified"]),
    "reference": (prop(**{"type": "object", "$ref": "#/x"}), [f"{X}.$ref: Forbidden: $ref is not supported"]),
    "both kinds of properties": (prop(type="object", properties={"a": {"type": "string"}}, additionalProperties={"type": "string"}),
                                 [f"{X}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"]),
    "typed branch": (prop(type="string", anyOf=[{"type": "string"}]), [f"{X}.anyOf[0].type: Forbidden: must be undefined to be structural"]),
    "map list without keys": (prop(type="array", items={"type": "object"}, **{"x-kubernetes-list-type": "map"}),
                              [f"{X}.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"]),
    "key that may be absent": (prop(type="array", items={"type": "object", "properties": {"n": {"type": "string"}}}, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"]}),
                               [f"{X}.items.properties[n].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be required"]),
    "wrong default": (prop(type="integer", default="a"), [f'{X}.default: Invalid value: "string": {X}.default in body must be of type integer: "string"']),
    "bad pattern": (prop(type="string", pattern="("), [f'{X}.pattern: Invalid value: "(": must be a valid regular expression, but isn\'t: error parsing regexp: missing closing ): `(`']),
}  # fmt: skip


@pytest.mark.parametrize(("obj", "want"), CRDS.values(), ids=CRDS.keys())
def test_crds(obj: dict[str, Any], want: list[str]) -> None:
    assert [str(e) for e in check_crd(obj)] == want


def test_a_crd_is_named_after_what_it_defines() -> None:
    obj = crd()
    obj["metadata"]["name"] = "other"
    assert [str(e) for e in check_crd(obj)] == [
        'metadata.name: Invalid value: "other": must be spec.names.plural+"."+spec.group'
    ]
