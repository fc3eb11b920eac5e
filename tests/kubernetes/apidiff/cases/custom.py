# ruff: noqa: E501
"""Custom kinds: this project's CRDs, and a small one of the test with every feature that it uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.apidiff.cases.objects import namespace
from tests.kubernetes.apidiff.exchange import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, TABLE, Call

NS = namespace("custom")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOLDER = Path(__file__).resolve().parents[4] / "deploy" / "crds"
WIDGETS = f"/apis/diff.io/v1/namespaces/{NS}/widgets"
SCHEMA: dict[str, Any] = {
    "type": "object", "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object", "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 10},
                "color": {"type": "string", "enum": ["red", "green"], "default": "red"},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5, "minLength": 2},
                "amount": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
                "parts": {"type": "array", "maxItems": 2, "x-kubernetes-list-type": "map",
                          "x-kubernetes-list-map-keys": ["id"],
                          "items": {"type": "object", "required": ["id"],
                                    "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
                "when": {"type": "string", "format": "date-time"},
                "replicas": {"type": "integer", "format": "int32"},
                "maybe": {"type": "string", "nullable": True},
                "either": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                           "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            },
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}},
    },
}  # fmt: skip
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.diff.io"},
    "spec": {
        "group": "diff.io", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
        "versions": [{
            "name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                                                     "statusReplicasPath": ".status.replicas"}},
            "additionalPrinterColumns": [
                {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                {"name": "Color", "type": "string", "jsonPath": ".spec.color", "description": "d", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            ],
        }],
    },
}  # fmt: skip


def widget(name: str, /, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "diff.io/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 3, **spec}}


def crd(name: str, /, **changes: Any) -> dict[str, Any]:
    """The CRD of `name`s with changes of its only version, or of its spec."""
    spec = {**CRD["spec"], "names": {"plural": name, "kind": name.capitalize()}}
    version = {**spec["versions"][0], **changes.pop("version", {})}
    return {**CRD, "metadata": {"name": f"{name}.diff.io"}, "spec": {**spec, "versions": [version], **changes}}


def schema(**properties: Any) -> dict[str, Any]:
    return {"schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", **properties}}}}}


INVALID: dict[str, dict[str, Any]] = {
    "no type": {"version": schema(properties={"a": {"description": "x"}})},
    "bad pattern": {"version": schema(properties={"a": {"type": "string", "pattern": "("}})},
    "look ahead": {"version": schema(properties={"a": {"type": "string", "pattern": "(?=a)"}})},
    "bad type": {"version": schema(properties={"a": {"type": "text"}})},
    "array without items": {"version": schema(properties={"a": {"type": "array"}})},
    "bad default": {"version": schema(properties={"a": {"type": "integer", "default": "x"}})},
    "map keys without list": {"version": schema(properties={"a": {"type": "object", "x-kubernetes-list-map-keys": ["a"]}})},
    "properties and additional": {"version": schema(properties={"a": {"type": "string"}}, additionalProperties={"type": "string"})},
    "no versions": {"versions": []},
    "bad scope": {"scope": "World"},
    "no storage version": {"version": {"storage": False}},
    "no schema": {"version": {"schema": None}},
    "bad column": {"version": {"additionalPrinterColumns": [{"name": "a", "type": "text", "jsonPath": "a"}]}},
    "another name": {"group": "other.io"},
}  # fmt: skip
INVALID_WIDGETS: dict[str, dict[str, Any]] = {
    "too large": {"size": 11}, "too small": {"size": 0}, "text for a number": {"size": "3"},
    "fraction": {"size": 1.5}, "null": {"size": None}, "not in the enum": {"color": "blue"},
    "not the pattern": {"name": "ABC"}, "too long": {"name": "abcdef"}, "too short": {"name": "a"},
    "too many": {"parts": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}, "no key": {"parts": [{"n": 1}]},
    "the same key": {"parts": [{"id": "a"}, {"id": "a"}]}, "the same tag": {"tags": ["a", "a"]},
    "wrong list": {"parts": {}}, "bad time": {"when": "yesterday"}, "wrong value": {"map": {"a": 1}},
    "boolean amount": {"amount": True}, "both": {"either": {"a": "1", "b": "2"}}, "neither": {"either": {}},
    "big integer": {"replicas": 2**40},
}  # fmt: skip
OURS = [yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*_*.yaml"))]
CALLS = [
    *(Call(f"invalid: {name}", "POST", CRDS, crd("bads", **changes)) for name, changes in INVALID.items()),
    Call("create", "POST", CRDS, CRD),
    *(Call(f"ours: {crd['metadata']['name']}", "POST", CRDS, crd) for crd in OURS),
    Call("served", "GET", WIDGETS, compare=False, until="WidgetList"),
    Call("published", "GET", "/openapi/v3/apis/diff.io/v1", compare=False, until="Widget"),
    Call("established", "GET", CRDS + "/widgets.diff.io", until="Established"),
    Call("table", "GET", CRDS + "/widgets.diff.io", headers={"Accept": TABLE}),
    Call("discovery of the group", "GET", "/apis/diff.io"),
    Call("discovery of the version", "GET", "/apis/diff.io/v1"),
    *(Call(f"invalid widget: {name}", "POST", WIDGETS, widget("bad", **spec)) for name, spec in INVALID_WIDGETS.items()),
    Call("widget without spec", "POST", WIDGETS, {"apiVersion": "diff.io/v1", "kind": "Widget", "metadata": {"name": "n"}}),
    Call("widget of another kind", "POST", WIDGETS, {**widget("a"), "kind": "Gadget"}),
    Call("widget of another version", "POST", WIDGETS, {**widget("a"), "apiVersion": "diff.io/v2"}),
    Call("widget without kind", "POST", WIDGETS, {"metadata": {"name": "n"}, "spec": {"size": 1}}),
    Call("widget with unknown fields", "POST", WIDGETS, {**widget("u", other=1, free={"x": 1}), "top": 1}),
    Call("widget with unknown fields, strict", "POST", WIDGETS + "?fieldValidation=Strict", widget("s", other=1)),
    Call("widget with nulls", "POST", WIDGETS, widget("nulls", maybe=None, color=None, name=None)),
    Call("widget", "POST", WIDGETS, {**widget("w", parts=[{"id": "a"}], tags=["x"]), "status": {"phase": "X"}}),
    Call("widget again", "POST", WIDGETS, widget("w")),
    Call("get widget", "GET", WIDGETS + "/w"),
    Call("get missing widget", "GET", WIDGETS + "/missing"),
    Call("widget table", "GET", WIDGETS + "/w", headers={"Accept": TABLE}),
    Call("list widgets", "GET", WIDGETS),
    Call("widgets by field", "GET", WIDGETS + "?fieldSelector=spec.size%3D3"),
    Call("update widget without version", "PUT", WIDGETS + "/w", widget("w")),
    Call("update widget", "PUT", WIDGETS + "/w", {**widget("w", size=4), "metadata": {
        "name": "w", "resourceVersion": "${get widget:metadata.resourceVersion}"}}),
    Call("merge widget", "PATCH", WIDGETS + "/w", {"spec": {"size": 5, "parts": [{"id": "b"}]}}, MERGE_PATCH),
    Call("merge widget badly", "PATCH", WIDGETS + "/w", {"spec": {"size": 50}}, MERGE_PATCH),
    Call("strategic widget", "PATCH", WIDGETS + "/w", {"spec": {"size": 5}}, STRATEGIC_PATCH),
    Call("json widget", "PATCH", WIDGETS + "/w", [{"op": "remove", "path": "/spec/parts"}], JSON_PATCH),
    Call("apply widget", "PATCH", WIDGETS + "/w?fieldManager=m", widget("w", size=5, parts=[{"id": "z"}]), APPLY_PATCH),
    Call("apply widget conflict", "PATCH", WIDGETS + "/w?fieldManager=o", widget("w", size=5, color="green"), APPLY_PATCH),
    Call("apply unknown field", "PATCH", WIDGETS + "/w?fieldManager=o", widget("w", size=5, nothing=6), APPLY_PATCH),
    Call("widget status", "PATCH", WIDGETS + "/w/status", {"status": {"replicas": 2}, "spec": {"size": 9}}, MERGE_PATCH),
    Call("widget scale", "GET", WIDGETS + "/w/scale"),
    Call("scale widget", "PATCH", WIDGETS + "/w/scale", {"spec": {"replicas": 4}}, MERGE_PATCH),
    Call("widget scale again", "GET", WIDGETS + "/w/scale"),
    Call("watch widgets", "GET", WIDGETS + "?watch=1&timeoutSeconds=1"),
    Call("watch widgets as a table", "GET", WIDGETS + "?watch=1&timeoutSeconds=1", headers={"Accept": TABLE}),
    Call("delete widget", "DELETE", WIDGETS + "/w"),
    Call("delete widgets", "DELETE", WIDGETS),
    Call("change the scope", "PATCH", CRDS + "/widgets.diff.io", {"spec": {"scope": "Cluster"}}, MERGE_PATCH),
    Call("delete the definition", "DELETE", CRDS + "/widgets.diff.io"),
]  # fmt: skip
