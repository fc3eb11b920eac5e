"""OpenAPI v2 as protobuf: the bytes have the content of the JSON, and kubectl validates lists with them."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from typing import Any

import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from control.standalone.errors import StatusError
from control.standalone.http.negotiate import ACCEPTED, OPENAPI_PROTOBUF, openapi_type
from control.standalone.kinds import Kinds, ResourceKind
from control.standalone.schema import KindSchemas
from control.standalone.schema.builtin import Builtins
from control.standalone.schema.openapi_proto import EncodeError, encode

ASKED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"  # by client-go
BUILTINS = Builtins()
GVK = "x-kubernetes-group-version-kind"
YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Messages of openapi.v2 as clients know them: name=number:type, * for repeated ones.
_VALUES = """default=5:Any maximum=6:double exclusive_maximum=7:bool minimum=8:double exclusive_minimum=9:bool
    max_length=10:int min_length=11:int pattern=12:string max_items=13:int min_items=14:int unique_items=15:bool
    enum=16:*Any multiple_of=17:double vendor_extension=18:*NamedAny"""


def _shifted(by: int) -> str:
    return re.sub(r"=(\d+)", lambda m: f"={int(m[1]) + by}", _VALUES)


MESSAGES = {
    "Any": "yaml=2:string",
    "AdditionalPropertiesItem": "schema=1:Schema boolean=2:bool",
    "BodyParameter": """description=1:string name=2:string in=3:string required=4:bool schema=5:Schema
        vendor_extension=6:*NamedAny""",
    "Definitions": "additional_properties=1:*NamedSchema",
    "Document": """swagger=1:string info=2:Info consumes=6:*string produces=7:*string paths=8:Paths
        definitions=9:Definitions vendor_extension=16:*NamedAny""",
    "Info": "title=1:string version=2:string vendor_extension=7:*NamedAny",
    "ItemsItem": "schema=1:*Schema",
    "JsonReference": "_ref=1:string description=2:string",
    "NamedAny": "name=1:string value=2:Any",
    "NamedPathItem": "name=1:string value=2:PathItem",
    "NamedResponseValue": "name=1:string value=2:ResponseValue",
    "NamedSchema": "name=1:string value=2:Schema",
    "NonBodyParameter": """header_parameter_sub_schema=1:PathParameterSubSchema
        form_data_parameter_sub_schema=2:QueryParameterSubSchema query_parameter_sub_schema=3:QueryParameterSubSchema
        path_parameter_sub_schema=4:PathParameterSubSchema""",
    "Operation": """description=3:string operation_id=5:string produces=6:*string consumes=7:*string
        parameters=8:*ParametersItem responses=9:Responses vendor_extension=13:*NamedAny""",
    "Parameter": "body_parameter=1:BodyParameter non_body_parameter=2:NonBodyParameter",
    "ParametersItem": "parameter=1:Parameter json_reference=2:JsonReference",
    "PathItem": """_ref=1:string get=2:Operation put=3:Operation post=4:Operation delete=5:Operation
        patch=8:Operation parameters=9:*ParametersItem vendor_extension=10:*NamedAny""",
    "PathParameterSubSchema": f"""required=1:bool in=2:string description=3:string name=4:string type=5:string
        format=6:string items=7:PrimitivesItems collection_format=8:string {_shifted(4)}""",
    "Paths": "vendor_extension=1:*NamedAny path=2:*NamedPathItem",
    "PrimitivesItems": f"""type=1:string format=2:string items=3:PrimitivesItems collection_format=4:string
        {_VALUES}""",
    "Properties": "additional_properties=1:*NamedSchema",
    "QueryParameterSubSchema": f"""required=1:bool in=2:string description=3:string name=4:string
        allow_empty_value=5:bool type=6:string format=7:string items=8:PrimitivesItems collection_format=9:string
        {_shifted(5)}""",
    "Response": "description=1:string schema=2:SchemaItem vendor_extension=5:*NamedAny",
    "ResponseValue": "response=1:Response json_reference=2:JsonReference",
    "Responses": "response_code=1:*NamedResponseValue vendor_extension=2:*NamedAny",
    "Schema": """_ref=1:string format=2:string title=3:string description=4:string default=5:Any multiple_of=6:double
        maximum=7:double exclusive_maximum=8:bool minimum=9:double exclusive_minimum=10:bool max_length=11:int
        min_length=12:int pattern=13:string max_items=14:int min_items=15:int unique_items=16:bool
        max_properties=17:int min_properties=18:int required=19:*string enum=20:*Any
        additional_properties=21:AdditionalPropertiesItem type=22:TypeItem items=23:ItemsItem all_of=24:*Schema
        properties=25:Properties read_only=27:bool example=30:Any vendor_extension=31:*NamedAny""",
    "SchemaItem": "schema=1:Schema",
    "TypeItem": "value=1:*string",
}
_UNIONS = {"AdditionalPropertiesItem", "ParametersItem", "Parameter", "NonBodyParameter", "ResponseValue", "SchemaItem"}
_ENTRIES = {"additional_properties", "path", "response_code", "vendor_extension"}


def _document_class() -> Any:
    proto = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "string": proto.TYPE_STRING,
        "bool": proto.TYPE_BOOL,
        "int": proto.TYPE_INT64,
        "double": proto.TYPE_DOUBLE,
    }
    file = descriptor_pb2.FileDescriptorProto(name="v2.proto", package="openapi.v2", syntax="proto3")
    for name, text in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in text.split():
            label, number, star, kind = re.fullmatch(r"(\w+)=(\d+):(\*?)(\w+)", field).groups()  # type: ignore[union-attr]
            added = message.field.add(name=label, number=int(number))
            added.label = proto.LABEL_REPEATED if star else proto.LABEL_OPTIONAL
            if kind in scalars:
                added.type = scalars[kind]
            else:
                added.type, added.type_name = proto.TYPE_MESSAGE, f".openapi.v2.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("openapi.v2.Document"))


DOCUMENT = _document_class()


def parse(data: bytes) -> Any:
    message = DOCUMENT()
    message.ParseFromString(data)
    again = message.SerializeToString(deterministic=True)
    message.DiscardUnknownFields()
    assert message.SerializeToString(deterministic=True) == again, "unknown fields"
    return message


def read(value: Any) -> Any:
    """The JSON of a message."""
    name = getattr(getattr(value, "DESCRIPTOR", None), "name", "")
    if not name:
        return value
    if name == "Any":
        return yaml.load(value.yaml, Loader=YAML)
    fields = {field.name: item for field, item in value.ListFields()}
    if name in _UNIONS:
        assert len(fields) <= 1  # no field: false, which this descriptor can't distinguish from absent
        return read(next(iter(fields.values()), False))
    if name in ("TypeItem", "ItemsItem"):
        (only,) = next(iter(fields.values()))
        return read(only)
    out: dict[str, Any] = {}
    for label, item in fields.items():
        if (label in _ENTRIES and name != "Schema") or label == "vendor_extension":
            out.update((entry.name, read(entry.value)) for entry in item)
            continue
        keyword = "$ref" if label == "_ref" else re.sub("_(.)", lambda m: m[1].upper(), label)
        many = not hasattr(item, "DESCRIPTOR") and not isinstance(item, str | bool | int | float)
        out[keyword] = [read(each) for each in item] if many else read(item)
    return out


def document(**parts: Any) -> dict[str, Any]:
    return {"swagger": "2.0", "info": {"title": "T", "version": "1"}, **parts}


def test_every_built_in_kind_round_trips() -> None:
    documents = KindSchemas(BUILTINS).openapi(Kinds())
    assert read(parse(documents.v2_protobuf())) == json.loads(documents.v2())


def test_the_fields_that_kubectl_reads_are_present() -> None:
    message = parse(KindSchemas(BUILTINS).openapi(Kinds()).v2_protobuf())
    paths = {entry.name: entry.value for entry in message.paths.path}
    patch = paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"].patch
    extensions = {entry.name: entry.value.yaml for entry in patch.vendor_extension}
    assert yaml.safe_load(extensions[GVK]) == {"group": "apps", "version": "v1", "kind": "Deployment"}
    subs = [each.parameter.non_body_parameter.query_parameter_sub_schema for each in patch.parameters]
    assert {"fieldValidation", "dryRun"} <= {sub.name for sub in subs if getattr(sub, "in") == "query"}
    definitions = {entry.name: entry.value for entry in message.definitions.additional_properties}
    pod = definitions["io.k8s.api.core.v1.Pod"]
    assert list(pod.type.value) == ["object"]
    assert {GVK: [{"group": "", "version": "v1", "kind": "Pod"}]}.items() <= read(pod).items()
    spec = {e.name: e.value for e in definitions["io.k8s.api.core.v1.PodSpec"].properties.additional_properties}
    assert len(spec["containers"].items.schema) == 1
    assert spec["containers"].items.schema[0]._ref == "#/definitions/io.k8s.api.core.v1.Container"
    assert ("x-kubernetes-patch-merge-key", "name") in [
        (e.name, yaml.safe_load(e.value.yaml)) for e in spec["containers"].vendor_extension
    ]


FULL = {
    "type": "object",
    "description": "Größe, 漢字 and 🚀",
    "required": ["a", "b"],
    "additionalProperties": {"$ref": "#/definitions/x"},
    "properties": {
        "a": {"type": "integer", "format": "int64", "default": 5, "minimum": -1.5, "maximum": 9e99, "minLength": 300},
        "b": {"type": "string", "enum": ["", "null", "yes", "1"], "pattern": "^\\d+$", "default": ""},
        "c": {"type": "array", "items": {"type": "boolean", "default": False}, "x-kubernetes-list-type": "map"},
        "d": {"x-kubernetes-int-or-string": True, "x-kubernetes-preserve-unknown-fields": True},
        "x-e": {"type": "object", "additionalProperties": False, "maxProperties": 2**62, "multipleOf": 0.25},
        "type": {"allOf": [{"type": "string", "readOnly": True}], "example": {"deep": [1, None, {"e": 1.5}]}},
        "properties": {"type": "object", "additionalProperties": True, "properties": {"$ref": {"type": "string"}}},
    },
    "x-kubernetes-validations": [{"rule": 'self.a > 1 && self.b == "\\"#: {"', "message": "no\n way"}],
}


def test_every_keyword_of_a_schema_round_trips() -> None:
    whole = document(definitions={"x": FULL, "y": {}})
    assert read(parse(encode(whole))) == whole


def test_parameters_and_responses_round_trip() -> None:
    whole = document(
        paths={
            "/a": {
                "parameters": [{"$ref": "#/parameters/p"}, {"name": "n", "in": "path", "type": "string"}],
                "post": {
                    "parameters": [
                        {"name": "q", "in": "query", "type": "array", "items": {"type": "string"}, "enum": [["a"]],
                         "uniqueItems": True, "x-v": 1},
                        {"name": "h", "in": "header", "type": "integer", "default": 1, "x-v": {}},
                        {"name": "body", "in": "body", "schema": {"type": "object"}, "x-v": []},
                    ],
                    "responses": {"200": {"description": "OK", "schema": FULL}, "default": {"$ref": "#/responses/r"}},
                },
                "x-path": "p",
            }
        }
    )  # fmt: skip
    assert read(parse(encode(whole))) == whole


def test_keywords_without_a_field_are_left_out() -> None:
    assert read(
        parse(encode(document(definitions={"a": {"nullable": True, "title": "", "items": None, "enum": None}})))
    ) == document(definitions={"a": {}})


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"description": 5}, "description"),
        ({"maxLength": "long"}, "maxLength"),
        ({"maxLength": 1.5}, "maxLength"),
        ({"maxLength": 2**63}, "maxLength"),
        ({"minimum": "low"}, "minimum"),
        ({"minimum": 10**400}, "minimum"),
        ({"uniqueItems": "yes"}, "uniqueItems"),
        ({"required": "a"}, "required"),
        ({"properties": []}, "properties"),
        ({"properties": {"a": "string"}}, "Schema"),
        ({"required": True}, "required"),
        ({"additionalProperties": "all"}, "additionalProperties"),
    ],
    ids=lambda case: str(case)[:40],
)
def test_an_invalid_value_is_named(schema: dict[str, Any], keyword: str) -> None:
    with pytest.raises(EncodeError, match=f"^{keyword}:"):
        encode(document(definitions={"a": schema}))


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("ab:#'\"\\\n\t {}[]&*!|>%@`-,?é漢🚀"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab:#\"\\ ", max_size=4), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
_LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "object"]),
        "description": _TEXT,
        "default": _JSON,
        "enum": st.lists(_JSON, min_size=1, max_size=3),
        "maxLength": st.integers(-(2**63), 2**63 - 1).filter(bool),
        "maximum": st.floats(allow_nan=False).filter(bool),
        "required": st.lists(_TEXT | st.just(""), min_size=1, max_size=2),
        "uniqueItems": st.just(True),
        "x-kubernetes-any": _JSON,
    },
)
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(_TEXT, inner, max_size=3),
            "items": inner,
            "additionalProperties": inner | st.booleans(),
            "allOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=6,
)


@given(st.dictionaries(_TEXT, _SCHEMAS, max_size=3))
def test_any_schema_round_trips(definitions: dict[str, Any]) -> None:
    whole = document(definitions=definitions)
    assert read(parse(encode(whole))) == whole


SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "nullable": True, "description": "How much."},
        "free": {"type": "object", "nullable": True, "x-kubernetes-preserve-unknown-fields": True},
        "port": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
        "kept": {"type": "object", "default": {"not": True}, "required": ["not"],
                 "properties": {"not": {"type": "boolean"}}},
    },
}  # fmt: skip
CRD: dict[str, Any] = {
    "spec": {
        "group": "example.org",
        "names": {"kind": "Thing", "plural": "things"},
        "versions": [{"name": "v1", "served": True, "storage": True,
                      "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC}}}}],
    }
}  # fmt: skip
THING = ResourceKind("example.org", ("v1",), "Thing", "things", "thing", custom=True, crd=CRD)


def test_the_v2_document_accepts_what_the_server_accepts() -> None:
    kinds = Kinds()
    documents = KindSchemas(BUILTINS).openapi(kinds)
    before = documents.v2_protobuf()
    assert documents.v2_protobuf() is before
    kinds.add(THING)
    whole = read(parse(documents.v2_protobuf()))
    assert whole == json.loads(documents.v2())
    properties = whole["definitions"]["org.example.v1.Thing"]["properties"]["spec"]["properties"]
    assert properties["size"] == {"description": "How much."}
    assert properties["free"] == {"x-kubernetes-preserve-unknown-fields": True}
    assert properties["port"] == {"x-kubernetes-int-or-string": True}
    assert properties["kept"] == SPEC["properties"]["kept"]
    kinds.discard(THING.key)
    assert documents.v2_protobuf() == before


def test_an_invalid_custom_schema_does_not_affect_the_others() -> None:
    kinds = Kinds()
    documents = KindSchemas(BUILTINS).openapi(kinds)
    before = read(parse(documents.v2_protobuf()))["definitions"]
    crd = copy.deepcopy(CRD)
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["additionalProperties"] = "all"
    kinds.add(dataclasses.replace(THING, crd=crd))
    definitions = read(parse(documents.v2_protobuf()))["definitions"]
    gvk = {"group": "example.org", "version": "v1", "kind": "Thing"}
    assert definitions.pop("org.example.v1.Thing") == {GVK: [gvk]}
    assert definitions.pop("org.example.v1.ThingList")["required"] == ["items"]
    assert definitions == before


@pytest.mark.parametrize(
    ("accept", "answer"),
    [
        ("", ACCEPTED),
        ("*/*", ACCEPTED),
        ("application/json", ACCEPTED),
        (ASKED, OPENAPI_PROTOBUF),
        (f"{ASKED};mdtx", OPENAPI_PROTOBUF),
        (OPENAPI_PROTOBUF, OPENAPI_PROTOBUF),
        (f"{ASKED}, */*", OPENAPI_PROTOBUF),
        (f"application/json, {ASKED}", ACCEPTED),
        (f"application/json;q=0.5, {ASKED};q=0.9", OPENAPI_PROTOBUF),
    ],
)
def test_the_first_supported_type_is_used(accept: str, answer: str) -> None:
    assert openapi_type(accept) == answer


def test_other_types_are_rejected_with_the_supported_ones() -> None:
    with pytest.raises(StatusError, match=re.escape(f"application/json, {OPENAPI_PROTOBUF}")):
        openapi_type("application/vnd.kubernetes.protobuf")


async def test_the_server_responds_in_both_forms_with_etags(http: Any) -> None:
    async with http.session.get(
        http.server.url + "/openapi/v2", headers={"Accept": ASKED, "Authorization": f"Bearer {http.server.admin_token}"}
    ) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, OPENAPI_PROTOBUF)
        assert (answer.headers["Content-Encoding"], answer.headers["Vary"]) == ("gzip", "Accept, Accept-Encoding")
        message, tag = parse(await answer.read()), answer.headers["ETag"]
    plain = await http("GET", "/openapi/v2")
    assert read(message) == plain.body
    same = await http("GET", "/openapi/v2", headers={"Accept": ASKED, "If-None-Match": tag})
    assert (same.status, same.text, same.headers["ETag"]) == (304, "", tag)
    assert (await http("GET", "/openapi/v2", headers={"If-None-Match": tag})).status == 200, "JSON has another ETag"
    assert (await http("GET", "/openapi/v2", headers={"Accept": "text/html"})).status == 406


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "busybox",
                "ports": [{"containerPort": 80}],
                "resources": {"requests": {"cpu": 1, "memory": "64Mi"}},
                "livenessProbe": {"httpGet": {"port": "http", "path": "/"}},
                "readinessProbe": {"httpGet": {"port": 80, "path": "/"}},
            }
        ],
    },
}


def config_map(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": name}, **more}


def listed(*items: Any) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": list(items)})


@pytest.mark.kubectl
@pytest.mark.parametrize("verb", ["apply", "create"])
async def test_a_list_is_applied_or_created(ready: Any, verb: str) -> None:
    out = await ready(verb, "-f", "-", input=listed(config_map("a"), config_map("b"), POD))
    assert out.splitlines() == ["configmap/a created", "configmap/b created", "pod/web created"]
    assert (await ready("get", "cm", "b", "-o", "jsonpath={.data.k}")) == "b"


@pytest.mark.kubectl
async def test_the_output_of_get_can_be_applied_again(ready: Any) -> None:
    await ready("apply", "-f", "-", input=listed(config_map("a"), config_map("b"), POD))
    manifest = await ready("get", "cm/a", "cm/b", "pod/web", "-o", "yaml")
    assert yaml.safe_load(manifest)["kind"] == "List"
    out = await ready("apply", "-f", "-", input=manifest)
    assert re.fullmatch(r"configmap/a (\w+)\nconfigmap/b (\w+)\npod/web (\w+)\n", out), out


@pytest.mark.kubectl
@pytest.mark.parametrize(
    ("item", "message"),
    [
        (config_map("b", dta={}), 'unknown field "dta" in io.k8s.api.core.v1.ConfigMap'),
        (
            config_map("b", data="text"),
            'invalid type for io.k8s.api.core.v1.ConfigMap.data: got "string", expected "map"',
        ),
        (
            {**POD, "spec": {"containers": [{"image": "x"}]}},
            'missing required field "name" in io.k8s.api.core.v1.Container',
        ),
    ],
    ids=["unknown", "type", "missing"],
)
async def test_a_wrong_item_of_a_list_is_named_and_nothing_is_written(ready: Any, item: Any, message: str) -> None:
    out = await ready("apply", "-f", "-", input=listed(config_map("a"), item), fails=True)
    assert "error validating data" in out
    assert message in out
    assert "configmap/a" not in await ready("get", "cm", "-o", "name")


@pytest.mark.kubectl
@pytest.mark.parametrize("verb", ["apply", "create"])
async def test_an_unknown_kind_is_reported(ready: Any, verb: str) -> None:
    alien = {"apiVersion": "example.org/v1", "kind": "Alien", "metadata": {"name": "x"}}
    out = await ready(verb, "-f", "-", input=yaml.safe_dump(alien), fails=True)
    assert 'resource mapping not found for name: "x" namespace: "" from "STDIN"' in out
    assert 'no matches for kind "Alien" in version "example.org/v1"' in out
    out = await ready(verb, "-f", "-", input=listed(alien), fails=True)
    assert 'no matches for kind "Alien" in version "example.org/v1"' in out


@pytest.mark.kubectl
async def test_custom_objects_in_a_list_are_checked_by_their_schema(ready: Any) -> None:
    crd = {
        **CRD,
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.org"},
    }
    crd["spec"] = {**CRD["spec"], "scope": "Namespaced"}
    await ready("apply", "-f", "-", input=yaml.safe_dump(crd))
    await ready("wait", "--for=condition=Established", "crd/things.example.org")

    def thing(**spec: Any) -> dict[str, Any]:
        return {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": spec}

    fine = thing(size=None, free={"b": 1}, port="http", kept={"not": True})
    assert await ready("apply", "-f", "-", input=listed(fine)) == "thing.example.org/t created\n"
    wrong = listed(thing(kept={"not": True, "more": 1}))
    out = await ready("apply", "-f", "-", input=wrong, fails=True)
    assert 'unknown field "more" in org.example.v1.Thing.spec.kept' in out
